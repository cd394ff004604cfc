// Checkpoints in places that hosts do not share: which of them are whole when the files of all
// hosts are put together, and the way of those that a host lacks.

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "common/checksum.h"
#include "common/system/folder.h"
#include "ddprun/atomic_file.h"
#include "ddprun/checkpoint.h"
#include "ddprun/objects.h"
#include "worker_sdk/checkpoint/checkpoint_folder.h"
#include "worker_sdk/checkpoint/memory_checkpoint.h"

namespace ddprun {
namespace {

using nlohmann::json;
using worker_sdk::CheckpointBounds;
using worker_sdk::FetchedCheckpoint;
using worker_sdk::Manifest;
using worker_sdk::ManifestFile;

constexpr std::size_t kReadBytes = std::size_t{64} << 20;

// One version of one checkpoint. Versions differ if a run wrote a number again after it had lost
// what it had written before.
struct Version {
  std::uint64_t number = 0;
  std::int64_t step = 0;
  std::uint64_t manifest = 0;  // Its checksum.
  auto operator<=>(const Version&) const = default;
};

// What this rank finds of it: the manifest, and where each file is.
struct Local {
  std::string text;
  std::map<std::string, std::string> files;
};
using Locals = std::map<Version, Local>;

void look_in(const std::string& folder, Locals& found) {
  for (const auto& checkpoint : worker_sdk::checkpoints_in(folder)) {
    const auto text = read_file(checkpoint.path + "/manifest.json");
    if (!text) continue;
    const auto manifest = worker_sdk::decode_manifest(*text);
    if (!std::holds_alternative<Manifest>(manifest)) continue;
    const std::uint64_t sum = checksum(text->data(), text->size());
    Local& local = found[{checkpoint.number, checkpoint.step, sum}];
    local.text = *text;
    for (const ManifestFile& file : std::get<Manifest>(manifest).files) {
      const std::string path = checkpoint.path + "/" + file.name;
      if (file_bytes(path) == file.bytes) local.files.try_emplace(file.name, path);
    }
  }
}

// This host's own files come first.
Locals look(const CheckpointPlace& place) {
  Locals found;
  look_in(place.folder, found);
  if (place.copies.empty()) return found;
  for (const std::string& host : names_in(place.copies).names) {
    look_in(place.copies + "/" + host + "/" + place.within, found);
  }
  return found;
}

// What one rank has, as the others learn it.
struct Offer {
  std::string folder;  // With its host: equal for ranks that see the same one.
  std::map<Version, std::set<std::string>> files;
  std::map<Version, std::set<std::string>> own;  // Those that are in the folder.
};

json to_json(const std::map<Version, std::set<std::string>>& files) {
  json list = json::array();
  for (const auto& [version, names] : files) {
    list.push_back({version.number, version.step, version.manifest, names});
  }
  return list;
}

std::map<Version, std::set<std::string>> files_of(const json& list) {
  std::map<Version, std::set<std::string>> files;
  for (const json& item : list) {
    files[{item.at(0), item.at(1), item.at(2)}] = item.at(3).get<std::set<std::string>>();
  }
  return files;
}

std::string encode(const Offer& offer) {
  return json{
      {"folder", offer.folder}, {"files", to_json(offer.files)}, {"own", to_json(offer.own)}}
      .dump(-1, ' ', false, json::error_handler_t::replace);
}

Offer offer_of(const CheckpointPlace& place, const Locals& locals, const ProcessGroup& group) {
  Offer offer{.folder = group.host_of(group.rank()) + ":" + place.folder, .files = {}, .own = {}};
  for (const auto& [version, local] : locals) {
    auto& files = offer.files[version];
    auto& own = offer.own[version];
    for (const auto& [name, path] : local.files) {
      files.insert(name);
      if (path.starts_with(place.folder + "/")) own.insert(name);
    }
  }
  return offer;
}

std::vector<Offer> exchange(ProcessGroup& group, const Offer& mine) {
  std::vector<Offer> all;
  for (const std::string& text : all_gather_bytes(group, encode(mine))) {
    try {
      const json value = json::parse(text);
      all.push_back({value.at("folder"), files_of(value.at("files")), files_of(value.at("own"))});
    } catch (const json::exception&) {
      throw Error(ErrorKind::mismatch, {.peer = static_cast<int>(all.size())},
                  "a list of checkpoints that is not the JSON that was expected");
    }
  }
  return all;
}

// The version of the highest number within `bounds` all of whose files some rank has, with the
// manifest of one that has it; the same on all ranks.
std::optional<std::pair<Version, std::string>> newest(ProcessGroup& group,
                                                      const std::vector<Offer>& offers,
                                                      const Locals& locals,
                                                      const CheckpointBounds& bounds) {
  std::map<Version, std::set<std::string>> all;
  std::map<Version, int> owner;  // The lowest rank that has the manifest.
  for (std::size_t r = 0; r < offers.size(); ++r) {
    for (const auto& [version, files] : offers[r].files) {
      all[version].insert(files.begin(), files.end());
      owner.try_emplace(version, static_cast<int>(r));
    }
  }
  for (auto it = all.rbegin(); it != all.rend(); ++it) {
    const auto& [version, files] = *it;
    if (version.number >= bounds.below) continue;
    const auto local = locals.find(version);
    const int root = owner.at(version);
    const std::string text =
        broadcast_bytes(group, local == locals.end() ? "" : local->second.text, root);
    const auto manifest = worker_sdk::decode_manifest(text);
    if (!std::holds_alternative<Manifest>(manifest)) continue;
    const auto& wanted = std::get<Manifest>(manifest).files;
    const bool whole = std::all_of(wanted.begin(), wanted.end(), [&](const ManifestFile& file) {
      return files.contains(file.name);
    });
    if (whole) return std::pair(version, text);
  }
  return std::nullopt;
}

std::string read_part(const std::string& path, std::uint64_t at, std::uint64_t bytes) {
  std::string part(bytes, '\0');
  std::ifstream file(path, std::ios::binary);
  file.seekg(static_cast<std::streamoff>(at));
  file.read(part.data(), static_cast<std::streamsize>(bytes));
  return file ? part : std::string();
}

// Brings the files of `version` into the folder of each host. Returns what is wrong on this rank.
class Fetch {
 public:
  Fetch(ProcessGroup& group, const CheckpointPlace& place, const std::vector<Offer>& offers,
        const Locals& locals, const Version& version)
      : group_(group), place_(place), offers_(offers), locals_(locals), version_(version) {}

