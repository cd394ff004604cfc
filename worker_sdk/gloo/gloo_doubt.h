#pragma once
// Where a collective takes long: have all ranks called the same? Messages of different calls never
// match, so that all would wait for their deadline. A rank that has waited for a second writes its
// call into the store, and compares it, once a second, with that of the next rank. A rank whose
// next one is in another call by number waits for its deadline, as before. Used by gloo_backend.cc.

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

class GlooDoubt {
 public:
  struct Options {
    std::shared_ptr<const Roster> roster;
    std::string prefix;                                  // Of the group's keys in the store.
    std::function<std::shared_ptr<Store>()> open_store;  // May throw or return null.
    std::function<void()> on_mismatch;                   // Called once at most.
  };
  explicit GlooDoubt(Options options);
  ~GlooDoubt();
  GlooDoubt(const GlooDoubt&) = delete;
  GlooDoubt& operator=(const GlooDoubt&) = delete;

  void quit() noexcept;  // Nothing is looked for any more: the store has ended.

  // While it lives the call is under way. `doubt` may be null.
  class InCall {
   public:
    InCall(GlooDoubt* doubt, const Call& call) : doubt_(doubt) {
      if (doubt_) doubt_->begin(call);
    }
    ~InCall() {
      if (doubt_) doubt_->end();
    }
    InCall(const InCall&) = delete;
    InCall& operator=(const InCall&) = delete;

   private:
    GlooDoubt* const doubt_;
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
