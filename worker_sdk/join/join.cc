#include "worker_sdk/join/join.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "common/checksum.h"
#include "common/scheduler/slurm_step.h"
#include "worker_sdk/base/locality.h"
#include "worker_sdk/base/retry.h"
#include "worker_sdk/base/socket_io.h"
#include "worker_sdk/base/system_limits.h"
#include "worker_sdk/join/cpu_backend.h"
#include "worker_sdk/join/meeting.h"
#include "worker_sdk/join/membership.h"
#include "worker_sdk/join/nccl_join.h"
#include "worker_sdk/store/file_store.h"
#include "worker_sdk/store/local_store.h"
#include "worker_sdk/store/store_host.h"
#include "worker_sdk/store/tcp_store.h"
#include "worker_sdk/transport/backend.h"

namespace ddprun::worker_sdk {
namespace {

bool is_loopback(const std::string& address) {
  return address.empty() || address.starts_with("127.") || address == "::1";
}

}  // namespace

std::string address_for_peers(const std::vector<Introduction>& hellos, int rank,
                              Clock::time_point deadline) {
  const Introduction& mine = hellos[static_cast<std::size_t>(rank)];
  const std::string fallback = mine.address.empty() ? "127.0.0.1" : mine.address;
  const bool one_network =
      std::all_of(hellos.begin(), hellos.end(),
                  [&](const Introduction& hello) { return hello.network == mine.network; });
  if (one_network || !is_loopback(mine.address)) return fallback;
  for (const Introduction& hello : hellos) {
    if (hello.network == mine.network) continue;
    const std::string target = is_loopback(hello.address) ? hello.host : hello.address;
    const std::string address = local_address_towards(target, deadline);
    if (!is_loopback(address)) return address;
  }
  return fallback;
}

namespace {

using std::chrono::milliseconds;

constexpr milliseconds kReplyTimeout{60000};

std::int32_t pid_of(const Table& table, int rank) {
  return table.hellos[static_cast<std::size_t>(rank)].pid;
}

// The store of a job whose ranks were given no port: rank 0 hosts it at the first free one of the
// job's ports, and the others try these in turn until one has a store with the job's key. Another
// job, or a service, may have any of the ports.
struct StoreSearch {
  const Rendezvous& at;  // Of the kind kTcp, with is_searched.
  bool hosts = false;    // This rank is rank 0, and no other process hosts the store.
  PortRange ports = {};  // Of the plan.
  std::string prefix;    // Of the group's keys; groups of other lives have others.
  std::chrono::milliseconds reply_timeout{0};
  Clock::time_point deadline{};
  std::shared_ptr<RoundFence> fence = nullptr;
};

struct FoundStore {
  std::shared_ptr<StoreHost> host;  // If this rank hosts it.
  std::shared_ptr<Store> store;
  std::uint16_t port = 0;
};

// For one port, doubled with each pass over all ports: a host that is far away, or busy, gets more
// time, and a rank 0 that starts later than the others is found soon.
constexpr milliseconds kPortPatience{200};
constexpr milliseconds kPortPatienceMax{5000};
constexpr char kRemedy[] = "; MASTER_ADDR and MASTER_PORT name another place";

// A name for the process that started this process's session, equal for all that it has started:
// mpiexec of MPICH begins a session for each rank. Throws Error(bad_environment) if it has ended.
std::string starter_of_session() {
  const auto leader = ::getsid(0);
  std::string stat;
  std::getline(std::ifstream("/proc/" + std::to_string(leader) + "/stat"), stat);
  const std::size_t name_end = stat.rfind(')');  // "12 (a name) S 34 ...": 34 is its parent.
  if (name_end == std::string::npos || name_end + 4 >= stat.size()) {
    throw Error(ErrorKind::bad_environment, {.operation = "reading the environment"},
                "the process that started this rank cannot be found; set MASTER_PORT");
  }
  const std::size_t begin = name_end + 4;
  return "process " + stat.substr(begin, stat.find(' ', begin) - begin) + " of user " +
         std::to_string(::geteuid());
}

class Search {
 public:
  explicit Search(const StoreSearch& search) : s_(search), job_(s_.at.job), place_(s_.at.place) {
    if (!job_.empty()) return;
    job_ = starter_of_session();
    place_ = checksum(job_.data(), job_.size());
  }

