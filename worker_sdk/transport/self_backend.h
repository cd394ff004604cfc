#pragma once
// The backend of a world of one: every collective is its own result.

#include <atomic>

#include "worker_sdk/transport/backend.h"

namespace ddprun::worker_sdk {

class SelfBackend : public HostBackend {
 public:
  explicit SelfBackend(std::shared_ptr<const Roster> roster) : roster_(std::move(roster)) {}

  const char* name() const noexcept override { return "self"; }
  void carry_out(const Call& call, const Arrays& arrays) override;
  std::shared_ptr<void> allocate(const Call& call, std::size_t bytes) override;
  void abort() noexcept override { aborted_.store(true); }

 private:
  void refuse_if_aborted(const Call& call) const;

  std::shared_ptr<const Roster> roster_;
  std::atomic<bool> aborted_{false};
};

}  // namespace ddprun::worker_sdk
