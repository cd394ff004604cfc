#pragma once

#include <string>
#include <string_view>

namespace ddprun {

// `text` as one word of a POSIX shell.
std::string shell_quote(std::string_view text);

}  // namespace ddprun
