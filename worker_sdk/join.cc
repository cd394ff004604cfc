#include "worker_sdk/join.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "worker_sdk/gloo_backend.h"
#include "worker_sdk/local_store.h"
#include "worker_sdk/locality.h"
#include "worker_sdk/meeting.h"
#include "worker_sdk/membership.h"
#include "worker_sdk/self_backend.h"
#include "worker_sdk/shm_backend.h"
#include "worker_sdk/socket_io.h"
#include "worker_sdk/tcp_store.h"

namespace ddprun::worker_sdk {
namespace {

using std::chrono::milliseconds;

// A store that does not answer within this is of no use to explain a failure.
constexpr milliseconds kReopenTimeout{500};
constexpr milliseconds kReplyTimeout{60000};

// One attempt to join: what the steps below share.
class Joiner {
 public:
  Joiner(const Plan& plan, milliseconds timeout)
      : plan_(plan),
        deadline_(Clock::now() + timeout),
        rank_(plan.identity.rank),
        size_(plan.identity.world_size),
        // A restarted worker must not read what its predecessor wrote.
        prefix_("ddprun/" + std::to_string(plan.identity.restart_count)) {}

  Joined run();

 private:
  void open_store();
  Table meet();
  Table decide_for(const std::vector<std::string>& said);
  void connect_shm(const Table& table);
  std::string attach(const Table& table);
  bool agree_on_shm(const std::string& my_error);
  void connect_gloo(const Table& table);
  std::string own_address(const Table& table) const;
  Hello hello() const;
  milliseconds left() const {
    return std::max(std::chrono::duration_cast<milliseconds>(deadline_ - Clock::now()),
                    milliseconds(1));
  }
  [[noreturn]] void fail(ErrorKind kind, int peer, const std::string& text) const {
    throw Error(kind, {.operation = "joining the job", .peer = peer}, text);
  }

