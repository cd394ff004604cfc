#pragma once
// An object as one line of plain ASCII. Used where an agent shows what workers have written.

#include <nlohmann/json.hpp>
#include <string>

namespace ddprun::agent {

// Workers write any bytes; JSON text may not.
inline std::string json_line(const nlohmann::json& object) {
  return object.dump(-1, ' ', /*ensure_ascii=*/true, nlohmann::json::error_handler_t::replace);
}

}  // namespace ddprun::agent
