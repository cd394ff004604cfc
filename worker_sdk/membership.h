#pragma once
// What the ranks tell each other before they connect, and what rank 0 makes of it. Pure; join.cc
// carries it through the store.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "worker_sdk/operation.h"
#include "worker_sdk/shm_segment.h"

namespace ddprun::worker_sdk {

// One rank's introduction.
struct Hello {
  std::string host;    // Name.
  std::string domain;  // memory_domain().
  std::int32_t pid = 0;
  std::string address;  // From which this rank reaches the store; numeric, may be empty.
  std::string backend;  // Its wish: "auto", "shm", "gloo".
};

// Everybody's, with rank 0's decision.
struct Table {
  std::vector<Hello> hellos;  // By rank.
  std::string backend;        // "shm" or "gloo"; empty if `error` says why there is none.
  SegmentName control;        // For "shm".
  int culprit = -1;           // The rank that `error` is about.
  std::string error;
};

std::string encode(const Hello& hello);
std::string encode(const Table& table);
// Nothing if the text is not what encode() makes.
std::optional<Hello> decode_hello(std::string_view text);
std::optional<Table> decode_table(std::string_view text);

// Fills in all but `control`. A wish of "auto" becomes "shm" if all ranks can share memory.
Table decide(std::vector<Hello> hellos);

// The rank's position among the ranks of its host, and their number.
struct LocalPlace {
  int rank = 0;
  int size = 1;
};
LocalPlace local_place(const std::vector<Hello>& hellos, int rank);

}  // namespace ddprun::worker_sdk
