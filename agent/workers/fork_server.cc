#include "agent/workers/fork_server.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "agent/process/proc_file.h"
#include "agent/process/roster.h"
#include "common/assert.h"
#include "common/system/child_process.h"
#include "common/system/descriptors.h"

namespace ddprun::agent {
namespace {

using namespace std::chrono_literals;
using boost::asio::posix::stream_descriptor;
using Clock = std::chrono::steady_clock;

// A fork of a large process takes some ten milliseconds. A server that is slower stands still, or
// computes and competes with others for a processor: then it gets more time.
constexpr Milliseconds kForkLimit = 1s, kBusyForkLimit = 5s;
constexpr Milliseconds kEndLimit = 2s;  // From SIGKILL to its end.
constexpr Milliseconds kSaveLimit = 10s;

constexpr const char* kModulesVariable = "DDPRUN_PRELOAD";
constexpr const char* kRanksVariable = "DDPRUN_PRELOAD_RANKS";
constexpr const char* kKeepVariable = "DDPRUN_PRELOAD_KEEP";

Failure cold(const std::string& why) { return {Errc::kNotFound, why}; }

// A script, such as the shims of version managers, may add flags, by which the server would be the
// program itself.
std::string interpreter_objection(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  std::array<char, 4> head{};
  if (!file || ::read(file.get(), head.data(), head.size()) != 4) return path + " cannot be read";
  const bool is_program = std::memcmp(head.data(), "\177ELF", 4) == 0;
  if (is_program) return "";
  return path + " is a script that starts another interpreter: name that in PYTHON_EXEC";
}

// What sets it is read when a library is loaded, and by OpenMP together with the processors.
bool places_threads(const std::vector<std::string>& environment) {
  constexpr std::array<std::string_view, 4> kNames = {
      "OMP_PROC_BIND=", "OMP_PLACES=", "GOMP_CPU_AFFINITY=", "KMP_AFFINITY="};
  return std::ranges::any_of(environment, [&](const std::string& variable) {
    return std::ranges::any_of(kNames,
                               [&](std::string_view name) { return variable.starts_with(name); });
  });
}

bool has_thread_count(const std::vector<std::string>& environment) {
  return std::ranges::any_of(environment, [](const std::string& variable) {
    return variable.starts_with("OMP_NUM_THREADS=");
  });
}

bool computes(int pid) {
  const char state = read_proc_stat(pid).state;
  return state == 'R' || state == 'D';
}

// Its own, or the end that it takes from the caller, or ours.
int end_of(const UniqueFd& end, int given, int own) {
  if (end) return end.get();
  return given >= 0 ? given : own;
}

Result<void> join_cgroup(int pid, int cgroup) {
  const UniqueFd members(::openat(cgroup, "cgroup.procs", O_WRONLY | O_CLOEXEC));
  const std::string text = std::to_string(pid);
  const bool moved = members && ::write(members.get(), text.data(), text.size()) > 0;
  return moved ? Result<void>() : errno_failure("moving a worker into its cgroup");
}

Result<void> bind(int pid, const std::vector<int>& processors) {
  if (processors.empty()) return {};
  const int highest = *std::ranges::max_element(processors);
  cpu_set_t* const set = CPU_ALLOC(highest + 1);
  const std::size_t bytes = CPU_ALLOC_SIZE(highest + 1);
  CPU_ZERO_S(bytes, set);
  for (const int cpu : processors) CPU_SET_S(static_cast<std::size_t>(cpu), bytes, set);
  const int outcome = ::sched_setaffinity(pid, bytes, set);
  CPU_FREE(set);
  return outcome == 0 ? Result<void>() : errno_failure("binding a worker to processors");
}

}  // namespace

ForkServer::ForkServer(boost::asio::io_context& loop) : loop_(loop), channel_(loop) {}

ForkServer::~ForkServer() {
  on_settled = nullptr;
  end("the agent ends");
}

Result<WorkerEnds> ForkServer::prepare(WorkerSpec& spec, const std::string& modules,
                                       const KeepOrder& keep) {
  DDPRUN_ASSERT(!modules.empty());
  on_settled = nullptr;
  end("it is renewed");
  state_ = State::kAbsent;
  resumed_ = tries_saved_ = false;
  why_.clear();
  if (!is_python_command(spec.argv)) return cold("the program is not run by Python");
  if (std::string why = interpreter_objection(spec.argv[0]); !why.empty()) return cold(why);
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    return errno_failure("making a channel to the fork server");
  }
  channel_.assign(ends[0]);
  WorkerEnds theirs;
  theirs.link_end = UniqueFd(ends[1]);
  // What it prints is that of its modules, and it keeps that for its workers.
  theirs.stdout_end = UniqueFd(::open("/dev/null", O_WRONLY | O_CLOEXEC));
  theirs.stderr_end = UniqueFd(::open("/dev/null", O_WRONLY | O_CLOEXEC));
  environment_ = spec.environment;
  std::erase_if(spec.environment, [](const std::string& variable) {
    const std::string_view name = std::string_view(variable).substr(0, variable.find('='));
    return is_of_rank(name) && !name.starts_with("DDPRUN_");  // Marks, and what is not a worker's.
  });
  spec.environment.push_back(kModulesVariable + ("=" + modules));
  spec.environment.push_back(kRanksVariable + ("=" + variables_of_ranks()));
  if (!keep.wanted) return theirs;
  // It takes the file before it sends anything.
  tries_saved_ = keep.saved >= 0 && send_file("kept", keep.saved);
  spec.environment.push_back(kKeepVariable + std::string(tries_saved_ ? "=kept" : "=new"));
  return theirs;
}