  FoundStore host() {
    std::string last;
    for (int i = 0; i < port_count(); ++i) {
      try {
        FoundStore found;
        found.port = port(i);
        found.host = std::make_shared<StoreHost>(s_.at.host, found.port, s_.deadline);
        found.store = connect(found.port, left_until(s_.deadline));
        found.store->set(key(), "here");
        return found;
      } catch (const Error& error) {
        if (error.kind() != ErrorKind::system) throw;
        last = error.text();
      }
    }
    throw Error(ErrorKind::system, {.operation = "hosting the store"},
                last + ", and none of the other " + std::to_string(port_count() - 1) +
                    " ports of this job is free" + kRemedy);
  }

  FoundStore look_for() {
    resolve(s_.at.host, 0, s_.deadline);  // A name that does not exist ends the search at once.
    FoundStore found;
    milliseconds patience = kPortPatience;
    retry_until(s_.deadline, [&] {
      for (int i = 0; i < port_count() && !found.store && !is_fenced(); ++i) {
        try_port(port(i), std::min(patience, left_until(s_.deadline)), found);
      }
      patience = std::min(patience * 2, kPortPatienceMax);
      return found.store || is_fenced();
    });
    if (found.store) return found;
    throw Error(ErrorKind::unreachable, {.operation = "finding rank 0"},
                "no rank 0 of " + job_ + " at " + s_.at.host + ", ports " + ports() + ": " + last_ +
                    kRemedy);
  }

 private:
  int port_count() const {
    const int most = scheduler::kMeetingPorts;
    return s_.ports.is_any() ? most : std::min(most, s_.ports.size());
  }
  std::uint16_t port(int i) const {
    return s_.ports.is_any() ? scheduler::meeting_port(place_, i) : s_.ports.port(place_, i);
  }
  std::string key() const { return "ddprun/of/" + job_ + s_.prefix; }
  bool is_fenced() const { return s_.fence && s_.fence->is_raised(); }

  std::string ports() const {
    std::string text;
    for (int i = 0; i < port_count(); ++i) {
      text += (i ? ", " : "") + std::to_string(port(i));
    }
    return text;
  }

  std::shared_ptr<Store> connect(std::uint16_t port, milliseconds timeout) const {
    return connect_tcp_store({.host = s_.at.host,
                              .port = port,
                              .connect_timeout = timeout,
                              .reply_timeout = s_.reply_timeout,
                              .fence = s_.fence});
  }

  void try_port(std::uint16_t port, milliseconds patience, FoundStore& found) {
    try {
      auto store = connect(port, patience);
      store->wait({key()}, patience);
      found.store = std::move(store), found.port = port;
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::system) throw;  // A limit of this process.
      last_ = error.text();
    }
  }

  const StoreSearch& s_;
  std::string job_;
  std::uint64_t place_;
  std::string last_ = "not tried";
};

// Throws Error, naming host and ports: system if none is free, unreachable if the others do not
// find the store before the deadline.
FoundStore find_store(const StoreSearch& search) {
  Search ports(search);
  return search.hosts ? ports.host() : ports.look_for();
}

// One attempt to join: the state that the steps below share.
class Joiner {
 public:
  Joiner(const Plan& plan, milliseconds timeout, Kin kin)
      : plan_(plan),
        kin_(std::move(kin)),
        host_(plan.host.empty() ? host_name() : plan.host),
        deadline_(deadline_after(timeout)),
        rank_(plan.identity.rank),
        size_(plan.identity.world_size),
        // A restarted worker must not read what its predecessor wrote.
        prefix_("ddprun/" + std::to_string(plan.identity.restart_count) + plan.prefix) {}

  Joined run();
  void withdraw(const Error& error) noexcept;

 private:
  void open_store();
  Table meet();
  Table decide_for(const std::vector<std::string>& statements);
  void connect(const Table& table);
  Attachment share_control(const Table& table, const std::vector<int>& mates);
  Attachment watch(const Table& table, const std::vector<int>& mates);
  bool agree_on_shm(const Attachment& mine);
  std::unique_ptr<GlooBackend> connect_gloo(const Table& table);
  std::unique_ptr<HostBackend> connect_nccl(const Table& table);
  Introduction hello() const;
  milliseconds left() const { return left_until(deadline_); }
  [[noreturn]] void fail(ErrorKind kind, int peer, const std::string& text) const {
    throw Error(kind, {.operation = kJoining, .peer = peer}, text);
  }

