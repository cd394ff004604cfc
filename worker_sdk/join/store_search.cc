#include "worker_sdk/join/store_search.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "common/checksum.h"
#include "common/scheduler/slurm_step.h"
#include "worker_sdk/base/retry.h"
#include "worker_sdk/base/socket_io.h"
#include "worker_sdk/store/tcp_store.h"

namespace ddprun::worker_sdk {
namespace {

using std::chrono::milliseconds;

// For one port, doubled with each pass over all ports: a host that is far away, or busy, gets more
// time, and a rank 0 that starts later than the others is found soon.
constexpr milliseconds kPatience{200};
constexpr milliseconds kPatienceMax{5000};
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
    milliseconds patience = kPatience;
    retry_until(s_.deadline, [&] {
      for (int i = 0; i < port_count() && !found.store && !is_fenced(); ++i) {
        try_port(port(i), std::min(patience, left_until(s_.deadline)), found);
      }
      patience = std::min(patience * 2, kPatienceMax);
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

}  // namespace

FoundStore find_store(const StoreSearch& search) {
  Search ports(search);
  return search.hosts ? ports.host() : ports.look_for();
}

}  // namespace ddprun::worker_sdk
