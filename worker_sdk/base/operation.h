#pragma once
// One call of a collective: what it is, its number, its deadline, and the text of its failure. Used
// by ProcessGroup, which numbers the calls, and by every backend.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "ddprun/error.h"
#include "ddprun/types.h"

namespace ddprun::worker_sdk {

using Clock = std::chrono::steady_clock;

// No wait lasts longer: serves as "for ever", and leaves room for sums with it.
constexpr std::chrono::hours kForever{24 * 365 * 100};

// `timeout` may be as long as its type allows, or negative: then the deadline has passed.
inline Clock::time_point deadline_after(Clock::time_point start,
                                        std::chrono::milliseconds timeout) {
  return start +
         std::clamp<std::chrono::milliseconds>(timeout, std::chrono::milliseconds(0), kForever);
}
inline Clock::time_point deadline_after(std::chrono::milliseconds timeout) {
  return deadline_after(Clock::now(), timeout);
}

// For waits that want a duration: never less than a millisecond.
inline std::chrono::milliseconds left_until(Clock::time_point deadline) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
  return std::max(left, std::chrono::milliseconds(1));
}

constexpr ReduceOp kLastReduceOp = ReduceOp::premul_sum;

enum class OpKind : std::uint8_t {
  kAllReduce = 1,
  kBroadcast,
  kAllGather,
  kSend,
  kRecv,
  kBarrier,
  kAllocate,  // Collective too: every rank contributes its part of one shared mapping.
  kReduceScatter,
  kAllToAll,
  kGather,
  kScatter,
  kReduce,
};
constexpr OpKind kLastOpKind = OpKind::kReduce;

const char* name_of(OpKind kind) noexcept;

// Between two ranks; all others are called by every rank.
constexpr bool is_message(OpKind kind) { return kind == OpKind::kSend || kind == OpKind::kRecv; }

constexpr bool is_reduction(OpKind kind) {
  return kind == OpKind::kAllReduce || kind == OpKind::kReduceScatter || kind == OpKind::kReduce;
}

// What all ranks must agree on, except for send and recv. Travels between ranks of one build: plain
// memory.
struct Signature {
  OpKind kind = OpKind::kBarrier;
  DataType type = DataType::u8;
  ReduceOp op = ReduceOp::sum;
  std::int32_t rank =
      -1;  // The root of a broadcast, reduce, gather or scatter, the peer of a send or recv.
  std::uint64_t count = 0;  // Elements, of one rank's part if arrays have parts; bytes for
                            // kAllocate. The sum of unequal parts.
  std::uint64_t parts = 0;  // 0: equal ones. Otherwise a hash of the counts; kOwnParts for an
                            // all_to_all, as its ranks have different ones.

  bool operator==(const Signature&) const = default;
};

constexpr std::uint64_t kOwnParts = 1;

// A rank's arrays of one operation; transport/backend.h describes their use. If there is a part per
// rank, the parts may lie apart: then `ins` or `outs` has them by rank, and `in` or `out` is empty
// but for its type.
struct Arrays {
  Buffer in = {};
  Buffer out = {};
  std::vector<Buffer> ins = {};
  std::vector<Buffer> outs = {};
  const class Combine* combine = nullptr;  // Used by an all_reduce instead of call.what.op.

  // Part r, of `count` elements if parts are equal.
  Buffer in_part(int r, std::size_t count) const { return part_of(in, ins, r, count); }
  Buffer out_part(int r, std::size_t count) const { return part_of(out, outs, r, count); }

 private:
  static Buffer part_of(const Buffer& whole, const std::vector<Buffer>& parts, int r,
                        std::size_t count) {
    const auto at = static_cast<std::size_t>(r);
    if (!parts.empty()) return parts[at];
    return {static_cast<std::byte*>(whole.data) + at * count * size_of(whole.type), count,
            whole.type};
  }
};

// An operation that a rank requests, its arguments checked.
struct Operation {
  Signature what;
  Arrays arrays;
};

// "all_reduce (f32 x 1000, sum)"
std::string to_string(const Signature& what);

// The place of this rank among its peers.
struct Roster {
  int rank = 0;
  std::vector<std::string> hosts;   // By rank.
  std::vector<int> job_ranks = {};  // By rank: the rank in the job. Empty: the same.

  // By rank: the rank in the group for which this one acts, as errors name it. Empty: the same.
  std::vector<int> shown_ranks = {};

  int shown(int r) const {  // -1 stays -1, as below.
    return r < 0 || shown_ranks.empty() ? r : shown_ranks.at(static_cast<std::size_t>(r));
  }
  int from_shown(int r) const;  // -1: that rank is not of this group.
  int of_job(int r) const {     // -1 stays -1, as below.
    return r < 0 || job_ranks.empty() ? r : job_ranks.at(static_cast<std::size_t>(r));
  }
  int from_job(int job_rank) const;  // -1: that rank is not of this group.
  int other_name(int r) const;       // The rank in the job; -1: this is the whole job, or shown(r).
  Error::Where here(std::string operation) const;
  int size() const { return static_cast<int>(hosts.size()); }
  std::string number(int peer) const;  // "2", "0 (2 of the job)"
  // "rank 2 on node-b", "ranks 2 (node-b), 3 (node-c)"; of a group of some ranks "rank 0 (2 of the
  // job) on node-b", "ranks 0 (2 of the job; node-b), 1 (3 of the job; node-c)".
  std::string name(int peer) const;
  std::string names(const std::vector<int>& peers) const;
};

struct Call {
  Signature what;
  std::uint64_t number = 0;  // Counts this rank's operations from 1.
  Clock::time_point start{};
  Clock::time_point deadline{};
  int tag = -1;  // For a message; -1: none.
};

// "all_reduce #17 (f32 x 1000, sum)", "recv #1 (f32 x 4, from 0, tag 7)"
std::string to_string(const Call& call);

// The Error that `roster.rank` has to throw out of `call`.
Error failure(const Roster& roster, const Call& call, ErrorKind kind, int peer,
              const std::string& text, std::vector<int> missing = {});

}  // namespace ddprun::worker_sdk
