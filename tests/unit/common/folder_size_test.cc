#include "common/system/folder.h"

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

#include "common/system/secrets.h"

namespace ddprun {
namespace {

namespace fs = std::filesystem;

TEST_CASE("Folder size: each file counts once, whatever it is called meanwhile") {
  const fs::path folder = fs::temp_directory_path() / ("ddprun-size-" + random_hex(8));
  fs::create_directories(folder / "below");
  CHECK(occupied_bytes(folder) == 0);
  std::ofstream(folder / "below" / "file") << std::string(40'000, 'x') << std::flush;
  const std::uint64_t once = occupied_bytes(folder);
  CHECK(once >= 40'000);
  // As if it got its name between two looks at the folder.
  fs::create_hard_link(folder / "below" / "file", folder / "name");
  CHECK(occupied_bytes(folder) == once);
  fs::create_directory_symlink("/usr", folder / "link");
  CHECK(occupied_bytes(folder) < once + 40'000);
  fs::remove_all(folder);
  CHECK(occupied_bytes(folder) == 0);
}

}  // namespace
}  // namespace ddprun
