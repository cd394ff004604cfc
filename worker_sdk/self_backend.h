#pragma once
// The backend of a world of one: every collective is its own result.

#include <atomic>

#include "worker_sdk/backend.h"

namespace ddprun::worker_sdk {

class SelfBackend : public Backend {
 public:
  explicit SelfBackend(std::shared_ptr<const Roster> roster) : roster_(std::move(roster)) {}

  const char* name() const noexcept override { return "self"; }
  void all_reduce(const Call& call, Buffer) override { check(call); }
  void broadcast(const Call& call, Buffer) override { check(call); }
  void all_gather(const Call& call, Buffer in, Buffer out) override;
  void send(const Call& call, Buffer) override;
  void recv(const Call& call, Buffer) override;
  void barrier(const Call& call) override { check(call); }
  std::shared_ptr<void> allocate(const Call& call, std::size_t bytes) override;
  void abort() noexcept override { aborted_.store(true); }

 private:
  void check(const Call& call) const;

  std::shared_ptr<const Roster> roster_;
  std::atomic<bool> aborted_{false};
};

}  // namespace ddprun::worker_sdk
