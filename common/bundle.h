#pragma once
// A bundle: a file with the state that an elastic job kept before a step, and what is known of a
// failure in that step, so that `ddprun replay` can compute the step again on any machine.
//
//   "ddprunB1" | bytes of the head, 8 | the head, JSON | the kept items | a checksum of all before
//
// Numbers are little-endian. worker_sdk/job/job_bundle.cc writes it, worker_sdk/job/job_replay.cc
// and launcher/replay read it. Pure.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/error.h"

namespace ddprun {

struct Bundle {
  enum class Cause {
    kFailure,  // The program failed, or found something: the replay is to find the same text.
    kCrash,    // The process ended while it computed the shard: the replay is to end, too.
    kRequest,  // Nothing failed there; of an audit there is the hash that is right.
  };
  // Kept by the job: its bytes are in the file, in this order.
  struct Item {
    std::string name{};
    std::uint64_t bytes = 0;
    bool operator==(const Item&) const = default;
  };

  Cause cause = Cause::kFailure;
  std::string why{};   // "std::runtime_error: bad sample"; of a crash how the process ended.
  std::string who{};   // "rank 2 on node7"
  std::string work{};  // "step 3, shard 7: samples 41, 88"; "step 3" if no shard is to blame.
  std::int64_t step = 0;
  int shard = -1;  // -1: none is to blame, so that all are computed.
  int shards = 0;  // In which the ranks have divided the step; 0: they had not, or not known.
  int world_size = 1;
  std::string hash{};  // Of the shard's gradient, 16 digits; empty: not known.
  std::string skip{};  // Pieces of steps that no rank computes, separated by "; ".
  std::string run_id{};
  std::string release{};  // Of ddprun.
  std::string system{};   // "Linux 6.1.0 x86_64"
  std::vector<std::string> command{};
  std::string folder{};                    // In which the program ran.
  std::vector<std::string> environment{};  // "OMP_NUM_THREADS=4": what results may depend on.
  std::vector<Item> items{};

  std::uint64_t item_bytes() const;
  bool operator==(const Bundle&) const = default;
};

constexpr std::size_t kBundleHeadMax = std::size_t{1} << 20;
constexpr std::size_t kBundleStartBytes = 16;  // Of what is before the head.
// The checksum is that of all before the items, then of each item's pieces of this size.
constexpr std::size_t kBundlePieceBytes = std::size_t{4} << 20;

inline constexpr const char* kBundlesVariable = "DDPRUN_BUNDLES";  // The folder.
inline constexpr const char* kReplayVariable = "DDPRUN_REPLAY";    // The bundle to be replayed,
inline constexpr const char* kReplayShardVariable = "DDPRUN_REPLAY_SHARD";  // and the shard of it.
inline constexpr const char* kBundleEveryVariable = "DDPRUN_BUNDLE_EVERY";  // Steps.
// Instead of one shard the whole step is computed, or all steps until that of another bundle, for
// `ddprun replay --bisect`: the file in which the job writes a Walk, and the other bundle, or
// "end": all steps of that run().
inline constexpr const char* kReplayWalkVariable = "DDPRUN_REPLAY_WALK";
inline constexpr const char* kReplayUntilVariable = "DDPRUN_REPLAY_UNTIL";
inline constexpr const char* kUntilEnd = "end";

// An environment variable that results may depend on. Not which GPUs: another machine has others.
bool is_of_results(std::string_view name);

// All before the items. Drops the environment if it would be too long for a head; fails if it is
// too long nevertheless, or if decode_start() would refuse it.
Result<std::string> encode_start(Bundle bundle);

// `start` has the first bytes of a file of `file_bytes`, those of the head at least.
struct BundleStart {
  Bundle bundle{};
  std::uint64_t items_at = 0;
};
Result<BundleStart> decode_start(std::string_view start, std::uint64_t file_bytes);

std::string hash_text(std::uint64_t hash);  // 16 digits.

// "run7-step-" and "run7-regular-": how the names of a run's bundles begin, of steps that failed,
// and of those each --bundle-every steps, whose names sort by step.
std::string failed_prefix(std::string run_id);
std::string regular_prefix(std::string run_id);
std::string regular_name(const std::string& run_id, std::int64_t step);

// Of the steps of bundles, in order, which one to remove so that those that are left reach from the
// first to the last, and lie the closer together the newer they are. At least three.
std::size_t most_superfluous(const std::vector<std::int64_t>& steps);

// How far a job has come that computes whole steps in replay mode, and what it has found.
struct Walk {
  enum class State {
    kComputes,  // `step`, and `shard` if it is not -1.
    kGood,      // Nothing failed, and the state is that of the bundle at which it has arrived.
    kFailed,    // `found`: in `step`, and `shard` if it is not -1.
    kDiffers,   // `found`: which state differs from that of the bundle before `step`.
  };
  State state = State::kComputes;
  std::int64_t step = 0;
  int shard = -1;
  std::string work{};
  std::string found{};
  std::uint64_t not_finite = 0;  // Elements of kept arrays, at the beginning.
  bool operator==(const Walk&) const = default;
};
constexpr std::size_t kWalkMax = std::size_t{256} << 10;  // Bytes.
std::string encode_walk(Walk walk);
Result<Walk> decode_walk(std::string_view text);

// The paragraph of a replay: what was found, beside what the bundle has. `found`: the text; empty:
// nothing failed. `hash`: of the shard's gradient; empty: the program has passed none.
struct Replayed {
  std::string work{};
  std::string found{};
  std::string hash{};
  bool crashed = false;  // The process has ended.
};
struct ReplayVerdict {
  bool is_same = false;
  std::string text{};
};
ReplayVerdict compare(const Bundle& bundle, const Replayed& replayed);

// By which `ddprun replay` learns whether the program's job has begun the step: the variable names
// an empty file, into which the job writes something then (worker_sdk/job/job_replay.cc).
inline constexpr const char* kReplayProgressVariable = "DDPRUN_REPLAY_PROGRESS";

}  // namespace ddprun
