#include "worker_sdk/gloo/gloo_backend.h"

#include <dlfcn.h>
#include <net/if.h>
#include <pthread.h>
#include <unistd.h>

#include <gloo/transport/tcp/device.h>
#include <algorithm>
#include <complex>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <future>
#include <numeric>
#include <stdexcept>
#include <string_view>

#include "common/system/folder.h"
#include "common/system/signals.h"
#include "worker_sdk/base/retry.h"
#include "worker_sdk/base/system_limits.h"
#include "worker_sdk/gloo/gloo_mesh.h"
#include "worker_sdk/gloo/gloo_transfers.h"
#include "worker_sdk/transport/reduce.h"

namespace ddprun::worker_sdk {
namespace {

using std::chrono::milliseconds;

// How long the survivors of a failure wait for each other's statements, and how long for the
// statement of a rank with a broken connection: a rank that fails but lives leaves one before it
// closes its connections, unless it aborts. The first wait is spent on stopped ranks, and on ranks
// with a later deadline than ours.
constexpr milliseconds kDiagnosisPatience{3000};
constexpr milliseconds kLastWordsPatience{50};
constexpr milliseconds kQueryAgain{5};  // Much shorter than both.

// pip's libtorch has a Gloo of its own, of another version. If the program links it before libgloo,
// calls would go to both in turns.
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

// The thread of this process with this name; 0: there is none but the caller.
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

// Returns the device with the id of its thread, which Gloo does not expose. A thread inherits the
// name of the thread that creates it, so Gloo's can be found.
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

// Gloo's own assertion names neither the variables nor what is there.
void require_interface(const std::string& name) {
  if (name.empty() || ::if_nametoindex(name.c_str()) != 0) return;
  std::string there;
  if (struct if_nameindex* const all = ::if_nameindex()) {
    for (const auto* one = all; one->if_index != 0; ++one) {
      there += (there.empty() ? "" : ", ") + std::string(one->if_name);
    }
    ::if_freenameindex(all);
  }
  throw std::runtime_error("this host has no interface '" + name +
                           "', which DDPRUN_SOCKET_IFNAME or GLOO_SOCKET_IFNAME names; it has " +
                           there);
}

std::string failure_key(int rank) { return "failed/" + std::to_string(rank); }

}  // namespace

GlooBackend::GlooBackend(std::shared_ptr<const Roster> roster, const GlooOptions& options)
    : roster_(std::move(roster)),
      reopen_store_(options.reopen_store),
      prefix_(options.prefix),
      all_ranks_(roster_->hosts.size()),
      sent_(roster_->hosts.size()),
      received_(roster_->hosts.size()) {
  std::iota(all_ranks_.begin(), all_ranks_.end(), 0);
  const Error::Where where{.rank = roster_->rank,
                           .host = roster_->hosts[static_cast<std::size_t>(roster_->rank)],
                           .operation = "connecting to the peers"};
  refuse_foreign_gloo(where);
  const SigpipeGuard guard;  // Inherited by Gloo's thread.
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
  } catch (const std::system_error& error) {  // This process has reached a limit.
    throw as_error(error, where);
  } catch (const std::bad_alloc& error) {
    throw as_error(error, where);
  } catch (const std::exception& error) {  // Gloo reports bad addresses by its assertions.
    throw Error(ErrorKind::unreachable, where, error.what());
  }
}

GlooBackend::~GlooBackend() {
  const SigpipeGuard guard;
  probe_.reset();
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
  if (options.may_probe && reopen_store_) {
    probe_ = std::make_unique<MismatchProbe>(
        MismatchProbe::Options{roster_, prefix_, reopen_store_, [this] { watch_->free_all(); }});
  }
  require_interface(options.interface);
  auto [device, thread] = make_device(attributes);
  thread_ = thread;
  auto context = std::make_shared<GlooMesh>(roster_->rank, roster_->size());
  context->setTimeout(left_until(options.deadline));
  const auto mesh_keys = with_prefix(*options.store, prefix_ + "/mesh");
  GlooStore store(*mesh_keys, options.deadline);
  const GlooRelay relay(
      {.place = options.relay,
       .roster = roster_,
       .networks = options.networks,
       .keys = mesh_keys.get(),
       .deadline = options.deadline,
       .give_up = [fence = options.fence] { return fence && fence->is_raised(); }});
  context->connect(store, device, options.ports, options.fence.get(), relay);
  context_ = context;
  connections_ = find_connections(*context_);
  watch_->begin(*context_, connections_);
}