  const Plan& plan_;
  const Kin kin_;
  const std::string host_;
  const Clock::time_point deadline_;
  const int rank_;
  const int size_;
  const std::string prefix_;
  Joined joined_;
  std::unique_ptr<Store> keys_;  // The store with our prefix.
  std::unique_ptr<Meeting> meeting_;
  std::shared_ptr<Roster> roster_ = std::make_shared<Roster>();
  std::shared_ptr<SegmentSource> segments_ = std::make_shared<MemfdSource>();
  OfferedSegment offered_;  // The segment of the first rank of each host, until all have mapped it.
  std::shared_ptr<Segment> control_;
  std::vector<UniqueFd> held_;  // The processes of the ranks here.
};

Joined Joiner::run() {
  joined_.identity = plan_.identity;
  open_store();
  roster_->rank = rank_;
  roster_->job_ranks = plan_.job_ranks;
  roster_->shown_ranks = plan_.shown_ranks;
  if (size_ == 1) {
    roster_->hosts = {host_};
    joined_.backend = std::make_unique<SelfBackend>(roster_);
    if (plan_.backend == "nccl") joined_.backend = connect_nccl({});
  } else {
    keys_ = with_prefix(*joined_.store, prefix_);
    meeting_ = std::make_unique<Meeting>(*keys_, roster_, size_, deadline_);
    const Table table = meet();
    for (const Introduction& hello : table.hellos) roster_->hosts.push_back(hello.host);
    if (!plan_.local_rank_known) {
      const LocalPlace place = local_place(table.hellos, rank_);
      joined_.identity.local_rank = place.rank;
      joined_.identity.local_world_size = place.size;
    }
    connect(table);
  }
  joined_.roster = roster_;
  return std::move(joined_);
}

// Ends the attempt of all ranks if only this rank has met the error, such as a limit of its
// process. If this rank cannot open its own store connection, it uses that of the parent group. Not
// used for errors that a next attempt with the same keys may avoid (join_anew in group_create.cc).
void Joiner::withdraw(const Error& error) noexcept {
  const bool unreachable = error.kind() == ErrorKind::unreachable && kin_.store;
  if (size_ == 1 || (error.kind() != ErrorKind::system && !unreachable)) return;
  if (meeting_ && meeting_->failed_for_all()) return;  // Rank 0 has answered which rank it was.
  Store* store = joined_.store ? joined_.store.get() : kin_.store.get();
  if (!store) return;
  try {
    const Error::Where& where = error.where();
    const std::string subject =
        "rank " + std::to_string(roster_->shown(rank_)) + " on " + host_ + " cannot join: ";
    const std::string doing = where.operation.empty() ? "" : where.operation + ": ";
    Meeting::withdraw(*with_prefix(*store, prefix_), rank_,
                      Error(error.kind(), {.peer = rank_}, subject + doing + error.text()));
  } catch (const std::exception&) {  // Without a store, the others notice the end of this rank.
  }
}

void Joiner::open_store() {
  const Rendezvous& at = joined_.rendezvous = plan_.rendezvous;
  switch (at.kind) {
    case Rendezvous::Kind::kAlone:
      joined_.store = kin_.store ? kin_.store : std::make_shared<LocalStore>();
      return;
    case Rendezvous::Kind::kFile: joined_.store = fenced_file(at.path, kin_.fence); return;
    case Rendezvous::Kind::kGiven: joined_.store = fenced(*kin_.store, kin_.fence); return;
    case Rendezvous::Kind::kTcp: break;
  }
  const bool hosts = at.hosted_by_rank_0 && rank_ == 0;
  if (at.is_searched && at.port == 0) {
    FoundStore found = find_store({.at = at,
                                   .hosts = hosts,
                                   .ports = plan_.ports,
                                   .prefix = prefix_,
                                   .reply_timeout = kReplyTimeout,
                                   .deadline = deadline_,
                                   .fence = kin_.fence});
    joined_.store_host = std::move(found.host);
    joined_.store = std::move(found.store);
    joined_.rendezvous.port = found.port;
    return;
  }
  if (hosts) {
    joined_.store_host = std::make_shared<StoreHost>(at.host, at.port, deadline_);
  }
  joined_.store = connect_tcp_store({.host = at.host,
                                     .port = at.port,
                                     .connect_timeout = left(),
                                     .reply_timeout = kReplyTimeout,
                                     .fence = kin_.fence});
}

Introduction Joiner::hello() const {
  Introduction mine{.host = host_,
                    .domain = memory_domain(host_),
                    .network = network_domain(),
                    .pid = 0,
                    .address = {},
                    .backend = plan_.backend};
  mine.pid = static_cast<std::int32_t>(::getpid());
  const bool has_target =
      plan_.rendezvous.kind != Rendezvous::Kind::kFile && !plan_.rendezvous.host.empty();
  mine.address = plan_.address;
  if (mine.address.empty() && has_target) {
    mine.address = local_address_towards(plan_.rendezvous.host, deadline_);
  }
  return mine;
}

Table Joiner::meet() {
  if (keys_->add("seat/" + std::to_string(rank_), 1) != 1) {
    throw Error(
        ErrorKind::mismatch, {.operation = kTakingSeat, .peer = rank_},
        "another worker has joined as rank " + std::to_string(rank_) +
            " before; was init() called twice, while the first group still exists or after it "
            "failed? Are two started with the same RANK, or is the store of an earlier run?");
  }
  const std::string answer =
      meeting_->hold("hello", encode(hello()),
                     [this](const auto& statements) { return encode(decide_for(statements)); });
  const auto table = decode_table(answer);
  if (!table) {
    fail(ErrorKind::mismatch, 0,
         "rank 0 is of another version of ddprun: " + table.error().context);
  }
  if (static_cast<int>(table->hellos.size()) != size_) {
    fail(ErrorKind::mismatch, 0,
         "rank 0 has a world of " + std::to_string(table->hellos.size()) + ", this rank one of " +
             std::to_string(size_));
  }
  return *table;
}

// Rank 0's part.
Table Joiner::decide_for(const std::vector<std::string>& statements) {
  Table table = decide(statements);
  if (!table.error.empty()) fail(ErrorKind::mismatch, table.culprit, table.error);
  return table;
}

void Joiner::connect(const Table& table) {
  if (table.backend == "gloo") return void(joined_.backend = connect_gloo(table));
  if (table.backend == "nccl") return void(joined_.backend = connect_nccl(table));
  const auto hosts = hosts_of(table.hellos);
  const auto here = std::find_if(hosts.begin(), hosts.end(), [&](const std::vector<int>& host) {
    return std::find(host.begin(), host.end(), rank_) != host.end();
  });
  Attachment attachment = share_control(table, *here);
  if (attachment.problem.empty()) attachment = watch(table, *here);
  if (!agree_on_shm(attachment)) {
    joined_.backend = connect_gloo(table);
    return;
  }
  offered_.fd.reset();
  auto team = std::make_unique<ShmTeam>(roster_, *here, std::move(control_), std::move(held_));
  auto shm = std::make_unique<ShmBackend>(std::move(team), segments_);
  if (table.backend == "shm") {
    joined_.backend = std::move(shm);
    return;
  }
  joined_.backend =
      std::make_unique<CpuBackend>(roster_, hosts, std::move(shm), connect_gloo(table));
}

// The first rank of this host creates the control segment, the others open it. The first rank keeps
// the segment open until all have answered, unless it ends.
Attachment Joiner::share_control(const Table& table, const std::vector<int>& mates) {
  constexpr milliseconds kEnding{1000};  // From the loss of its files to the end of a process.
  const int first = mates.front();
  const std::string key = "segment/" + std::to_string(first);
  Attachment attachment;
  try {
    if (rank_ == first) {
      offered_ = segments_->create(ShmTeam::control_bytes(static_cast<int>(mates.size())));
      control_ = offered_.segment;
    } else {
      const auto name = decode_segment(keys_->get(key, left()));
      if (!name) return {"rank " + std::to_string(first) + " has no memory to share"};
      control_ = segments_->open(*name);
    }
  } catch (const Error&) {
    throw;  // An error of the store.
  } catch (const std::system_error& failure) {
    attachment.problem = failure.what();
  }
  if (rank_ == first) {
    keys_->set(key, attachment.problem.empty() ? encode(offered_.name) : "");
  } else if (!attachment.problem.empty() && has_ended(pid_of(table, first), kEnding)) {
    attachment.ended = first;
  }
  return attachment;
}

// Watches the other ranks of this host, so that the death of one is noticed.
Attachment Joiner::watch(const Table& table, const std::vector<int>& mates) {
  std::vector<std::int32_t> pids;
  for (const int r : mates) pids.push_back(pid_of(table, r));
  Attachment attachment{hold_processes(pids, held_)};
  if (attachment.problem.empty()) return attachment;
  const std::size_t last = held_.size() - 1;
  if (has_ended(pids[last], milliseconds(0))) attachment.ended = mates[last];
  return attachment;
}

// All ranks use shared memory, or none does. As every rank has answered while alive, the processes
// that are held are the right ones.
bool Joiner::agree_on_shm(const Attachment& mine) {
  const auto judge = [this](const std::vector<std::string>& statements) {
    const Sharing sharing = decide_sharing(statements, plan_.backend);
    if (!sharing.error.empty()) fail(sharing.kind, sharing.culprit, sharing.error);
    return std::string(sharing.shares ? "shm" : "gloo");
  };
  return meeting_->hold("attached", encode(mine), judge) == "shm";
}

std::unique_ptr<GlooBackend> Joiner::connect_gloo(const Table& table) {
  GlooOptions options;
  options.interface = plan_.interface;
  if (options.interface.empty())
    options.address = address_for_peers(table.hellos, rank_, deadline_);
  options.ports = plan_.ports;
  options.relay = plan_.relay;
  for (const Introduction& hello : table.hellos) options.networks.push_back(hello.network);
  options.store = joined_.store.get();
  options.prefix = prefix_ + "/gloo";
  options.deadline = deadline_, options.fence = kin_.fence;
  options.reopen_store = reopening(joined_.rendezvous, joined_.store);
  options.may_probe = plan_.rendezvous.kind != Rendezvous::Kind::kGiven;
  std::unique_ptr<GlooBackend> backend;
  std::string error;
  try {
    backend = std::make_unique<GlooBackend>(roster_, options);
  } catch (const std::exception& e) {
    error = as_error(e, {}).text();
  }
  // Gloo does not notice a connection that was closed before Gloo looked at it: a rank that is done
  // and leaves early would leave a slower one waiting. So no rank begins before all are connected.
  meeting_->hold("connected", error, [this](const auto& errors) {
    int victim = -1;
    for (int r = 0; r < size_; ++r) {
      const std::string& why = errors[static_cast<std::size_t>(r)];
      if (why == kPeerCannotConnect) victim = r;
      if (why.empty() || why == kPeerCannotConnect) continue;
      fail(ErrorKind::unreachable, r, roster_->name(r) + " cannot connect: " + why);
    }
    if (victim >= 0) fail(ErrorKind::unreachable, victim, kPeerCannotConnect);
    return std::string();
  });
  return backend;
}

// In a world of one, `table` is empty.
std::unique_ptr<HostBackend> Joiner::connect_nccl(const Table& table) {
  NcclJoinOptions options{roster_,     joined_.identity, plan_.gpu, {},
                          keys_.get(), meeting_.get(),   deadline_, kin_.siblings,
                          kin_.nccl,   kin_.excluded,    kin_.fence};
  for (const Introduction& hello : table.hellos) options.domains.push_back(hello.domain);
  return join_nccl(options, size_ > 1 ? connect_gloo(table) : nullptr);
}

}  // namespace

Joined join(const Plan& plan, milliseconds timeout, const Kin& kin) {
  Joiner joiner(plan, timeout, kin);
  try {
    return joiner.run();
  } catch (const std::exception& failure) {
    const Error error = as_error(failure, {.operation = kJoining});
    joiner.withdraw(error);
    Error::Where where = error.where();
    if (where.rank >= 0) throw error;
    where.rank = plan.identity.rank;
    where.job_rank = plan.rank_in_job();
    where.host = plan.host.empty() ? host_name() : plan.host;
    throw Error(error.kind(), where, error.text());
  }
}

}  // namespace ddprun::worker_sdk
