// Ranks as processes that join in each of the ways a launcher, or none, may offer.

#include <netinet/in.h>

#include <catch2/catch.hpp>

#include "common/scheduler/slurm_step.h"
#include "ddprun/store.h"
#include "tests/support/forked_ranks.h"
#include "worker_sdk/base/locality.h"
#include "worker_sdk/join/membership.h"
#include "worker_sdk/store/store_host.h"

namespace ddprun {
namespace {

using namespace std::chrono_literals;
using test::ForkedRanks;
using test::Report;
using worker_sdk::StoreHost;

using Environment = std::vector<std::pair<std::string, std::string>>;

// A port at which probably no process listens.
std::uint16_t unused_port() {
  return StoreHost("127.0.0.1", 0, worker_sdk::Clock::now() + 10s).port();
}

// The agent's store, in a process of its own: a process that forks ranks must not have threads.
class AgentStore {
 public:
  AgentStore() {
    int ends[2];
    REQUIRE(::pipe(ends) == 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      const StoreHost host("127.0.0.1", 0, worker_sdk::Clock::now() + 10s);
      const std::uint16_t port = host.port();
      if (::write(ends[1], &port, sizeof port) != sizeof port) ::_exit(1);
      for (;;) ::pause();
    }
    ::close(ends[1]);
    CHECK(::read(ends[0], &port_, sizeof port_) == sizeof port_);
    ::close(ends[0]);
  }
  ~AgentStore() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  AgentStore(const AgentStore&) = delete;

  std::uint16_t port() const { return port_; }

 private:
  pid_t pid_ = -1;
  std::uint16_t port_ = 0;
};

// What a launcher would set, then `more`.
void set_environment(int rank, int world_size, std::uint16_t port, const Environment& more) {
  Environment all = {
      {"RANK", std::to_string(rank)},       {"WORLD_SIZE", std::to_string(world_size)},
      {"LOCAL_RANK", std::to_string(rank)}, {"LOCAL_WORLD_SIZE", std::to_string(world_size)},
      {"MASTER_ADDR", "127.0.0.1"},         {"MASTER_PORT", std::to_string(port)}};
  all.insert(all.end(), more.begin(), more.end());
  for (const auto& [name, value] : all) ::setenv(name.c_str(), value.c_str(), 1);
}

InitOptions hasty() {
  InitOptions options;
  options.init_timeout = 50s;
  options.op_timeout = 50s;
  return options;
}

// The sum of ranks 0..n-1 is right, and the store works.
void use(ProcessGroup& group, const std::function<void()>& ready) {
  float sum = static_cast<float>(group.rank());
  group.all_reduce(buffer(&sum, 1));
  const float want = static_cast<float>(group.world_size() * (group.world_size() - 1) / 2);
  group.store().set("hello from " + std::to_string(group.rank()), "x");
  for (int r = 0; r < group.world_size(); ++r) {
    (void)group.store().get("hello from " + std::to_string(r), 50s);
  }
  if (sum == want) ready();
  group.barrier();  // Rank 0 may host the store.
}

void check_all_well(ForkedRanks& ranks, int n) {
  for (int r = 0; r < n; ++r) CHECK(ranks.wait_ready(r));
  for (int r = 0; r < n; ++r) {
    const Report report = ranks.report(r);
    INFO(report.text);
    CHECK(report.came);
    CHECK_FALSE(report.threw);
  }
}

TEST_CASE("Joining: env:// with the agent's store, on both backends, and again after a restart",
          "[joining]") {
  for (const char* backend : {"shm", "gloo"}) {
    INFO(backend);
    const AgentStore agent;
    for (const char* restart : {"0", "1"}) {
      ForkedRanks ranks(
          3,
          [&](int rank) {
            set_environment(rank, 3, agent.port(),
                            {{"TORCHELASTIC_USE_AGENT_STORE", "True"},
                             {"TORCHELASTIC_RESTART_COUNT", restart},
                             {"DDPRUN_BACKEND", backend}});
            return hasty();
          },
          [&](ProcessGroup& group, const auto& ready) {
            if (group.backend() == backend && group.local_rank() == group.rank()) use(group, ready);
          });
      check_all_well(ranks, 3);
    }
  }
}

TEST_CASE("Joining: env:// where rank 0 has to host the store", "[joining]") {
  const std::uint16_t port = unused_port();
  ForkedRanks ranks(
      3,
      [&](int rank) {
        set_environment(rank, 3, port, {});
        return hasty();
      },
      use);
  check_all_well(ranks, 3);
}

// A socket that is listening at the first port of a job, and never answers.
class TakenPort {
 public:
  explicit TakenPort(std::uint16_t port) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const bool is_bound =
        ::bind(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
    if (is_bound) ::listen(socket_.get(), 64);  // Else it is taken anyway.
  }