// Without this, a peer would wait for this rank's addresses until its deadline.
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

// The store, which would hold the reason for the peers, ends too.
void GlooBackend::dissolve() noexcept {
  dissolved_.store(true);
  if (probe_) probe_->quit();
  abort();
}

void GlooBackend::lose(int rank, const std::string& why) noexcept {
  lost_.report(rank, why);
  watch_->free_all();
}

// The peers receive the same from their agents, but perhaps later than the end of this rank's
// connections. So this rank leaves a statement, unless the store may be on the lost rank's host.
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
  const MismatchProbe::InCall here(is_message(call.what.kind) ? nullptr : probe_.get(), call);
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
  } catch (const std::bad_alloc&) {  // Ends the peers' waits before their deadline.
    give_up({.what = call.what, .number = call.number});
    throw;
  }
}

Statement GlooBackend::statement(const Call& call, const std::string& what_gloo_reported) const {
  Statement mine{.what = call.what, .number = call.number};
  if (aborted_.load()) {
    mine.cause = Cause::kAborted;
  } else if (Clock::now() >= call.deadline ||
             what_gloo_reported.find("imed out") != std::string::npos) {
    mine.cause = Cause::kTimedOut;
  }
  mine.suspect = rank_named(connections_, what_gloo_reported);
  if (mine.suspect < 0) mine.suspect = watch_->first_lost();
  return mine;
}

