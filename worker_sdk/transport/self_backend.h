#pragma once
// The backend of a world of one: every collective is its own result.

#include <atomic>

#include "worker_sdk/transport/backend.h"

namespace ddprun::worker_sdk {

class SelfBackend : public Backend {
 public:
  explicit SelfBackend(std::shared_ptr<const Roster> roster) : roster_(std::move(roster)) {}

  const char* name() const noexcept override { return "self"; }
  void all_reduce(const Call& call, Buffer) override { check(call); }
  void broadcast(const Call& call, Buffer) override { check(call); }
  void reduce_scatter(const Call& call, Buffer in, Buffer out) override { copy(call, in, out); }
  void all_gather(const Call& call, Buffer in, Buffer out) override { copy(call, in, out); }
  void all_to_all(const Call& call, Buffer in, Buffer out) override { copy(call, in, out); }
  void gather(const Call& call, Buffer in, Buffer out) override { copy(call, in, out); }
  void scatter(const Call& call, Buffer in, Buffer out) override { copy(call, in, out); }
  void send(const Call& call, Buffer) override;
  void recv(const Call& call, Buffer) override;
  void barrier(const Call& call) override { check(call); }
  std::shared_ptr<void> allocate(const Call& call, std::size_t bytes) override;
  void abort() noexcept override { aborted_.store(true); }

 private:
  void check(const Call& call) const;
  void copy(const Call& call, Buffer in, Buffer out) const;

  std::shared_ptr<const Roster> roster_;
  std::atomic<bool> aborted_{false};
};

}  // namespace ddprun::worker_sdk