  // Empty: nothing is.
  std::string run(const std::string& text) {
    const Manifest manifest = std::get<Manifest>(worker_sdk::decode_manifest(text));
    for (const ManifestFile& file : manifest.files) fetch(file);
    if (!is_first_of_folder()) return failure_;
    try {
      if (const int error = make_folders(path()); error != 0) note(error, path());
      worker_sdk::write_manifest(path(), group_.rank(), text);
    } catch (const Error& error) {
      failure_ = error.what();
    }
    return failure_;
  }

  std::string path() const {
    return place_.folder + "/" + worker_sdk::checkpoint_name(version_.number, version_.step);
  }

 private:
  bool lacks(const Offer& offer, const std::string& name) const {
    const auto own = offer.own.find(version_);
    return own == offer.own.end() || !own->second.contains(name);
  }

  // One rank per folder writes.
  bool is_first_of_folder() const {
    const auto mine = static_cast<std::size_t>(group_.rank());
    return std::none_of(offers_.begin(), offers_.begin() + static_cast<std::ptrdiff_t>(mine),
                        [&](const Offer& offer) { return offer.folder == offers_[mine].folder; });
  }

  void fetch(const ManifestFile& file) {
    const bool lacking = std::any_of(offers_.begin(), offers_.end(),
                                     [&](const Offer& offer) { return lacks(offer, file.name); });
    if (!lacking) return;
    const auto has = std::find_if(offers_.begin(), offers_.end(), [&](const Offer& offer) {
      const auto files = offer.files.find(version_);
      return files != offer.files.end() && files->second.contains(file.name);
    });
    const int root = static_cast<int>(has - offers_.begin());
    const auto mine = static_cast<std::size_t>(group_.rank());
    const bool writes = is_first_of_folder() && lacks(offers_[mine], file.name);
    std::ofstream out;
    const std::string hidden = path() + "/." + file.name, whole = path() + "/" + file.name;
    if (writes) {
      if (const int error = make_folders(path()); error != 0) note(error, path());
      out.open(hidden, std::ios::binary | std::ios::trunc);
    }
    for (std::uint64_t at = 0; at < file.bytes; at += kReadBytes) {
      const std::uint64_t bytes = std::min<std::uint64_t>(kReadBytes, file.bytes - at);
      std::string part;
      if (group_.rank() == root) {
        part = read_part(locals_.at(version_).files.at(file.name), at, bytes);
      }
      part = broadcast_bytes(group_, part, root);
      if (part.size() != bytes)
        failure_ = file.name + " cannot be read by rank " + std::to_string(root);
      if (writes) out.write(part.data(), static_cast<std::streamsize>(part.size()));
    }
    if (!writes) return;
    out.close();
    if (!out) return note(errno, hidden);
    if (failure_.empty() && ::rename(hidden.c_str(), whole.c_str()) != 0) note(errno, whole);
  }

