#pragma once
// Sends a snapshot's files over a link to a sink. Used by the MemoryServer, on its loop's thread.

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "agent/memory/memory_files.h"
#include "agent/memory/memory_wire.h"
#include "common/time.h"
#include "rendezvous/net/link.h"

namespace ddprun::agent::memory {

class Source {
 public:
  using OnDone = std::function<void(Result<Committed>)>;

  // `rate`: bytes a second, at most; 0: as fast as the link takes them.
  Source(boost::asio::io_context& loop, std::shared_ptr<rendezvous::Link> link, std::uint64_t rate);

  // Sends what is in `folder`, a snapshot that stays as it is until `done` is called, from the
  // loop. One at a time.
  void offer(std::string folder, Snapshot snapshot, OnDone done);
  // From the sink. A failure: the link is of no further use, and `done` is not called.
  Result<void> take(const Message& message);
  bool is_offering() const { return done_ != nullptr; }

 private:
  void pump();
  bool send_next();
  void skip();
  void finish(Result<Committed> result);

  std::shared_ptr<rendezvous::Link> link_;
  const std::uint64_t rate_;
  boost::asio::steady_timer pause_;
  std::string folder_;
  Snapshot snapshot_;
  OnDone done_;
  std::vector<Want> wants_;
  bool needs_known_ = false;
  std::size_t next_ = 0;  // Of wants_.
  UniqueFd file_;
  std::uint64_t at_ = 0;  // Of file_.
  int in_flight_ = 0;     // Pieces without an Ack.
  bool pausing_ = false;
  TimePoint next_send_{};
};

}  // namespace ddprun::agent::memory