void ForkServer::started(const WorkerSpec& spec, int pid) {
  pid_ = pid;
  argv_ = spec.argv;
  state_ = State::kLoading;
  await_reply();
}

// Readable at the first reply, and at its end; replies to requests are read by fork().
void ForkServer::await_reply() {
  channel_.async_wait(stream_descriptor::wait_read, [this](const boost::system::error_code& ec) {
    if (ec || state_ == State::kGone) return;
    pollfd readable{channel_.native_handle(), POLLIN, 0};
    if (::poll(&readable, 1, 0) == 0) return await_reply();  // fork() has read what came.
    const auto reply = reply_within(0s);
    if (!reply) return end(reply.error().context);
    take(*reply);
  });
}

// What it sends without a request.
void ForkServer::take(const ForkReply& reply) {
  using Kind = ForkReply::Kind;
  if (reply.kind == Kind::kRefused) {
    tries_saved_ = false;  // That is about the program.
    return end(reply.text);
  }
  if (reply.kind == Kind::kFailed) return end(reply.text);
  const bool loads = state_ == State::kLoading;
  if (loads && reply.kind == Kind::kAbsent) {
    if (on_absent) on_absent(reply.text);
    return await_reply();
  }
  const bool is_unfit = loads && tries_saved_ && reply.kind == Kind::kUnfit;
  const bool is_resumed = loads && tries_saved_ && reply.kind == Kind::kResumed;
  const bool is_ready = loads && reply.kind == Kind::kReady;
  if (!is_unfit && !is_resumed && !is_ready) {
    return end("the fork server has sent a message that was not expected");
  }
  tries_saved_ = false;
  resumed_ = is_resumed;
  if (is_unfit && on_unfit) on_unfit(reply.text);
  if (!is_unfit) settle(State::kReady, reply.text);
  await_reply();
}

void ForkServer::settle(State state, std::string why) {
  const bool news = state_ == State::kLoading;
  state_ = state;
  why_ = std::move(why);
  if (news && on_settled) std::exchange(on_settled, nullptr)();
}

void ForkServer::check_stopped() {
  if (pid_ == 0) return;
  siginfo_t info{};
  const int outcome = ::waitid(P_PID, static_cast<id_t>(pid_), &info, WSTOPPED | WNOHANG | WNOWAIT);
  if (outcome != 0 || info.si_pid == 0) return;
  const char* name = ::sigabbrev_np(info.si_status);
  end("the fork server was stopped by SIG" + std::string(name ? name : "?"));
}

void ForkServer::end(const std::string& why) {
  if (pid_ == 0) return;
  ::kill(pid_, SIGKILL);  // Not reaped yet, its number is its own.
  int status = 0;
  reap_within(pid_, kEndLimit, status);
  boost::system::error_code ignored;
  channel_.close(ignored);
  const int pid = std::exchange(pid_, 0);
  if (on_reaped) on_reaped(pid);
  const bool failed = std::exchange(tries_saved_, false) && on_settled;
  if (failed && on_unfit) on_unfit("the process that was to become it has failed: " + why);
  settle(State::kGone, why);
}

std::string ForkServer::objection() const {
  if (state_ == State::kReady) return "";
  if (state_ == State::kLoading) return "its modules are still being imported by the fork server";
  return why_.empty() ? "nothing is known yet of what it imports" : why_;
}

std::string ForkServer::objection(const WorkerSpec& spec) const {
  if (std::string why = objection(); !why.empty()) return why;
  if (spec.argv.size() != argv_.size()) return "its command is another one";
  std::string difference = environment_difference(environment_, spec.environment);
  if (!difference.empty()) return difference;
  const bool bound = !spec.processors.empty();
  if (bound && (places_threads(spec.environment) || !has_thread_count(spec.environment))) {
    return "libraries place their threads on its processors when they are loaded";
  }
  return "";
}

Result<ForkReply> ForkServer::reply_to_fork() {
  for (TimePoint begun = Clock::now();;) {
    auto reply = reply_within(kForkLimit);
    if (reply || reply.error().code != Errc::kPeerSilent) return reply;
    const bool busy = computes(pid_) || std::ranges::any_of(children_of(pid_), computes);
    if (!busy || Clock::now() - begun >= kBusyForkLimit) return reply;
  }
}

