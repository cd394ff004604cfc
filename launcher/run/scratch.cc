#include "launcher/run/scratch.h"

#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "common/system/random_id.h"

namespace ddprun::launcher {
namespace {

constexpr std::size_t kRandomBytes = 8;
constexpr mode_t kOwnerOnly = 0700;

}  // namespace

ScratchFolder::ScratchFolder(const std::string& name, Use use) {
  std::vector<std::string> bases;
  const char* runtime = use == Use::kState ? std::getenv("XDG_RUNTIME_DIR") : nullptr;
  for (const char* base : {runtime, static_cast<const char*>(std::getenv("TMPDIR")), "/tmp"}) {
    const bool known = !base || std::find(bases.begin(), bases.end(), base) != bases.end();
    if (!known && *base != '\0') bases.emplace_back(base);
  }
  const std::string unique = "/" + name + random_hex(kRandomBytes);
  for (const std::string& base : bases) places_.push_back(base + unique);
}

Result<void> ScratchFolder::make() {
  for (const std::string& place : places_) {
    if (::mkdir(place.c_str(), kOwnerOnly) != 0) continue;
    path_ = place;
    return {};
  }
  return errno_failure("making the temporary folder " + places_.front());
}

void ScratchFolder::remove() {
  if (!path_.empty()) remove_places({path_});
  path_.clear();
}

void remove_places(const std::vector<std::string>& places) {
  std::error_code ignored;
  for (const std::string& place : places) std::filesystem::remove_all(place, ignored);
}

std::vector<std::string> RunFolders::places() const {
  std::vector<std::string> all;
  for (const ScratchFolder* folder : {&state, &files, &report, &ranks}) {
    all.insert(all.end(), folder->places().begin(), folder->places().end());
  }
  return all;
}

void RunFolders::remove() {
  for (ScratchFolder* folder : {&state, &files, &report, &ranks}) folder->remove();
}

}  // namespace ddprun::launcher
