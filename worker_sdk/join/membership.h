#pragma once
// What the ranks send each other before they connect, and what rank 0 decides from it. Computes
// only; join.cc carries it through the store.

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/error.h"
#include "ddprun/error.h"
#include "worker_sdk/base/operation.h"
#include "worker_sdk/join/environment.h"
#include "worker_sdk/shm/shm_segment.h"

namespace ddprun::worker_sdk {

// How many groups of this process have ended, by store and rank: the next group must not find the
// keys of those before it. Each rank counts for itself. All counts are equal, as all ranks of a
// group join it, and end it before they join the next.
int ended_lives(const Plan& plan);

// The prefix of the keys of the plan's group, after the part that all groups have. Empty for the
// first group, and in a store that rank 0 hosts, which is new for each group.
std::string life_prefix(const Plan& plan);

// Held by the group; the group's end is counted when the last reference goes.
std::shared_ptr<void> begin_life(const Plan& plan);

// One rank's introduction.
struct Introduction {
  std::string host;     // Name.
  std::string domain;   // memory_domain().
  std::string network;  // network_domain().
  std::int32_t pid = 0;
  std::string address;  // Address from which this rank reaches the store; numeric, may be empty.
  std::string backend;  // The requested backend: "auto", "shm", "gloo", "cpu".
};

// The introductions of all ranks, with rank 0's decision.
struct Table {
  std::vector<Introduction> hellos;  // By rank.
  std::string backend;               // "shm", "gloo" or "cpu"; empty if `error` is set.
  int culprit = -1;                  // The rank that `error` is about.
  std::string error;
};

// Whether a rank could share memory with the others of its host.
struct Attachment {
  std::string problem;  // Empty: it does.
  int ended = -1;       // The rank of the ended process, if that is the problem.
};

std::string encode(const Introduction& hello);
std::string encode(const Table& table);
std::string encode(const SegmentName& segment);
std::string encode(const Attachment& attachment);
// A failure names the field that is not what encode() makes.
Result<Introduction> decode_introduction(std::string_view text);
Result<Table> decode_table(std::string_view text);
Result<SegmentName> decode_segment(std::string_view text);
Result<Attachment> decode_attachment(std::string_view text);

// A request for "auto" or "cpu" becomes "shm" if all ranks can share memory, "cpu" if some can,
// else "gloo".
Table decide(std::vector<Introduction> hellos);
// decide() of encoded introductions.
Table decide(const std::vector<std::string>& statements);

// The result of all ranks' encoded attachments. A rank that has ended since it answered is a lost
// peer. If memory cannot be shared, "auto" works without, and other requests (`backend`) fail.
struct Sharing {
  bool shares = false;
  ErrorKind kind = ErrorKind::system;  // The kind of `error`.
  int culprit = -1;
  std::string error;  // Empty: there is none.
};
Sharing decide_sharing(const std::vector<std::string>& statements, std::string_view backend);

// The ranks by host, that is by memory domain, in the order of their first ranks.
std::vector<std::vector<int>> hosts_of(const std::vector<Introduction>& hellos);

// The rank's position among the ranks of its host, and their number.
struct LocalPlace {
  int rank = 0;
  int size = 1;
};
LocalPlace local_place(const std::vector<Introduction>& hellos, int rank);

}  // namespace ddprun::worker_sdk
