#pragma once
// Checks whether all ranks have called the same collective if one takes long. Messages of different
// calls never match, so all ranks would wait for their deadline. A rank that has waited for a
// second writes its call into the store and compares it, once a second, with that of the next rank.
// If the next rank is in a call with another number, the rank waits for its deadline. Used by
// gloo_backend.cc.

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "ddprun/store.h"
#include "worker_sdk/base/operation.h"

namespace ddprun::worker_sdk {

class MismatchProbe {
 public:
  struct Options {
    std::shared_ptr<const Roster> roster;
    std::string prefix;                                  // Prefix of the group's keys in the store.
    std::function<std::shared_ptr<Store>()> open_store;  // May throw or return null.
    std::function<void()> on_mismatch;                   // Called at most once.
  };
  explicit MismatchProbe(Options options);
  ~MismatchProbe();
  MismatchProbe(const MismatchProbe&) = delete;
  MismatchProbe& operator=(const MismatchProbe&) = delete;

  void quit() noexcept;  // Stops probing: the store has ended.

  // The call runs as long as this object lives. `probe` may be null.
  class InCall {
   public:
    InCall(MismatchProbe* probe, const Call& call) : probe_(probe) {
      if (probe_) probe_->begin(call);
    }
    ~InCall() {
      if (probe_) probe_->end();
    }
    InCall(const InCall&) = delete;
    InCall& operator=(const InCall&) = delete;

   private:
    MismatchProbe* const probe_;
  };

 private:
  void begin(const Call& call);
  void end();
  void run();
  bool differs(const Call& call);

  const Options options_;
  std::shared_ptr<Store> store_;          // Of the thread alone, as
  std::optional<std::uint64_t> written_;  // the number of the call that is in the store.
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Call> call_;
  std::uint64_t begun_ = 0;  // Calls.
  bool is_idle_ = false;     // The thread waits for a call.
  bool is_stopping_ = false;
  std::thread thread_;  // Last.
};

}  // namespace ddprun::worker_sdk