 private:
  UniqueFd socket_;
};

void set_srun(int rank, int tasks, int job) {
  const Environment all = {{"SLURM_JOB_ID", std::to_string(job)},
                           {"SLURM_STEP_ID", "0"},
                           {"SLURM_PROCID", std::to_string(rank)},
                           {"SLURM_LOCALID", std::to_string(rank)},
                           {"SLURM_NODEID", "0"},
                           {"SLURM_STEP_NUM_TASKS", std::to_string(tasks)},
                           {"SLURM_STEP_NUM_NODES", "1"},
                           {"SLURM_STEP_NODELIST", "node1"},
                           {"SLURM_STEP_TASKS_PER_NODE", std::to_string(tasks)}};
  for (const auto& [name, value] : all) ::setenv(name.c_str(), value.c_str(), 1);
}

TEST_CASE("Joining: ranks that srun started, where the job's first port is taken", "[joining]") {
  const int job = ::getpid();
  const auto place = scheduler::place_of_step(static_cast<std::uint64_t>(job), 0);
  const TakenPort taken(scheduler::meeting_port(place, 0));
  for (const char* backend : {"shm", "gloo"}) {
    INFO(backend);
    ForkedRanks ranks(
        3,
        [&](int rank) {
          set_srun(rank, 3, job);
          InitOptions options = hasty();
          options.backend = backend;
          return options;
        },
        [&](ProcessGroup& group, const auto& ready) {
          const auto half = group.split(group.rank() % 2);
          if (group.world_size() == 3 && group.local_rank() == group.rank()) use(group, ready);
        });
    check_all_well(ranks, 3);
  }
}

TEST_CASE("Joining: two jobs with the same ports do not meet each other", "[joining]") {
  const int job = ::getpid() + 1, steps_apart = 200;  // Of 16 ports each, in 3,200.
  ForkedRanks ranks(
      4,
      [&](int rank) {
        set_srun(rank % 2, 2, rank < 2 ? job : job + steps_apart);
        return hasty();
      },
      [&](ProcessGroup& group, const auto& ready) {
        if (group.world_size() == 2) use(group, ready);
      });
  check_all_well(ranks, 4);
}

TEST_CASE("Joining: without its rank 0 a task of srun names the ports that it has tried",
          "[joining]") {
  ForkedRanks ranks(
      1,
      [&](int) {
        set_srun(1, 2, ::getpid());
        InitOptions options = hasty();
        options.init_timeout = 500ms;
        return options;
      },
      use);
  const Report report = ranks.report(0);
  INFO(report.text);
  CHECK(report.threw);
  CHECK(report.kind == ErrorKind::unreachable);
  CHECK(report.text.find("no rank 0 of slurm-") != std::string::npos);
  CHECK(report.text.find("MASTER_ADDR and MASTER_PORT") != std::string::npos);
}

TEST_CASE("Joining: tcp:// and file:// without any environment", "[joining]") {
  const test::TemporaryDirectory directory;
  for (const std::string& method :
       {"tcp://127.0.0.1:" + std::to_string(unused_port()),
        "tcp://localhost:" + std::to_string(unused_port()), "file://" + (directory / "store")}) {
    INFO(method);
    ForkedRanks ranks(
        2,
        [&](int rank) {
          InitOptions options = hasty();
          options.init_method = method;
          options.rank = rank;
          options.world_size = 2;
          options.backend = "gloo";
          return options;
        },
        use);
    check_all_well(ranks, 2);
  }
}

TEST_CASE("Joining: a worker that dies while all join is named by the others", "[joining]") {
  const AgentStore agent;
  ForkedRanks ranks(
      3,
      [&](int rank) {
        if (rank == 1) ::_exit(1);
        set_environment(rank, 3, agent.port(), {{"TORCHELASTIC_USE_AGENT_STORE", "True"}});
        InitOptions options = hasty();
        options.init_timeout = 500ms;
        return options;
      },
      use);
  for (const int r : {0, 2}) {
    const Report report = ranks.report(r);
    INFO(report.text);
    CHECK(report.threw);
    CHECK(report.kind == ErrorKind::timed_out);
    CHECK(report.peer == 1);
    CHECK(report.text.find("rank " + std::to_string(r) + " on ") != std::string::npos);
  }
}

// A rank that the test plays: it sends all that a rank sends while it joins, and its process is
// gone.
class PlayedRank {
 public:
  PlayedRank(const std::string& store, int rank, const std::string& host, const char* backend)
      : file_(open_file_store(store)), keys_(with_prefix(*file_, "ddprun/0")), rank_(rank) {
    const pid_t child = ::fork();
    if (child == 0) ::_exit(0);
    ::waitpid(child, nullptr, 0);
    write_key("hello",
              worker_sdk::encode(worker_sdk::Introduction{.host = host,
                                                          .domain = worker_sdk::memory_domain(host),
                                                          .network = worker_sdk::network_domain(),
                                                          .pid = child,
                                                          .address = "",
                                                          .backend = backend}));
    write_key("segment", worker_sdk::encode(worker_sdk::SegmentName{.pid = child, .fd = 3}));
    write_key("attached", worker_sdk::encode(worker_sdk::Attachment{}));
  }

