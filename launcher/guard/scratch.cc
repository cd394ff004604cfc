#include "launcher/guard/scratch.h"

#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <utility>

#include "common/system/log.h"
#include "common/system/secrets.h"

namespace ddprun::launcher {
namespace {

constexpr std::size_t kRandomBytes = 8;
constexpr mode_t kOwnerOnly = 0700;
constexpr const char* kInMemory = "/dev/shm";

void warn_of_memory(const Failure& why) {
  static bool reported = false;
  if (std::exchange(reported, true)) return;
  log::warning(to_string(why) + "; temporary files are in " + kInMemory + " instead");
}

}  // namespace

ScratchFolder::ScratchFolder(const std::string& name, Use use)
    : name_("/" + name + random_hex(kRandomBytes)) {
  if (use == Use::kMemory) {
    place_in(kInMemory);
    return;
  }
  std::vector<std::string> bases;
  const char* runtime = use == Use::kState ? std::getenv("XDG_RUNTIME_DIR") : nullptr;
  const char* given = std::getenv("TMPDIR");
  for (const char* base : {runtime, static_cast<const char*>(given), "/tmp", kInMemory}) {
    const bool known = !base || std::find(bases.begin(), bases.end(), base) != bases.end();
    if (!known && *base != '\0') bases.emplace_back(base);
  }
  for (const std::string& base : bases) places_.push_back(base + name_);
}

void ScratchFolder::place_in(const std::string& folder) { places_ = {folder + name_}; }

Result<void> ScratchFolder::make() {
  std::optional<Failure> first;
  for (const std::string& place : places_) {
    if (::mkdir(place.c_str(), kOwnerOnly) == 0) {
      path_ = place;
      if (first && place.starts_with(kInMemory)) warn_of_memory(*first);
      return {};
    }
    if (!first) first = errno_failure("making the temporary folder " + place);
  }
  return *first;
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
  for (const ScratchFolder* folder : {&state, &files, &report, &ranks, &memory}) {
    all.insert(all.end(), folder->places().begin(), folder->places().end());
  }
  return all;
}

void RunFolders::remove() {
  for (ScratchFolder* folder : {&state, &files, &report, &ranks, &memory}) folder->remove();
}

}  // namespace ddprun::launcher