  const Plan& plan_;
  const Clock::time_point deadline_;
  const int rank_;
  const int size_;
  const std::string prefix_;
  Joined joined_;
  std::unique_ptr<Store> keys_;  // The store with our prefix.
  std::unique_ptr<Meeting> meeting_;
  std::shared_ptr<Roster> roster_ = std::make_shared<Roster>();
  std::shared_ptr<SegmentSource> segments_ = std::make_shared<MemfdSource>();
  OfferedSegment offered_;  // Rank 0's, until all have mapped it.
  std::shared_ptr<Segment> control_;
  std::vector<UniqueFd> pidfds_;
};

Joined Joiner::run() {
  joined_.identity = plan_.identity;
  open_store();
  roster_->rank = rank_;
  if (size_ == 1) {
    roster_->hosts = {host_name()};
    joined_.backend = std::make_unique<SelfBackend>(roster_);
  } else {
    keys_ = with_prefix(*joined_.store, prefix_);
    meeting_ = std::make_unique<Meeting>(*keys_, rank_, size_, deadline_);
    const Table table = meet();
    for (const Hello& hello : table.hellos) roster_->hosts.push_back(hello.host);
    if (!plan_.local_rank_known) {
      const LocalPlace place = local_place(table.hellos, rank_);
      joined_.identity.local_rank = place.rank;
      joined_.identity.local_world_size = place.size;
    }
    if (table.backend == "shm") {
      connect_shm(table);
    } else {
      connect_gloo(table);
    }
  }
  joined_.roster = roster_;
  return std::move(joined_);
}

void Joiner::open_store() {
  const Rendezvous& at = plan_.rendezvous;
  switch (at.kind) {
    case Rendezvous::Kind::kAlone: joined_.store = std::make_unique<LocalStore>(); return;
    case Rendezvous::Kind::kFile: joined_.store = open_file_store(at.path); return;
    case Rendezvous::Kind::kTcp: break;
  }
  if (at.hosted_by_rank_0 && rank_ == 0) {
    joined_.store_host = std::make_unique<StoreHost>(at.host, at.port, deadline_);
  }
  joined_.store = connect_tcp_store({.host = at.host,
                                     .port = at.port,
                                     .connect_timeout = left(),
                                     .reply_timeout = kReplyTimeout});
}

Hello Joiner::hello() const {
  Hello mine{.host = host_name(),
             .domain = memory_domain(),
             .pid = 0,
             .address = {},
             .backend = plan_.backend};
  mine.pid = static_cast<std::int32_t>(::getpid());
  if (plan_.rendezvous.kind == Rendezvous::Kind::kTcp) {
    mine.address = local_address_towards(plan_.rendezvous.host, deadline_);
  }
  return mine;
}

Table Joiner::meet() {
  if (keys_->add("seat/" + std::to_string(rank_), 1) != 1) {
    fail(ErrorKind::mismatch, rank_,
         "another worker has joined as rank " + std::to_string(rank_) +
             " before; are two started with the same RANK, or is the store of an earlier run?");
  }
  const std::string answer = meeting_->hold(
      "hello", encode(hello()), [this](const auto& said) { return encode(decide_for(said)); });
  const auto table = decode_table(answer);
  if (!table) fail(ErrorKind::mismatch, 0, "rank 0 is of another version of ddprun");
  if (static_cast<int>(table->hellos.size()) != size_) {
    fail(ErrorKind::mismatch, 0,
         "rank 0 has a world of " + std::to_string(table->hellos.size()) + ", this rank one of " +
             std::to_string(size_));
  }
  return *table;
}

// Rank 0's part: makes the control segment, too, if there is to be one.
Table Joiner::decide_for(const std::vector<std::string>& said) {
  std::vector<Hello> hellos;
  for (const std::string& text : said) {
    const auto hello = decode_hello(text);
    const auto rank = static_cast<int>(hellos.size());
    if (!hello) {
      fail(ErrorKind::mismatch, rank, "rank " + std::to_string(rank) + " is of another version");
    }
    hellos.push_back(*hello);
  }
  Table table = decide(std::move(hellos));
  if (!table.error.empty()) fail(ErrorKind::mismatch, table.culprit, table.error);
  if (table.backend != "shm") return table;
  try {
    offered_ = segments_->create(ShmTeam::control_bytes(size_));
    control_ = offered_.segment;
    table.control = offered_.name;
  } catch (const std::system_error& error) {
    if (plan_.backend != "auto") fail(ErrorKind::system, 0, error.what());
    table.backend = "gloo";
  }
  return table;
}

void Joiner::connect_shm(const Table& table) {
  const std::string error = attach(table);
  if (!agree_on_shm(error)) return connect_gloo(table);
  offered_.fd.reset();
  auto team = std::make_unique<ShmTeam>(roster_, std::move(control_), std::move(pidfds_));
  joined_.backend = std::make_unique<ShmBackend>(std::move(team), segments_);
}

// Why this rank cannot share memory; empty if it can.
std::string Joiner::attach(const Table& table) {
  try {
    if (!control_) control_ = segments_->open(table.control);
  } catch (const std::system_error& error) {
    return error.what();
  }
  for (const Hello& hello : table.hellos) {
    // A thread of this process cannot die without us.
    if (hello.pid == ::getpid()) {
      pidfds_.emplace_back();
      continue;
    }
    pidfds_.emplace_back(static_cast<int>(::syscall(SYS_pidfd_open, hello.pid, 0)));
    if (!pidfds_.back() && errno != ENOSYS) {
      return "watching process " + std::to_string(hello.pid) + ": " + std::strerror(errno);
    }
  }
  return {};
}

// All ranks use shared memory, or none. Since every rank has answered while alive, the pidfds are
// of the right processes.
bool Joiner::agree_on_shm(const std::string& my_error) {
  const std::string answer = meeting_->hold("attached", my_error, [this](const auto& errors) {
    for (std::size_t r = 0; r < errors.size(); ++r) {
      if (errors[r].empty()) continue;
      if (plan_.backend == "auto") return std::string("gloo");
      fail(ErrorKind::system, static_cast<int>(r),
           "rank " + std::to_string(r) + " cannot share memory: " + errors[r]);
    }
    return std::string("shm");
  });
  return answer == "shm";
}

// Ranks of one host meet on its loopback. Otherwise the address must not be one that only this host
// has, as that of a store on this very host may be.
std::string Joiner::own_address(const Table& table) const {
  const Hello& mine = table.hellos[static_cast<std::size_t>(rank_)];
  bool one_host = true;
  for (const Hello& hello : table.hellos) one_host = one_host && hello.domain == mine.domain;
  const auto is_loopback = [&](const std::string& address) {
    return address.empty() || address.starts_with("127.") || address == "::1";
  };
  if (one_host) return mine.address.empty() ? "127.0.0.1" : mine.address;
  if (!is_loopback(mine.address)) return mine.address;
  for (const Hello& hello : table.hellos) {
    const std::string target = is_loopback(hello.address) ? hello.host : hello.address;
    if (hello.domain == mine.domain) continue;
    const std::string address = local_address_towards(target, deadline_);
    if (!is_loopback(address)) return address;
  }
  return mine.address.empty() ? "127.0.0.1" : mine.address;
}

void Joiner::connect_gloo(const Table& table) {
  GlooOptions options;
  options.interface = plan_.interface;
  if (options.interface.empty()) options.address = own_address(table);
  options.store = joined_.store.get();
  options.prefix = prefix_ + "/gloo";
  options.deadline = deadline_;
  options.reopen_store = [at = plan_.rendezvous]() -> std::unique_ptr<Store> {
    if (at.kind == Rendezvous::Kind::kFile) return open_file_store(at.path);
    return connect_tcp_store({.host = at.host,
                              .port = at.port,
                              .connect_timeout = kReopenTimeout,
                              .reply_timeout = kReopenTimeout});
  };
  std::string error;
  try {
    joined_.backend = std::make_unique<GlooBackend>(roster_, options);
  } catch (const Error& e) {
    error = e.text();
  }
  // Gloo does not notice a connection that was closed before it looked: a rank that is done and
  // leaves early would leave a slower one waiting. So nobody begins before all are connected.
  meeting_->hold("connected", error, [this](const auto& errors) {
    for (std::size_t r = 0; r < errors.size(); ++r) {
      if (errors[r].empty()) continue;
      fail(ErrorKind::unreachable, static_cast<int>(r),
           "rank " + std::to_string(r) + " cannot connect: " + errors[r]);
    }
    return std::string();
  });
}

}  // namespace

Joined join(const Plan& plan, milliseconds timeout) {
  try {
    return Joiner(plan, timeout).run();
  } catch (const Error& error) {
    Error::Where where = error.where();
    if (where.rank >= 0) throw;
    where.rank = plan.identity.rank;
    where.host = host_name();
    throw Error(error.kind(), where, error.text());
  }
}

}  // namespace ddprun::worker_sdk
