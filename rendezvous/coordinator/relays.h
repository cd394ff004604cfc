#pragma once
// The streams that two nodes of a run want through the daemon, until both of their ends are here,
// and how many there are. Pure. Used by the Coordinator.

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/error.h"
#include "common/time.h"
#include "rendezvous/protocol/wire.h"

namespace ddprun::rendezvous {

using LinkId = std::uint64_t;  // One connection. Never used again.

class Relays {
 public:
  // `first`: the number of the first stream. A daemon that follows another one has others, so that
  // an agent's answer to the one before finds no stream.
  explicit Relays(std::uint64_t first = 1) : next_(first) {}

  // Of one run, waiting and joined. 64 nodes on a ring with four connections need as many.
  static constexpr std::size_t kStreamsMax = 256;
  static constexpr Milliseconds kPatience{10'000};  // For the second end.

  struct Waiting {
    LinkId dialer = 0;
    std::string run_id;
    NodeId node;  // Whose agent is to come.
    TimePoint until{};
  };

  // The stream's number, which only its run and node can use.
  Result<std::uint64_t> begin(LinkId dialer, const std::string& run_id, const NodeId& node,
                              TimePoint now);
  // Its second end has come. Nothing: there is no such stream, or no longer.
  std::optional<Waiting> take(std::uint64_t stream, const std::string& run_id, const NodeId& node);
  // Those that have waited too long; they are forgotten.
  std::vector<Waiting> expire(TimePoint now);
  void forget(LinkId dialer);
  bool contains(LinkId dialer) const;
  std::optional<TimePoint> deadline() const;

  // To be held by a joined stream of the run, so that it is counted.
  std::shared_ptr<void> slot_of(const std::string& run_id);
  std::size_t joined(const std::string& run_id) const;
  std::size_t joined() const;  // Of all runs.

  void check_invariants() const;

 private:
  std::size_t waiting(const std::string& run_id) const;

  std::uint64_t next_;
  std::map<std::uint64_t, Waiting> waiting_;           // By stream, so the oldest first.
  std::map<std::string, std::shared_ptr<int>> slots_;  // By run.
};

}  // namespace ddprun::rendezvous