  void note(int error, const std::string& path) {
    failure_ = "cannot write " + path + ": " + std::strerror(error);
  }

  ProcessGroup& group_;
  const CheckpointPlace& place_;
  const std::vector<Offer>& offers_;
  const Locals& locals_;
  const Version& version_;
  std::string failure_;
};

// What has been found in a place that is not shared, before it is fetched.
struct Candidate {
  std::vector<Offer> offers{};
  Locals locals{};
  std::pair<Version, std::string> version{};  // With its manifest.
};

std::optional<Candidate> candidate_in(ProcessGroup& group, const CheckpointPlace& place,
                                      const CheckpointBounds& bounds) {
  Candidate one{.locals = look(place)};
  one.offers = exchange(group, offer_of(place, one.locals, group));
  auto version = newest(group, one.offers, one.locals, bounds);
  if (!version || version->first.step <= bounds.above) return std::nullopt;
  one.version = std::move(*version);
  return one;
}

FetchedCheckpoint fetched(ProcessGroup& group, const CheckpointPlace& place,
                          const Candidate& candidate) {
  const auto& [version, manifest] = candidate.version;
  Fetch fetch(group, place, candidate.offers, candidate.locals, version);
  FetchedCheckpoint result{
      .number = version.number, .step = version.step, .path = fetch.path(), .problem = {}};
  const auto failures = all_gather_bytes(group, fetch.run(manifest));
  for (std::size_t r = 0; r < failures.size() && result.problem.empty(); ++r) {
    if (failures[r].empty()) continue;
    result.culprit = static_cast<int>(r);
    result.problem = "rank " + std::to_string(r) + ": " + failures[r];
  }
  return result;
}

}  // namespace

bool has_memory_folder() noexcept {
  const char* folder = std::getenv("DDPRUN_MEMORY");
  return folder && *folder != '\0';
}

CheckpointPlace in_memory(const std::string& name) {
  if (!has_memory_folder()) {
    throw Error(ErrorKind::bad_environment, {.operation = "in_memory"},
                "this run has no memory folder: start it with ddprun --memory-folder SIZE");
  }
  const char* copies = std::getenv("DDPRUN_MEMORY_COPIES");
  return {.folder = std::getenv("DDPRUN_MEMORY") + ("/" + name),
          .shared = false,
          .copies = copies ? copies : "",
          .within = name};
}

std::optional<std::string> latest_checkpoint(ProcessGroup& group,
                                             const std::vector<CheckpointPlace>& places) {
  std::int64_t step = -1;  // Of the newest so far, which is
  std::string path;        // in a place that is shared,
  std::optional<Candidate> candidate;
  const CheckpointPlace* place = nullptr;  // or in this one, which is not.
  for (const CheckpointPlace& here : places) {
    if (here.shared) {
      const auto found = latest_checkpoint(group, here.folder);
      if (!found || worker_sdk::step_of(*found) <= step) continue;
      step = worker_sdk::step_of(*found);
      path = *found;
      candidate.reset();
    } else if (auto found = candidate_in(group, here, {.above = step})) {
      step = found->version.first.step;
      candidate = std::move(found);
      place = &here;
    }
  }
  if (step < 0) return std::nullopt;
  if (!candidate) return path;
  FetchedCheckpoint newest = fetched(group, *place, *candidate);
  if (newest.problem.empty()) return newest.path;
  throw Error(ErrorKind::system, {.operation = "latest_checkpoint", .peer = newest.culprit},
              newest.problem);
}

std::optional<FetchedCheckpoint> worker_sdk::newest_checkpoint(ProcessGroup& group,
                                                               const CheckpointPlace& place,
                                                               const CheckpointBounds& bounds) {
  const auto candidate = candidate_in(group, place, bounds);
  if (!candidate) return std::nullopt;
  return fetched(group, place, *candidate);
}

}  // namespace ddprun
