#pragma once
// Collectives over TCP between hosts, by libgloo: a full mesh of connections, addresses through the
// store.
//
// Gloo checks neither what its peers call nor who they are, and a message of the wrong size ends
// the process. So every operation gets a tag made of its number and signature: ranks that disagree
// never match, run into the deadline, and the statements they then leave in the store (diagnosis.h)
// say who called what. f16 and bf16 are added in f32 but rounded after each hop, so that half the
// bytes travel; an average of them divides first, lest the sum overflow.

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ddprun/store.h"
#include "worker_sdk/backend.h"
#include "worker_sdk/diagnosis.h"
#include "worker_sdk/gloo_sockets.h"

namespace gloo {
class Context;
}

namespace ddprun::worker_sdk {

struct GlooOptions {
  std::string address;           // Of this host's end of the connections: numeric.
  std::string interface;         // If not empty, used instead.
  Store* store = nullptr;        // Needed while the constructor runs.
  std::string prefix;            // Of this group's keys in it.
  Clock::time_point deadline{};  // Of the constructor.
  // Opens the same store again, for a diagnosis. May throw or return null.
  std::function<std::unique_ptr<Store>()> reopen_store;
};

class GlooBackend : public Backend {
 public:
  GlooBackend(std::shared_ptr<const Roster> roster, const GlooOptions& options);
  ~GlooBackend() override;

  const char* name() const noexcept override { return "gloo"; }
  void all_reduce(const Call& call, Buffer inout) override;
  void broadcast(const Call& call, Buffer inout) override;
  void all_gather(const Call& call, Buffer in, Buffer out) override;
  void send(const Call& call, Buffer in) override;
  void recv(const Call& call, Buffer out) override;
  void barrier(const Call& call) override;
  std::shared_ptr<void> allocate(const Call& call, std::size_t bytes) override;
  void abort() noexcept override;

 private:
  void connect(const GlooOptions& options);
  template <class Operation>
  void guarded(const Call& call, Operation operation);
  [[noreturn]] void fail(const Call& call, const std::string& what_gloo_said);
  Statement statement(const Call& call, const std::string& what_gloo_said) const;
  Verdict ask_the_others(const Statement& mine);

  std::shared_ptr<const Roster> roster_;
  std::function<std::unique_ptr<Store>()> reopen_store_;
  const std::string prefix_;
  std::shared_ptr<gloo::Context> context_;
  std::vector<GlooConnection> connections_;     // By rank.
  std::vector<std::uint32_t> sent_, received_;  // Messages so far, by peer.
  std::atomic<bool> aborted_{false};
};

}  // namespace ddprun::worker_sdk
