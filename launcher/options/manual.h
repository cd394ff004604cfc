#pragma once
// ddprun(1), made from the table of flags. deploy/man/ddprun.1 is its text; a test keeps them
// equal. Pure.

#include <string>

namespace ddprun::launcher {

std::string manual_page();

}  // namespace ddprun::launcher
