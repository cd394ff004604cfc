#include "worker_sdk/gloo/mismatch_probe.h"

#include <pthread.h>

#include <utility>

#include "ddprun/error.h"
#include "worker_sdk/base/system_limits.h"
#include "worker_sdk/gloo/gloo_transfers.h"
#include "worker_sdk/transport/diagnosis.h"

namespace ddprun::worker_sdk {
namespace {

constexpr std::chrono::seconds kPatience{1};
constexpr std::chrono::milliseconds kStorePatience{500};  // To read an existing key.

std::string waits_key(int rank) { return "waits/" + std::to_string(rank); }

}  // namespace

MismatchProbe::MismatchProbe(Options options) : options_(std::move(options)) {
  thread_ = start_thread("ddprun-doubt", {}, [this] { run(); });
}

void MismatchProbe::begin(const Call& call) {
  const std::lock_guard lock(mutex_);
  call_ = call;
  ++begun_;
  if (is_idle_) changed_.notify_all();
}

void MismatchProbe::end() {
  const std::lock_guard lock(mutex_);
  call_.reset();
}

void MismatchProbe::quit() noexcept {
  const std::lock_guard lock(mutex_);
  is_stopping_ = true;
  changed_.notify_all();
}

MismatchProbe::~MismatchProbe() {
  quit();
  thread_.join();
}

void MismatchProbe::run() {
  const SigpipeGuard guard;
  std::unique_lock lock(mutex_);
  while (!is_stopping_) {
    is_idle_ = true;
    changed_.wait(lock, [&] { return is_stopping_ || call_; });
    is_idle_ = false;
    const std::uint64_t before = begun_;
    changed_.wait_for(lock, kPatience, [&] { return is_stopping_; });
    if (is_stopping_ || !call_ || begun_ != before) continue;
    const Call call = *call_;
    lock.unlock();
    const bool is_mismatch = differs(call);
    lock.lock();
    if (!is_mismatch || !call_ || begun_ != before) continue;
    lock.unlock();
    return options_.on_mismatch();
  }
}

bool MismatchProbe::differs(const Call& call) {
  const int next = (options_.roster->rank + 1) % options_.roster->size();
  const Statement mine{.what = call.what, .number = call.number};
  try {
    if (!store_) store_ = options_.open_store();
    if (!store_) return false;
    const auto keys = with_prefix(*store_, options_.prefix);
    if (written_ != call.number) keys->set(waits_key(options_.roster->rank), encode(mine));
    written_ = call.number;
    if (!keys->check({waits_key(next)})) return false;
    const auto theirs = decode_statement(keys->get(waits_key(next), kStorePatience));
    return theirs && !is_message(theirs->what.kind) &&
           diagnose(*options_.roster, mine, {{next, *theirs}}).kind == ErrorKind::mismatch;
  } catch (const Error&) {  // The store is gone: the call ends by its deadline.
    store_.reset();
    return false;
  }
}

}  // namespace ddprun::worker_sdk