 private:
  void write_key(const std::string& topic, const std::string& text) {
    keys_->set(topic + "/" + std::to_string(rank_), text);
  }
  std::unique_ptr<Store> file_, keys_;
  int rank_;
};

TEST_CASE("Joining: a worker that dies once it has answered is a lost peer", "[joining]") {
  struct Case {
    const char* backend;
    std::vector<std::string> hosts;  // By rank.
    int dead;
  };
  const Case cases[] = {
      {"shm", {"a", "a", "a"}, 1},   // Another finds no process to watch.
      {"auto", {"a", "a", "a"}, 2},  // It is no reason to do without shared memory.
      {"cpu", {"a", "b", "b"}, 1},   // The memory that it offered is gone.
  };
  for (const Case& c : cases) {
    CAPTURE(c.backend, c.dead);
    const test::TemporaryDirectory directory;
    const PlayedRank dead(directory / "store", c.dead, c.hosts[static_cast<std::size_t>(c.dead)],
                          c.backend);
    std::vector<int> living;
    for (int r = 0; r < 3; ++r) {
      if (r != c.dead) living.push_back(r);
    }
    ForkedRanks ranks(
        2,
        [&](int child) {
          InitOptions options = hasty();
          options.rank = living[static_cast<std::size_t>(child)];
          options.world_size = 3;
          options.init_method = "file://" + (directory / "store");
          options.host = c.hosts[static_cast<std::size_t>(options.rank)];
          options.backend = c.backend;
          return options;
        },
        use);
    for (int child = 0; child < 2; ++child) {
      const Report report = ranks.report(child);
      INFO(report.text);
      CHECK(report.threw);
      CHECK(report.kind == ErrorKind::peer_lost);
      CHECK(report.peer == c.dead);
      CHECK(report.text.find("ended before all had joined") != std::string::npos);
    }
  }
}

TEST_CASE("Joining: an agent's store that is not there is named, with rank and host", "[joining]") {
  const std::uint16_t port = unused_port();
  ForkedRanks ranks(
      2,
      [&](int rank) {
        set_environment(rank, 2, port, {{"TORCHELASTIC_USE_AGENT_STORE", "True"}});
        InitOptions options = hasty();
        options.init_timeout = 300ms;
        return options;
      },
      use);
  const Report report = ranks.report(1);
  INFO(report.text);
  CHECK(report.kind == ErrorKind::unreachable);
  CHECK(report.text.find("rank 1 on ") == 0);
  CHECK(report.text.find("127.0.0.1:" + std::to_string(port)) != std::string::npos);
}

}  // namespace
}  // namespace ddprun
