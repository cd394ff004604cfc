#include "launcher/options/help.h"

#include <catch2/catch.hpp>
#include <cstdlib>
#include <fstream>
#include <sstream>

namespace ddprun::launcher {
namespace {

TEST_CASE("Manual: the page that is installed is made of today's flags", "[manual]") {
  const char* path = "deploy/man/ddprun.1";
  if (std::getenv("DDPRUN_REWRITE")) std::ofstream(path) << manual_page();
  std::ifstream in(path);
  std::ostringstream installed;
  installed << in.rdbuf();
  INFO("DDPRUN_REWRITE=1 writes it anew");
  CHECK(installed.str() == manual_page());
}

}  // namespace
}  // namespace ddprun::launcher
