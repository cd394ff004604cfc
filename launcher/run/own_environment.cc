#include "launcher/run/own_environment.h"

#include <unistd.h>

#include <string_view>

#include "common/system/secrets.h"

namespace ddprun::launcher {

Environment take_environment() {
  Environment environment;
  if (auto token = take_variable(kTokenVariable); token && !token->empty()) {
    hide_memory();
    environment.emplace(kTokenVariable, *token);
  }
  for (char** entry = ::environ; *entry; ++entry) {
    const std::string_view text = *entry;
    const std::size_t equals = text.find('=');
    if (equals != std::string_view::npos) {
      environment.emplace(text.substr(0, equals), text.substr(equals + 1));
    }
  }
  return environment;
}

}  // namespace ddprun::launcher
