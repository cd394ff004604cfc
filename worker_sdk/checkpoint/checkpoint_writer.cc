// Writes checkpoints: copies and agrees with the other ranks in the caller's thread, writes in
// another one.

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "common/checksum.h"
#include "common/system/folder.h"
#include "ddprun/atomic_file.h"
#include "ddprun/checkpoint.h"
#include "ddprun/objects.h"
#include "worker_sdk/base/system_limits.h"
#include "worker_sdk/checkpoint/checkpoint_folder.h"
#include "worker_sdk/group/group_inside.h"

namespace ddprun {
namespace {

using worker_sdk::Contribution;
using worker_sdk::Manifest;

// Why `piece` cannot be saved, as far as this rank can see.
std::string complaint_about(const CheckpointPiece& piece) {
  if (!worker_sdk::is_utf8(piece.name)) return "the name of an array is not UTF-8";
  const std::size_t total = piece.total == 0 ? piece.part.count : piece.total;
  if (size_of(piece.part.type) == 0 || (!piece.part.data && piece.part.count > 0)) {
    return "array '" + piece.name + "' is null or of an unknown type";
  }
  if (piece.offset <= total && piece.part.count <= total - piece.offset) return {};
  return "the part of array '" + piece.name + "' ends beyond its " + std::to_string(total) +
         " elements";
}

// Appends the part to `bytes` and returns its place.
worker_sdk::ManifestArray copy(const CheckpointPiece& piece, std::string& bytes) {
  worker_sdk::ManifestArray array{.name = piece.name, .type = piece.part.type, .pieces = {}};
  array.count = piece.total == 0 ? piece.part.count : piece.total;
  const std::size_t at = bytes.size();
  bytes.append(static_cast<const char*>(piece.part.data), piece.part.bytes());
  array.pieces.push_back({.offset = piece.offset,
                          .count = piece.part.count,
                          .at = at,
                          .checksum = checksum(bytes.data() + at, piece.part.bytes())});
  return array;
}

using worker_sdk::Clock;
using worker_sdk::GroupInside;

// While it lives, training stands still for a checkpoint.
class Standstill {
 public:
  explicit Standstill(const ProcessGroup& group) : progress_(GroupInside::progress(group)) {}
  ~Standstill() { progress_->stood_still(Clock::now() - began_); }
  Standstill(const Standstill&) = delete;

 private:
  const std::shared_ptr<worker_sdk::Progress> progress_;
  const Clock::time_point began_ = Clock::now();
};

// Of the rank among those that write a checkpoint together.
int index_of(const ProcessGroup& group, const std::vector<int>& ranks, bool is_shared) {
  if (ranks.empty()) return group.rank();
  const auto found = std::find(ranks.begin(), ranks.end(), group.rank());
  const bool exist = std::all_of(ranks.begin(), ranks.end(),
                                 [&](int rank) { return rank >= 0 && rank < group.world_size(); });
  if (found != ranks.end() && exist && !is_shared) return static_cast<int>(found - ranks.begin());
  throw Error(ErrorKind::bad_argument, {.rank = group.rank(), .operation = "CheckpointWriter"},
              "CheckpointOptions::ranks needs a place that hosts do not share, ranks of the group, "
              "and this rank among them");
}

// A checkpoint of which this rank has written its part. No path: none.
struct Written {
  std::string path{};
  Manifest manifest{};  // Without its arrays.
};

}  // namespace

struct CheckpointWriter::Impl {
  ProcessGroup group;
  const CheckpointPlace place;
  const CheckpointOptions options;
  const int index;           // Of this rank among those that write one checkpoint together.
  std::uint64_t number = 0;  // Of the last checkpoint.
  std::uint64_t begun = 0;   // The last one that all ranks have begun to write; 0: none, or torn.
  std::uint64_t whole = options.whole;  // The last one of which all ranks have every part.
  std::thread writer;
  std::string failure;  // The writer's; to be looked at after join() only.
  Written written{};    // On rank 0: the last one, until it has been checked.

  std::string finish() {
    if (writer.joinable()) writer.join();
    return std::exchange(failure, {});
  }

  [[noreturn]] void fail(ErrorKind kind, int peer, const std::string& text) const {
    throw Error(kind,
                {.rank = group.rank(),
                 .host = group.host_of(group.rank()),
                 .operation = "checkpoint",
                 .peer = peer},
                peer < 0
                    ? text
                    : "rank " + std::to_string(peer) + " on " + group.host_of(peer) + ": " + text);
  }