Result<ForkReply> ForkServer::reply_within(Duration limit) {
  const TimePoint until = Clock::now() + limit;
  std::array<char, kForkReplyMax + 1> packet;
  for (;;) {
    const int channel = channel_.native_handle();
    const ssize_t got = ::recv(channel, packet.data(), packet.size(), MSG_DONTWAIT);
    if (got == 0) return cold("the fork server has ended");
    if (got > 0) return decode_fork_reply({packet.data(), static_cast<std::size_t>(got)});
    if (errno != EAGAIN && errno != EINTR) return errno_failure("reading from the fork server");
    const auto left = std::chrono::ceil<Milliseconds>(until - Clock::now());
    if (left.count() <= 0) return Failure{Errc::kPeerSilent, "the fork server does not answer"};
    pollfd readable{channel, POLLIN, 0};
    ::poll(&readable, 1, static_cast<int>(left.count()));
  }
}

Result<SpawnedProcess> ForkServer::fork(const WorkerSpec& spec, const WorkerEnds& ends) {
  if (const std::string why = objection(spec); !why.empty()) return cold(why);
  int pipe_ends[2];
  if (::pipe2(pipe_ends, O_CLOEXEC) != 0) return errno_failure("making a pipe to a worker");
  const UniqueFd waits(pipe_ends[0]), go(pipe_ends[1]);
  const auto packet = encode({++requests_, ::getpid(), spec.argv, spec.environment});
  if (!packet) return packet.error();
  std::vector<int> descriptors = {waits.get(), end_of(ends.stdout_end, spec.stdout_fd, 1),
                                  end_of(ends.stderr_end, spec.stderr_fd, 2)};
  const int link = end_of(ends.link_end, spec.link_fd, -1);
  if (link >= 0) descriptors.push_back(link);
  const std::uint64_t before = ticks_since_boot();
  const auto sent = send_descriptors(channel_.native_handle(), *packet, descriptors,
                                     "sending a request to the fork server");
  const auto reply = sent ? reply_to_fork() : Result<ForkReply>(sent.error());
  // An answer that comes late would be taken for that to the next request: no second try.
  const auto give_up = [this](const std::string& why) {
    end(why);
    return cold(why);
  };
  if (!reply) return give_up(reply.error().context);
  if (reply->kind == ForkReply::Kind::kFailed) return give_up(reply->text);
  if (reply->number != requests_) return give_up("the fork server has answered another request");
  if (reply->kind == ForkReply::Kind::kCold) return cold(reply->text);
  if (reply->kind != ForkReply::Kind::kForked)
    return give_up("the fork server has sent no process");
  auto worker = adopt(reply->pid, spec, before);
  if (!worker) return give_up(worker.error().context);
  if (::write(go.get(), "g", 1) != 1) return give_up("the worker has ended before it began");
  return worker;
}

bool ForkServer::send_file(const std::string& kind, int file) {
  const std::array files = {file};
  const auto sent = send_descriptors(channel_.native_handle(), kind + '\0', files,
                                     "sending a file to the fork server");
  return !sent.has_error();
}

Result<int> ForkServer::save(int file) {
  if (const std::string why = objection(); !why.empty()) return cold(why);
  const auto give_up = [this](const std::string& why) {
    end(why);
    return cold(why);
  };
  if (!send_file("keep", file)) return give_up("the fork server takes no requests");
  const auto reply = reply_within(kSaveLimit);
  if (!reply) return give_up(reply.error().context);
  if (reply->kind == ForkReply::Kind::kFailed) return give_up(reply->text);
  if (reply->kind == ForkReply::Kind::kUnfit) return cold(reply->text);
  if (reply->kind == ForkReply::Kind::kSaved) return std::atoi(reply->text.c_str());
  return give_up("the fork server has sent a message that was not expected");
}

// What child_start.cc does as a worker starts, for one that is there already and waits.
Result<SpawnedProcess> ForkServer::adopt(int pid, const WorkerSpec& spec,
                                         std::uint64_t before) const {
  UniqueFd pidfd = open_pidfd(pid);
  if (!pidfd && has_pidfds()) return cold("its worker has ended before it began");
  if (read_proc_stat(pid).parent != ::getpid() || pid == pid_) {
    return cold("its worker did not become a child of the agent");
  }
  if (spec.roster_place) {
    spec.roster_place->pid = pid;
    WorkerRoster::note_start(spec.roster_place, {before, ticks_since_boot()});
  }
  const auto joined = spec.cgroup_fd >= 0 ? join_cgroup(pid, spec.cgroup_fd) : Result<void>();
  const auto bound = joined ? bind(pid, spec.processors) : joined;
  if (bound) return SpawnedProcess{pid, std::move(pidfd)};
  if (spec.roster_place) spec.roster_place->pid = 0;
  return bound.error();
}

}  // namespace ddprun::agent