void GlooBackend::fail(const Call& call, const Statement& known) {
  if (lost_ && known.cause != Cause::kAborted) follow_agent(call);
  const bool first = !failed_.exchange(true);
  Statement mine = known;
  mine.is_late = is_late_.load();
  // Gloo does not always report which connection broke, and the watch may not have seen it yet. If
  // the first rank to fail blames no rank, all others lack a culprit until their patience ends.
  if (mine.cause == Cause::kLost && mine.suspect < 0) mine.suspect = first_ended(connections_);
  if (on_failure_) on_failure_(mine);
  const Diagnosis verdict = dissolved_ ? Diagnosis() : query_others(mine, first);
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
    with_prefix(*whole_store, prefix_)->set(failure_key(roster_->rank), encode(mine));
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

// Writes this rank's statement before it closes the connections: a peer that is cut off then finds
// the reason.
Diagnosis GlooBackend::query_others(const Statement& mine, bool is_first) {
  std::map<int, Statement> others;
  const auto start = Clock::now();
  try {
    const auto whole_store = leave_statement(mine, is_first);
    const auto store = whole_store ? with_prefix(*whole_store, prefix_) : nullptr;
    hang_up(connections_);
    // A rank that aborts needs no answers; its peers do.
    const auto patience = mine.cause == Cause::kAborted ? milliseconds(0) : kDiagnosisPatience;
    const auto query = [&] {
      if (lost_ || dissolved_) return true;  // The agent has reported the reason.
      for (int r = 0; store && r < roster_->size(); ++r) {
        if (r == roster_->rank || others.contains(r) || !store->check({failure_key(r)})) continue;
        if (const auto s = decode_statement(store->get(failure_key(r), kDiagnosisPatience))) {
          others[r] = *s;
        }
      }
      return !store || is_clear(mine, others, start);
    };
    retry_until(start + patience, query, kQueryAgain);
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

// GlooBackend's collectives that only move bytes.

void GlooBackend::broadcast(const Call& call, const Arrays& arrays) {
  spread(call, all_ranks_, arrays.out, call.what.rank);
}

// A binomial tree: in round k, the ranks that have the data send it to the rank 2^k further on.
void GlooBackend::spread(const Call& call, const std::vector<int>& ranks, Buffer inout, int root) {
  const std::size_t n = ranks.size();
  const auto index = [&](int rank) {
    return static_cast<std::size_t>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
  };
  const std::size_t first = index(root);
  const std::size_t me = (index(roster_->rank) + n - first) % n;  // Counted from the root.
  const auto rank_at = [&](std::size_t i) { return ranks[(i + first) % n]; };
  GlooTransfers messages = transfers(collective_slot(call), call);
  for (std::size_t step = 1; step < n; step *= 2) {
    if (me >= step && me < 2 * step) {
      messages.recv(rank_at(me - step), inout.data, inout.bytes());
      messages.wait_received();
    }
    if (me < step && me + step < n) {
      messages.send(rank_at(me + step), inout.data, inout.bytes());
    }
  }
  messages.wait();
}

void GlooBackend::barrier(const Call& call, const Arrays&) { meet(call, all_ranks_); }

// In round k, each rank notifies the rank 2^k further on that it and 2^k - 1 others have arrived.
void GlooBackend::meet(const Call& call, const std::vector<int>& ranks) {
  const std::size_t n = ranks.size();
  const auto me = static_cast<std::size_t>(std::find(ranks.begin(), ranks.end(), roster_->rank) -
                                           ranks.begin());
  const char token = 1;
  char theirs = 0;
  GlooTransfers messages = transfers(collective_slot(call), call);
  std::uint32_t round = 0;
  for (std::size_t step = 1; step < n; step *= 2, ++round) {
    messages.recv(ranks[(me + n - step) % n], &theirs, 1, round);
    messages.send(ranks[(me + step) % n], &token, 1, round);
    messages.wait_received();
  }
  messages.wait();
}

void GlooBackend::all_gather(const Call& call, const Arrays& arrays) {
  const Buffer in = arrays.in;
  GlooTransfers messages = transfers(collective_slot(call), call);
  for (const int r : all_ranks_) {
    const Buffer to = arrays.out_part(r, call.what.count);
    if (r == roster_->rank) {
      move_bytes(to.data, in.data, in.bytes());
    } else {
      messages.recv(r, to.data, to.bytes());
      messages.send(r, in.data, in.bytes());
    }
  }
  messages.wait();
}

void GlooBackend::send(const Call& call, const Arrays& arrays) {
  const Buffer in = arrays.in;
  const int to = call.what.rank;
  const std::uint32_t number = sent_[static_cast<std::size_t>(to)]++;
  GlooTransfers messages = transfers(message_slot(call, roster_->rank, to, number), call);
  messages.send(to, in.data, in.bytes());
  messages.wait();
}

void GlooBackend::recv(const Call& call, const Arrays& arrays) {
  const Buffer out = arrays.out;
  const int from = call.what.rank;
  const std::uint32_t number = received_[static_cast<std::size_t>(from)]++;
  GlooTransfers messages = transfers(message_slot(call, from, roster_->rank, number), call);
  messages.recv(from, out.data, out.bytes());
  messages.wait();
}

// Gloo would end the process over a message of another length than is awaited.
void GlooBackend::exchange_counts(const Call& call, const Arrays& arrays) {
  std::vector<std::uint64_t> mine, theirs(all_ranks_.size());
  for (const Buffer& part : arrays.ins) mine.push_back(part.count);
  GlooTransfers messages = transfers(collective_slot(call), call);
  for (const int r : all_ranks_) {
    if (r == roster_->rank) continue;
    const auto at = static_cast<std::size_t>(r);
    messages.recv(r, &theirs[at], sizeof theirs[at]);
    messages.send(r, &mine[at], sizeof mine[at]);
  }
  messages.wait();
  for (const int r : all_ranks_) {
    const auto at = static_cast<std::size_t>(r);
    const std::size_t awaited = arrays.outs[at].count;
    if (r == roster_->rank || theirs[at] == awaited) continue;
    give_up({.what = call.what, .number = call.number, .suspect = r});
    throw failure(*roster_, call, ErrorKind::mismatch, r,
                  roster_->name(r) + " sends " + std::to_string(theirs[at]) +
                      " elements to this rank, which expects " + std::to_string(awaited));
  }
}

void GlooBackend::all_to_all(const Call& call, const Arrays& arrays) {
  if (call.what.parts == kOwnParts) exchange_counts(call, arrays);
  Arrays given = arrays;
  if (given.ins.empty() && given.in.data == given.out.data && given.in.bytes() > 0) {
    given.in.data = std::memcpy(scratch(given.in.bytes()), given.in.data, given.in.bytes());
  }
  GlooTransfers messages = transfers(collective_slot(call), call);
  for (const int r : all_ranks_) {
    const Buffer from = given.in_part(r, call.what.count);
    const Buffer to = given.out_part(r, call.what.count);
    if (r == roster_->rank) {
      move_bytes(to.data, from.data, from.bytes());
      continue;
    }
    messages.recv(r, to.data, to.bytes(), 1);
    messages.send(r, from.data, from.bytes(), 1);
  }
  messages.wait();
}

void GlooBackend::gather(const Call& call, const Arrays& arrays) {
  const Buffer in = arrays.in;
  const int root = call.what.rank;
  GlooTransfers messages = transfers(collective_slot(call), call);
  if (root != roster_->rank) messages.send(root, in.data, in.bytes());
  for (const int r : all_ranks_) {
    if (root != roster_->rank) break;
    const Buffer to = arrays.out_part(r, call.what.count);
    if (r == root) {
      move_bytes(to.data, in.data, in.bytes());
    } else {
      messages.recv(r, to.data, to.bytes());
    }
  }
  messages.wait();
}

void GlooBackend::scatter(const Call& call, const Arrays& arrays) {
  const Buffer out = arrays.out;
  const int root = call.what.rank;
  GlooTransfers messages = transfers(collective_slot(call), call);
  if (root != roster_->rank) messages.recv(root, out.data, out.bytes());
  for (const int r : all_ranks_) {
    if (root != roster_->rank) break;
    const Buffer from = arrays.in_part(r, call.what.count);
    if (r == root) {
      move_bytes(out.data, from.data, from.bytes());
    } else {
      messages.send(r, from.data, from.bytes());
    }
  }
  messages.wait();
}

// GlooBackend's reductions: a reduce-scatter and an all-gather by direct messages, window by
// window, so that the next window travels while this one is reduced.

namespace {

// If a rank would send no more than this, it sends the whole array to all others, and all reduce
// all of it: one step instead of two. With two ranks, both ways send the same number of bytes.
constexpr std::size_t kWholeBytes = 64 << 10;
constexpr std::size_t kWholeBytesOfTwo = 1 << 20;
// How much of the array travels at once.
constexpr std::size_t kWindowBytes = 4 << 20;
constexpr std::size_t kGrain = 16;  // Elements: parts begin at cache lines.
constexpr std::size_t kWidestElement = sizeof(std::complex<double>);

// The position of this rank among those that reduce.
struct Circle {
  Circle(const std::vector<int>& all, int rank) : ranks(all) {
    while (ranks[me] != rank) ++me;
  }
  std::size_t size() const { return ranks.size(); }

  const std::vector<int>& ranks;
  std::size_t me = 0;
};

// The array of one all_reduce on its way. Window t is cut into a part for each rank.
class Windows {
 public:
  Windows(std::function<GlooTransfers()> start, const Circle& circle, Buffer array,
          std::byte* scratch)
      : start_(std::move(start)), circle_(circle), array_(array), scratch_(scratch) {}

  static std::size_t elements(DataType type) { return kWindowBytes / size_of(type); }
  // Space for one rank's part of one window, rounded so that a part may begin at any element.
  static std::size_t source_bytes(std::size_t ranks) {
    constexpr std::size_t kAlignment = 64;
    const std::size_t bytes = kWindowBytes / ranks + kGrain * kWidestElement;
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }
  static std::size_t scratch_bytes(std::size_t ranks) { return 2 * ranks * source_bytes(ranks); }
  std::size_t number() const {
    return (array_.count + elements(array_.type) - 1) / elements(array_.type);
  }

  // Receives for results are posted from the beginning, so a rank need not ask before it sends one.
  // A result replaces a source that has been sent: rank k sends it after it has received that.
  void send_sources(std::size_t t) {
    GlooTransfers& sources = sources_[t % 3].emplace_back(start_());
    GlooTransfers& results = results_[t % 3].emplace_back(start_());
    for (std::size_t k = 0; k < circle_.size(); ++k) {
      if (k == circle_.me) continue;
      const Buffer mine = part(t, circle_.me), theirs = part(t, k);
      sources.recv(circle_.ranks[k], source(t, k), mine.bytes(), part_number(t, 0));
      results.recv(circle_.ranks[k], theirs.data, theirs.bytes(), part_number(t, 1));
      sources.send(circle_.ranks[k], theirs.data, theirs.bytes(), part_number(t, 0));
    }
  }

  void reduce_mine(std::size_t t, ReduceOp op) {
    sources_[t % 3].front().wait_received();
    const Buffer mine = part(t, circle_.me);
    std::vector<const void*> sources;
    for (std::size_t k = 0; k < circle_.size(); ++k) {
      sources.push_back(k == circle_.me ? mine.data : source(t, k));
    }
    reduce(mine.type, op, mine.data, {sources.data(), static_cast<int>(sources.size())},
           mine.count);
    for (std::size_t k = 0; k < circle_.size(); ++k) {
      if (k == circle_.me) continue;
      results_[t % 3].front().send(circle_.ranks[k], mine.data, mine.bytes(), part_number(t, 1));
    }
  }

  void finish(std::size_t t) {
    for (auto* under_way : {&results_[t % 3], &sources_[t % 3]}) {
      under_way->front().wait();
      under_way->clear();
    }
  }

 private:
  static std::uint32_t part_number(std::size_t t, std::uint32_t phase) {
    return static_cast<std::uint32_t>(2 * t) + phase;
  }
  Buffer part(std::size_t t, std::size_t k) const {
    const std::size_t begin = t * elements(array_.type);
    const std::size_t count = std::min(elements(array_.type), array_.count - begin);
    const std::size_t grains = (count + kGrain - 1) / kGrain;
    const auto edge = [&](std::size_t i) {
      return std::min(count, grains * i / circle_.size() * kGrain);
    };
    return {bytes_of(array_) + (begin + edge(k)) * size_of(array_.type), edge(k + 1) - edge(k),
            array_.type};
  }
  std::byte* source(std::size_t t, std::size_t k) const {
    return scratch_ + (t % 2 * circle_.size() + k) * source_bytes(circle_.size());
  }

  const std::function<GlooTransfers()> start_;
  const Circle& circle_;
  const Buffer array_;
  std::byte* const scratch_;
  std::vector<GlooTransfers> sources_[3], results_[3];  // Per window; one or none.
};

}  // namespace

std::byte* GlooBackend::scratch(std::size_t bytes) {
  if (scratch_bytes_ < bytes) {
    scratch_ = std::make_unique_for_overwrite<std::byte[]>(bytes);
    scratch_bytes_ = bytes;
  }
  return scratch_.get();
}

void GlooBackend::all_reduce(const Call& call, const Arrays& arrays) {
  reduce_for_all(call, all_ranks_, arrays.out, call.what.op);
}

void GlooBackend::reduce_for_all(const Call& call, const std::vector<int>& ranks, Buffer inout,
                                 ReduceOp op) {
  if (inout.count == 0 || ranks.size() == 1) return;
  const bool small = ranks.size() == 2 ? inout.bytes() <= kWholeBytesOfTwo
                                       : inout.bytes() * (ranks.size() - 1) <= kWholeBytes;
  if (small) return reduce_whole(call, ranks, inout, op);
  reduce_in_windows(call, ranks, inout, op);
}

void GlooBackend::reduce_whole(const Call& call, const std::vector<int>& ranks, Buffer inout,
                               ReduceOp op) {
  const Circle circle(ranks, roster_->rank);
  std::byte* memory = scratch(circle.size() * inout.bytes());
  GlooTransfers messages = transfers(collective_slot(call), call);
  std::vector<const void*> sources;
  for (std::size_t k = 0; k < circle.size(); ++k) {
    sources.push_back(k == circle.me ? inout.data : memory + k * inout.bytes());
    if (k == circle.me) continue;
    messages.recv(ranks[k], memory + k * inout.bytes(), inout.bytes());
    messages.send(ranks[k], inout.data, inout.bytes());
  }
  messages.wait();
  worker_sdk::reduce(inout.type, op, inout.data, {sources.data(), static_cast<int>(sources.size())},
                     inout.count);
}

void GlooBackend::reduce_in_windows(const Call& call, const std::vector<int>& ranks, Buffer inout,
                                    ReduceOp op) {
  const Circle circle(ranks, roster_->rank);
  Windows windows([&] { return transfers(collective_slot(call), call); }, circle, inout,
                  scratch(Windows::scratch_bytes(circle.size())));
  const std::size_t n = windows.number();
  for (std::size_t t = 0; t < n + 2; ++t) {
    if (t < n) windows.send_sources(t);
    if (t >= 1 && t <= n) windows.reduce_mine(t - 1, op);
    if (t >= 2) windows.finish(t - 2);
  }
}

// Window by window, the root receives all sources; no other rank needs them.
void GlooBackend::reduce(const Call& call, const Arrays& arrays) {
  const Buffer in = arrays.in, out = arrays.out;
  const int root = call.what.rank;
  const std::size_t step = kWindowBytes / size_of(in.type);
  const std::size_t bytes = std::min(step, in.count) * size_of(in.type);
  std::byte* memory = root == roster_->rank ? scratch(all_ranks_.size() * bytes) : nullptr;
  std::uint32_t part = 0;
  for (std::size_t begin = 0; begin < in.count; begin += step, ++part) {
    const std::size_t count = std::min(step, in.count - begin), at = begin * size_of(in.type);
    GlooTransfers messages = transfers(collective_slot(call), call);
    if (root != roster_->rank)
      messages.send(root, bytes_of(in) + at, count * size_of(in.type), part);
    std::vector<const void*> sources;
    for (std::size_t r = 0; memory && r < all_ranks_.size(); ++r) {
      const bool mine = all_ranks_[r] == root;
      sources.push_back(mine ? bytes_of(in) + at : memory + r * bytes);
      if (!mine) messages.recv(all_ranks_[r], memory + r * bytes, count * size_of(in.type), part);
    }
    messages.wait();
    if (!memory) continue;
    worker_sdk::reduce(in.type, call.what.op, bytes_of(out) + at,
                       {sources.data(), static_cast<int>(sources.size())}, count);
  }
}

// The parts are those of `in`, which may differ in size; this rank's part is as long as `out`.
void GlooBackend::reduce_scatter(const Call& call, const Arrays& arrays) {
  const Buffer out = arrays.out;
  const Circle circle(all_ranks_, roster_->rank);
  const std::size_t step = kWindowBytes / circle.size() / size_of(out.type) + kGrain;
  const std::size_t bytes = step * size_of(out.type);
  std::byte* memory = scratch(circle.size() * bytes);
  const auto part = [&](std::size_t k) {
    return arrays.in_part(static_cast<int>(k), call.what.count);
  };
  std::size_t longest = out.count;
  for (std::size_t k = 0; k < circle.size(); ++k) longest = std::max(longest, part(k).count);
  const auto window = [&](const Buffer& whole, std::size_t begin) {
    const std::size_t at = std::min(begin, whole.count);
    return Buffer{bytes_of(whole) + at * size_of(whole.type), std::min(step, whole.count - at),
                  whole.type};
  };
  std::uint32_t turn = 0;
  for (std::size_t begin = 0; begin < longest; begin += step, ++turn) {
    const Buffer mine = window(out, begin);
    GlooTransfers messages = transfers(collective_slot(call), call);
    std::vector<const void*> sources;
    for (std::size_t k = 0; k < circle.size(); ++k) {
      const Buffer from = window(part(k), begin);
      sources.push_back(k == circle.me ? from.data : memory + k * bytes);
      if (k == circle.me) continue;
      messages.recv(all_ranks_[k], memory + k * bytes, mine.bytes(), turn);
      messages.send(all_ranks_[k], from.data, from.bytes(), turn);
    }
    messages.wait();
    worker_sdk::reduce(out.type, call.what.op, mine.data,
                       {sources.data(), static_cast<int>(sources.size())}, mine.count);
  }
}

}  // namespace ddprun::worker_sdk
