#include "worker_sdk/gloo/gloo_backend.h"

#include <dlfcn.h>
#include <gloo/transport/tcp/device.h>
#include <pthread.h>
#include <unistd.h>

#include <cstdlib>
#include <ctime>
#include <fstream>
#include <future>
#include <numeric>
#include <string_view>

#include "common/system/signals.h"
#include "worker_sdk/base/folder.h"
#include "worker_sdk/base/retry.h"
#include "worker_sdk/base/system_limits.h"
#include "worker_sdk/gloo/gloo_mesh.h"
#include "worker_sdk/gloo/gloo_store.h"
#include "worker_sdk/gloo/sigpipe_guard.h"

namespace ddprun::worker_sdk {
namespace {

using std::chrono::milliseconds;

// How long the survivors of a failure wait for each other's statements, and how long for that of a
// rank whose connection broke: who fails and lives leaves one before it hangs up, unless it aborts.
// The first is spent on ranks that are stopped, and on those whose deadline comes later than ours.
constexpr milliseconds kDiagnosisPatience{3000};
constexpr milliseconds kLastWordsPatience{50};
constexpr milliseconds kAskAgain{5};  // Little beside that patience.

// pip's libtorch has a Gloo of its own, of another version. Where the program names it to the
// linker before libgloo, both would be called in turns.
void refuse_foreign_gloo(const Error::Where& where) {
  Dl_info found{};
  if (::dladdr(reinterpret_cast<void*>(&gloo::transport::tcp::CreateDevice), &found) == 0) return;
  const std::string_view library = found.dli_fname ? found.dli_fname : "";
  if (library.find("libtorch") == std::string_view::npos) return;
  throw Error(ErrorKind::unsupported, where,
              "Gloo's functions are those of " + std::string(library) +
                  ", not of libgloo: let the program be linked with ddprun before libtorch");
}

using Device = std::shared_ptr<gloo::transport::Device>;

// Of this process; 0: there is none but the caller.
int thread_named(const std::string& name) {
  const std::string tasks = "/proc/self/task/";
  for (const std::string& number : names_in(tasks).names) {
    std::ifstream file(tasks + number + "/comm");
    std::string text;
    std::getline(file, text);
    const int thread = std::atoi(number.c_str());
    if (text == name && thread != ::gettid()) return thread;
  }
  return 0;
}

// With the number of its thread, which Gloo does not give away. A thread inherits the name of the
// one that makes it, so Gloo's can be found.
std::pair<Device, int> make_device(const gloo::transport::tcp::attr& attributes) {
  static std::atomic<unsigned> made{0};
  const std::string name = "ddprun-gloo-" + std::to_string(made++ % 1000);
  const auto make = [&]() -> std::pair<Device, int> {
    const SignalsHeld held;  // Gloo's thread inherits this, too.
    ::pthread_setname_np(::pthread_self(), name.c_str());
    auto device = gloo::transport::tcp::CreateDevice(attributes);
    return {std::move(device), thread_named(name)};
  };
  return std::async(std::launch::async, make).get();
}

std::string key_of(int rank) { return "failed/" + std::to_string(rank); }

}  // namespace

GlooBackend::GlooBackend(std::shared_ptr<const Roster> roster, const GlooOptions& options)
    : roster_(std::move(roster)),
      reopen_store_(options.reopen_store),
      prefix_(options.prefix),
      everybody_(roster_->hosts.size()),
      sent_(roster_->hosts.size()),
      received_(roster_->hosts.size()) {
  std::iota(everybody_.begin(), everybody_.end(), 0);
  const Error::Where where{.rank = roster_->rank,
                           .host = roster_->hosts[static_cast<std::size_t>(roster_->rank)],
                           .operation = "connecting to the peers"};
  refuse_foreign_gloo(where);
  const SigpipeGuard guard;  // For Gloo's thread, too.
  try {
    try {
      connect(options);
    } catch (...) {
      refuse_peers(options);
      throw;
    }
  } catch (const gloo::Exception& error) {
    throw Error(ErrorKind::unreachable, where, error.what());
  } catch (const Error& error) {
    if (error.where().rank >= 0) throw;
    throw Error(error.kind(), where, error.text());
  } catch (const std::system_error& error) {  // This process is at its limits.
    throw as_error(error, where);
  } catch (const std::bad_alloc& error) {
    throw as_error(error, where);
  } catch (const std::exception& error) {  // Gloo reports bad addresses by its assertions.
    throw Error(ErrorKind::unreachable, where, error.what());
  }
}

GlooBackend::~GlooBackend() {
  const SigpipeGuard guard;
  doubt_.reset();
  watch_.reset();
  context_.reset();
  close_gently(connections_);
}

void GlooBackend::connect(const GlooOptions& options) {
  gloo::transport::tcp::attr attributes;
  attributes.hostname = options.address;
  attributes.iface = options.interface;
  attributes.ai_family = AF_UNSPEC;
  watch_ = std::make_unique<GlooWatch>();
  if (options.may_doubt && reopen_store_) {
    doubt_ = std::make_unique<GlooDoubt>(
        GlooDoubt::Options{roster_, prefix_, reopen_store_, [this] { watch_->free_all(); }});
  }
  auto [device, thread] = make_device(attributes);
  thread_ = thread;
  auto context = std::make_shared<GlooMesh>(roster_->rank, roster_->size());
  context->setTimeout(left_until(options.deadline));
  const auto mesh_keys = with_prefix(*options.store, prefix_ + "/mesh");
  GlooStore store(*mesh_keys, options.deadline);
  context->connect(store, device, options.fence.get());
  context_ = context;
  connections_ = find_connections(*context_);
  watch_->begin(*context_, connections_);
}

// Without this a peer would wait for this rank's addresses until its deadline.
void GlooBackend::refuse_peers(const GlooOptions& options) const noexcept {
  try {
    with_prefix(*options.store, prefix_ + "/mesh")->set(std::to_string(roster_->rank), "");
  } catch (const std::exception&) {  // The store is lost, which the peers notice as well.
  }
}

// A thread's clock by its number, as the kernel has it (MAKE_THREAD_CPUCLOCK of its own headers).
std::chrono::nanoseconds GlooBackend::cpu_time() const {
  const auto clock = static_cast<clockid_t>(~static_cast<unsigned>(thread_) << 3 | 6);
  timespec used{};
  if (thread_ == 0 || ::clock_gettime(clock, &used) != 0) return {};
  return std::chrono::seconds(used.tv_sec) + std::chrono::nanoseconds(used.tv_nsec);
}

void GlooBackend::abort() noexcept {
  aborted_.store(true);
  hang_up(connections_);
}

// The store, where peers would look for a reason, ends too.
void GlooBackend::dissolve() noexcept {
  dissolved_.store(true);
  if (doubt_) doubt_->quit();
  abort();
}

void GlooBackend::lose(int rank, const std::string& why) noexcept {
  lost_.tell(rank, why);
  watch_->free_all();
}

// The peers hear the same from their agents, but perhaps later than the end of this rank's
// connections: so it leaves a statement, unless the store may be as far away as the lost rank.
void GlooBackend::follow_agent(const Call& call) {
  const auto host_of = [this](int r) { return roster_->hosts[static_cast<std::size_t>(r)]; };
  const bool store_is_there =
      host_of(lost_.rank()) != host_of(0) || host_of(0) == host_of(roster_->rank);
  const Statement mine{.what = call.what, .number = call.number, .suspect = lost_.rank()};
  if (store_is_there) give_up(mine);
  if (!store_is_there && on_failure_ && !failed_.exchange(true)) on_failure_(mine);
  throw lost_.error(*roster_, call);
}

void GlooBackend::carry_out(const Call& call, const Arrays& arrays) {
  const GlooDoubt::InCall here(is_message(call.what.kind) ? nullptr : doubt_.get(), call);
  guarded(call, [&] { Verbs::carry_out(*this, call, arrays); });
}

void GlooBackend::all_reduce_among(const Call& call, const std::vector<int>& ranks, Buffer inout,
                                   ReduceOp op) {
  guarded(call, [&] { reduce_for_all(call, ranks, inout, op); });
}

void GlooBackend::broadcast_among(const Call& call, const std::vector<int>& ranks, Buffer inout,
                                  int root) {
  guarded(call, [&] { spread(call, ranks, inout, root); });
}

void GlooBackend::barrier_among(const Call& call, const std::vector<int>& ranks) {
  guarded(call, [&] { meet(call, ranks); });
}

// A call may be guarded twice.
void GlooBackend::begin(const Call& call) {
  if (begun_ != call.start) is_late_.store(watch_->first_lost() >= 0);
  begun_ = call.start;
}

void GlooBackend::guarded(const Call& call, const std::function<void()>& operation) {
  begin(call);
  if (aborted_.load()) fail(call, statement(call, {}));
  if (lost_) follow_agent(call);
  const SigpipeGuard guard;
  try {
    operation();
  } catch (const gloo::Exception& error) {
    fail(call, statement(call, error.what()));
  } catch (const std::bad_alloc&) {  // The peers shall not wait for it until their deadline.
    give_up({.what = call.what, .number = call.number});
    throw;
  }
}

Statement GlooBackend::statement(const Call& call, const std::string& what_gloo_said) const {
  Statement mine{.what = call.what, .number = call.number};
  if (aborted_.load()) {
    mine.cause = Cause::kAborted;
  } else if (Clock::now() >= call.deadline ||
             what_gloo_said.find("imed out") != std::string::npos) {
    mine.cause = Cause::kTimedOut;
  }
  mine.suspect = rank_named(connections_, what_gloo_said);
  if (mine.suspect < 0) mine.suspect = watch_->first_lost();
  return mine;
}

void GlooBackend::fail(const Call& call, const Statement& known) {
  if (lost_ && known.cause != Cause::kAborted) follow_agent(call);
  const bool first = !failed_.exchange(true);
  Statement mine = known;
  mine.is_late = is_late_.load();
  // Gloo does not always say whose connection broke, and the watch may be on its way to it. Who
  // fails first and blames nobody leaves all others at a loss until their patience ends.
  if (mine.cause == Cause::kLost && mine.suspect < 0) mine.suspect = first_ended(connections_);
  if (on_failure_) on_failure_(mine);
  const Diagnosis verdict = dissolved_ ? Diagnosis() : ask_the_others(mine, first);
  if (dissolved_ || mine.cause == Cause::kAborted) {
    throw failure(*roster_, call, ErrorKind::aborted, -1, "this rank called abort()");
  }
  throw failure(*roster_, call, verdict.kind, verdict.peer, verdict.text, verdict.missing);
}

bool GlooBackend::is_clear(const Statement& mine, const std::map<int, Statement>& others,
                           Clock::time_point since) const {
  if (others.size() + 1 == roster_->hosts.size()) return true;
  const bool waited = Clock::now() - since >= kLastWordsPatience;
  return waited && mine.cause == Cause::kLost && silent_suspect(*roster_, mine, others) >= 0;
}

// Returns the store, opened anew.
std::shared_ptr<Store> GlooBackend::leave_statement(const Statement& mine, bool is_first) {
  auto whole_store = reopen_store_ ? reopen_store_() : nullptr;
  if (whole_store && is_first) {
    with_prefix(*whole_store, prefix_)->set(key_of(roster_->rank), encode(mine));
  }
  return whole_store;
}

void GlooBackend::give_up(const Statement& known) noexcept {
  const bool first = !failed_.exchange(true);
  try {
    if (on_failure_) on_failure_(known);
    leave_statement(known, first);
  } catch (const std::exception&) {  // The peers will find out without it.
  }
  hang_up(connections_);
}

// First this rank's own statement, then it hangs up: who is cut off by that finds the reason.
Diagnosis GlooBackend::ask_the_others(const Statement& mine, bool is_first) {
  std::map<int, Statement> others;
  const auto start = Clock::now();
  try {
    const auto whole_store = leave_statement(mine, is_first);
    const auto store = whole_store ? with_prefix(*whole_store, prefix_) : nullptr;
    hang_up(connections_);
    // An aborting rank has nothing to ask; its peers do.
    const auto patience = mine.cause == Cause::kAborted ? milliseconds(0) : kDiagnosisPatience;
    const auto ask = [&] {
      if (lost_ || dissolved_) return true;  // The agent's word.
      for (int r = 0; store && r < roster_->size(); ++r) {
        if (r == roster_->rank || others.contains(r) || !store->check({key_of(r)})) continue;
        if (const auto s = decode_statement(store->get(key_of(r), kDiagnosisPatience))) {
          others[r] = *s;
        }
      }
      return !store || is_clear(mine, others, start);
    };
    retry_until(start + patience, ask, kAskAgain);
  } catch (const Error&) {
    hang_up(connections_);
    // The store is as dead as the peer; what this rank saw must do.
    if (others.empty() && mine.suspect >= 0) {
      return {mine.cause == Cause::kTimedOut ? ErrorKind::timed_out : ErrorKind::peer_lost,
              mine.suspect, "lost the connection to " + roster_->name(mine.suspect)};
    }
  }
  if (lost_) return {ErrorKind::peer_lost, lost_.rank(), lost_.text(*roster_)};
  return diagnose(*roster_, mine, others);
}

std::shared_ptr<void> GlooBackend::allocate(const Call& call, std::size_t bytes) {
  if (aborted_.load()) fail(call, statement(call, {}));
  return allocate_plain(bytes);
}

}  // namespace ddprun::worker_sdk
