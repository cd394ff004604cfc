#include "worker_sdk/checkpoint/checkpoint_folder.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>

#include "common/system/folder.h"
#include "ddprun/atomic_file.h"
#include "ddprun/error.h"

namespace ddprun::worker_sdk {
namespace {

constexpr std::string_view kPrefix = "checkpoint-";

[[noreturn]] void refuse(const std::string& path, const std::string& text) {
  throw Error(ErrorKind::corrupt, {}, "checkpoint " + path + ": " + text);
}

// "checkpoint-000007-step-12" has number 7 and step 12; number 0: not a checkpoint.
FoundCheckpoint found_in(const std::string& folder, const std::string& name) {
  if (!name.starts_with(kPrefix)) return {};
  constexpr std::string_view kStep = "-step-";
  const char* end = name.data() + name.size();
  FoundCheckpoint found{.path = folder + "/" + name};
  const auto [rest, error] = std::from_chars(name.data() + kPrefix.size(), end, found.number);
  if (error != std::errc() || !std::string_view(rest, end).starts_with(kStep)) return {};
  std::from_chars(rest + kStep.size(), end, found.step);
  return found;
}

std::vector<int> ranks_without_file(const std::string& path, const Manifest& manifest) {
  std::vector<int> ranks;
  std::size_t next = 0;  // Files are in the order of the ranks, of which some have none.
  for (int rank = 0; rank < manifest.world_size && next < manifest.files.size(); ++rank) {
    const ManifestFile& file = manifest.files[next];
    if (file.name != file_of_rank(rank)) continue;
    ++next;
    if (file_bytes(path + "/" + file.name) != file.bytes) ranks.push_back(rank);
  }
  return ranks;
}

}  // namespace

std::vector<FoundCheckpoint> checkpoints_in(const std::string& folder) {
  std::vector<FoundCheckpoint> found;
  const Listing listing = names_in(folder);
  for (const std::string& name : listing.names) {
    FoundCheckpoint one = found_in(folder, name);
    if (one.number > 0) found.push_back(std::move(one));
  }
  if (listing.error != 0 && listing.error != ENOENT) {
    throw Error(ErrorKind::system, {},
                "cannot read " + folder + ": " + std::strerror(listing.error));
  }
  std::sort(found.begin(), found.end(),
            [](const auto& a, const auto& b) { return a.number > b.number; });
  return found;
}

std::int64_t step_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return found_in(path.substr(0, slash), path.substr(slash + 1)).step;
}

std::string checkpoint_name(std::uint64_t number, std::int64_t step) {
  char text[64];
  std::snprintf(text, sizeof text, "checkpoint-%06llu-step-%lld",
                static_cast<unsigned long long>(number), static_cast<long long>(step));
  return text;
}

Manifest read_manifest(const std::string& path) {
  const auto text = read_file(path + "/manifest.json");
  if (!text) refuse(path, "there is no manifest.json: it is torn, or no checkpoint");
  auto manifest = decode_manifest(*text);
  if (const auto* reason = std::get_if<std::string>(&manifest)) {
    refuse(path, "manifest.json is damaged: " + *reason);
  }
  for (const ManifestFile& file : std::get<Manifest>(manifest).files) {
    const auto bytes = file_bytes(path + "/" + file.name);
    if (!bytes) refuse(path, file.name + " is missing: it is torn");
    if (*bytes != file.bytes) {
      refuse(path, file.name + " has " + std::to_string(*bytes) + " bytes instead of " +
                       std::to_string(file.bytes));
    }
  }
  return std::get<Manifest>(std::move(manifest));
}

std::vector<int> ranks_not_found(const std::string& path, const Manifest& manifest) {
  if (ranks_without_file(path, manifest).empty()) return {};
  // A client of NFS remembers for some seconds that a file was missing when it was looked up, but
  // not beyond a change of its own to that folder.
  try {
    replace_file(path + "/seen", "");
  } catch (const Error&) {
    return {};
  }
  const std::vector<int> ranks = ranks_without_file(path, manifest);
  ::unlink((path + "/seen").c_str());
  return file_bytes(path + "/manifest.json") ? ranks : std::vector<int>();
}

bool is_complete(const std::string& path) {
  try {
    (void)read_manifest(path);
    return true;
  } catch (const Error&) {
    return false;
  }
}

void write_manifest(const std::string& path, int rank, const std::string& manifest) {
  const std::string own = path + "/.manifest-" + std::to_string(rank),
                    whole = path + "/manifest.json";
  replace_file(own, manifest);
  if (::rename(own.c_str(), whole.c_str()) == 0) return;
  throw Error(ErrorKind::system, {}, "cannot rename " + own + ": " + std::strerror(errno));
}

void remove_between(const std::string& folder, std::uint64_t first, std::uint64_t end) {
  for (const FoundCheckpoint& found : checkpoints_in(folder)) {
    const bool is_meant = found.number >= first && found.number < end;
    if (is_meant) remove_tree(found.path);  // Other processes may do so, too.
  }
}

void remove_old_checkpoints(const std::string& folder, int keep, const std::string& except) {
  int complete = 0;
  for (const FoundCheckpoint& found : checkpoints_in(folder)) {
    if (complete < keep && is_complete(found.path)) {
      ++complete;
    } else if (complete > 0 && found.path != except) {
      remove_tree(found.path);  // Other processes may do so, too.
    }
  }
}

}  // namespace ddprun::worker_sdk