  Contribution contribute(std::int64_t step, std::span<const CheckpointPiece> pieces,
                          std::string& bytes);
  Manifest agree(const Contribution& mine);
  std::string check(const Written& complete) const;
  std::string conclude(const Written& complete) const;
  void write(const std::string& path, const std::string& bytes, const Manifest& manifest,
             std::uint64_t known_whole) const;
  // Of a place that is not shared, beside the one that is written.
  std::uint64_t kept_in_memory() const {
    return options.keep > 0 ? static_cast<std::uint64_t>(options.keep) : 2;
  }
};

Contribution CheckpointWriter::Impl::contribute(std::int64_t step,
                                                std::span<const CheckpointPiece> pieces,
                                                std::string& bytes) {
  Contribution mine{.failure = finish(), .refusal = {}, .step = step, .arrays = {}};
  std::size_t total = 0;
  for (const CheckpointPiece& piece : pieces) {
    if (mine.refusal.empty()) mine.refusal = complaint_about(piece);
    total += piece.part.bytes();
  }
  if (!mine.failure.empty() || !mine.refusal.empty()) return mine;
  try {
    bytes.reserve(total);
  } catch (const std::exception&) {
    mine.failure = "no memory for the copy of " + std::to_string(total) + " bytes";
    return mine;
  }
  for (const CheckpointPiece& piece : pieces) mine.arrays.push_back(copy(piece, bytes));
  mine.bytes = bytes.size();
  mine.number = number;
  if (group.rank() != 0 && place.shared) return mine;
  try {
    const auto known = worker_sdk::checkpoints_in(place.folder);
    if (!known.empty()) mine.number = std::max(number, known.front().number);
  } catch (const Error& error) {
    mine.failure = error.what();
  }
  return mine;
}

// Returns the same manifest, or throws the same error, on all ranks.
Manifest CheckpointWriter::Impl::agree(const Contribution& mine) {
  std::vector<Contribution> all;
  for (const std::string& text : all_gather_bytes(group, encode(mine))) {
    auto decoded = worker_sdk::decode_contribution(text);
    if (const auto* reason = std::get_if<std::string>(&decoded)) {
      fail(ErrorKind::mismatch, static_cast<int>(all.size()), *reason);
    }
    all.push_back(std::get<Contribution>(std::move(decoded)));
  }
  for (const Contribution& one : all) number = std::max(number, one.number);
  ++number;
  for (std::size_t r = 0; r < all.size(); ++r) {
    if (all[r].failure.empty()) continue;
    written = {};
    begun = 0;
    fail(ErrorKind::system, static_cast<int>(r), all[r].failure);
  }
  for (std::size_t r = 0; r < all.size(); ++r) {
    if (!all[r].refusal.empty()) fail(ErrorKind::bad_argument, static_cast<int>(r), all[r].refusal);
  }
  std::vector<Contribution> together;
  for (const int rank : options.ranks) {
    together.push_back(std::move(all.at(static_cast<std::size_t>(rank))));
  }
  auto manifest = worker_sdk::combine(std::move(options.ranks.empty() ? all : together));
  if (const auto* reason = std::get_if<std::string>(&manifest)) {
    fail(ErrorKind::bad_argument, -1, *reason);
  }
  return std::get<Manifest>(std::move(manifest));
}

// Called when all ranks have written: a text that names the ranks with files that rank 0 does not
// find; empty if all are there. Each host may have a folder of that name on a disk of its own.
std::string CheckpointWriter::Impl::check(const Written& complete) const {
  const std::string& path = complete.path;
  if (path.empty() || !place.shared) return {};
  constexpr std::size_t kNamed = 8;
  const std::vector<int> ranks = worker_sdk::ranks_not_found(path, complete.manifest);
  if (ranks.empty()) return {};
  std::string names;
  for (std::size_t i = 0; i < std::min(ranks.size(), kNamed); ++i) {
    names += (i == 0 ? "rank " : ", rank ") + std::to_string(ranks[i]) + " on " +
             group.host_of(ranks[i]);
  }
  if (ranks.size() > kNamed) names += " and " + std::to_string(ranks.size() - kNamed) + " more";
  return path + ": what " + names +
         " wrote there is not here: the folder must be shared by all hosts";
}

// Called when no rank writes any more: why `complete` is not a checkpoint. Also removes the older
// ones that had to stay while it was written.
std::string CheckpointWriter::Impl::conclude(const Written& complete) const {
  std::string unseen = check(complete);
  if (complete.path.empty() || !unseen.empty() || options.keep <= 0) return unseen;
  if (!place.shared) return unseen;
  try {
    worker_sdk::remove_old_checkpoints(place.folder, options.keep, complete.path);
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

// The manifest may be there before the files of other ranks; it counts with these only.
void CheckpointWriter::Impl::write(const std::string& path, const std::string& bytes,
                                   const Manifest& manifest, std::uint64_t known_whole) const {
  if (const int error = make_folders(path); error != 0) {
    throw Error(ErrorKind::system, {}, "cannot create " + path + ": " + std::strerror(error));
  }
  if (!bytes.empty()) replace_file(path + "/" + worker_sdk::file_of_rank(index), bytes);
  if (!place.shared) {
    worker_sdk::write_manifest(path, index, encode(manifest));
    // Until one is known to be whole, the newest may all be torn, so one more stays.
    const std::uint64_t spared = kept_in_memory();
    if (known_whole == 0) {
      worker_sdk::remove_between(place.folder, 0, number - std::min(number, spared + 1));
    } else {
      worker_sdk::remove_between(place.folder, 0, known_whole - std::min(known_whole, spared - 1));
      worker_sdk::remove_between(place.folder, known_whole + 1, number);  // Torn.
    }
    return;
  }
  if (index != 0) return;
  replace_file(path + "/manifest.json", encode(manifest));
  sync_folder(place.folder);
  if (options.keep > 0) worker_sdk::remove_old_checkpoints(place.folder, options.keep, path);
}

CheckpointWriter::CheckpointWriter(ProcessGroup& group, std::string folder,
                                   const CheckpointOptions& options)
    : CheckpointWriter(group, CheckpointPlace{.folder = std::move(folder)}, options) {}

CheckpointWriter::CheckpointWriter(ProcessGroup& group, CheckpointPlace place,
                                   const CheckpointOptions& options)
    : impl_(new Impl{.group = group.share(),
                     .place = place,
                     .options = options,
                     .index = index_of(group, options.ranks, place.shared),
                     .writer = {},
                     .failure = {}}) {}

CheckpointWriter::~CheckpointWriter() { (void)impl_->finish(); }

void CheckpointWriter::save_async(std::int64_t step, std::span<const CheckpointPiece> pieces) {
  const Standstill here(impl_->group);
  std::string bytes;
  const Contribution mine = impl_->contribute(step, pieces, bytes);
  Manifest manifest = impl_->agree(mine);
  if (impl_->begun > 0) impl_->whole = impl_->begun;
  impl_->begun = impl_->number;
  const std::string path =
      impl_->place.folder + "/" + worker_sdk::checkpoint_name(impl_->number, step);
  // All ranks have written the one before, which was not checked unless wait() was called.
  Written before = std::exchange(impl_->written, {});
  if (impl_->group.rank() == 0) {
    impl_->written.path = path;
    impl_->written.manifest.world_size = manifest.world_size;
    impl_->written.manifest.files = manifest.files;
  }
  auto run = [impl = impl_.get(), path, known_whole = impl_->whole, bytes = std::move(bytes),
              manifest = std::move(manifest), before = std::move(before),
              progress = GroupInside::progress(impl_->group), copied = Clock::now()] {
    try {
      impl->write(path, bytes, manifest, known_whole);
      impl->failure = impl->check(before);
      if (impl->failure.empty()) progress->saved(copied);
    } catch (const std::exception& e) {
      impl->failure = path + ": " + e.what();
    }
  };
  // Without a thread this rank's part is not written; all ranks learn that in the next call.
  try {
    impl_->writer = worker_sdk::start_thread("ddprun-save", {}, std::move(run));
  } catch (const Error& error) {
    impl_->failure = path + ": " + error.text();
  }
}

void CheckpointWriter::wait() {
  const Standstill here(impl_->group);
  const auto failures = all_gather_bytes(impl_->group, impl_->finish());
  const Written complete = std::exchange(impl_->written, {});
  for (std::size_t r = 0; r < failures.size(); ++r) {
    if (failures[r].empty()) continue;
    impl_->begun = 0;
    impl_->fail(ErrorKind::system, static_cast<int>(r), failures[r]);
  }
  const std::string unseen = broadcast_bytes(impl_->group, impl_->conclude(complete));
  if (!unseen.empty()) impl_->fail(ErrorKind::system, 0, unseen);
}

void CheckpointWriter::save(std::int64_t step, std::span<const CheckpointPiece> pieces) {
  save_async(step, pieces);
  wait();
  GroupInside::progress(impl_->group)->saved(Clock::now());
}

CheckpointPiece even_piece(const ProcessGroup& group, std::string name, Buffer whole) {
  return even_piece({.index = group.rank(), .count = group.world_size()}, std::move(name), whole);
}

CheckpointPiece even_piece(const EvenShare& share, std::string name, Buffer whole) {
  const auto n = static_cast<std::size_t>(share.count);
  const auto r = static_cast<std::size_t>(share.index);
  const std::size_t begin = whole.count * r / n, end = whole.count * (r + 1) / n;
  auto* data = static_cast<std::byte*>(whole.data) + begin * size_of(whole.type);
  return {std::move(name), {data, end - begin, whole.type}, begin, whole.count};
}

}  // namespace ddprun
