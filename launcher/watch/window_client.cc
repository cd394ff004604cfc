#include "launcher/watch/window_client.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cerrno>
#include <chrono>
#include <optional>

#include "agent/process/proc_file.h"
#include "common/assert.h"
#include "common/system/descriptors.h"
#include "common/text/display.h"
#include "common/text/words.h"
#include "common/time.h"

namespace ddprun::launcher {
namespace {

using Clock = std::chrono::steady_clock;
using boost::system::error_code;

constexpr Milliseconds kAnswerLimit{5'000};
constexpr Milliseconds kHaltedLimit{500};  // For a process that is stopped.
constexpr Milliseconds kPause{50};         // Before another attempt, and between reads of /proc.
constexpr std::size_t kAnswerBytesMax = std::size_t{64} << 20;

// The folder is opened by descriptor, as its path may be longer than an address.
Result<sockaddr_un> socket_address(const std::string& path, UniqueFd& folder) {
  const std::size_t slash = path.rfind('/');
  folder.reset(::open(path.substr(0, slash).c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!folder) return errno_failure("opening the folder of " + path);
  const std::string name =
      "/proc/self/fd/" + std::to_string(folder.get()) + "/" + path.substr(slash + 1);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  DDPRUN_ASSERT(name.size() < sizeof address.sun_path);
  name.copy(address.sun_path, name.size());
  return address;
}

int listener_of(int fd) {
  ucred peer{};
  socklen_t size = sizeof peer;
  return ::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 ? peer.pid : 0;
}

// One request to one agent. An agent that closes the connection has too many visitors, or ends: it
// is queried again until its time is over, or its socket refuses.
class Query : public std::enable_shared_from_this<Query> {
 public:
  using Done = std::function<void(AgentAnswer)>;

  Query(boost::asio::io_context& io, std::string path, const std::string& question, Done done)
      : answer_{std::move(path), 0, std::string()},
        question_(question + "\n"),
        socket_(io),
        pause_(io),
        began_(Clock::now()),
        done_(std::move(done)) {}

  void start() {
    attempt();
    check_clock();
  }
  void forget() {
    done_ = nullptr;
    close();
  }

 private:
  bool is_over() const { return !done_; }

  void attempt() {
    UniqueFd folder;
    const auto address = socket_address(answer_.path, folder);
    if (!address) return finish(address.error());
    UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!fd) return finish(errno_failure("making a socket"));
    if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&*address), sizeof *address) != 0) {
      // EAGAIN: the queue of connections to accept is full.
      if (errno == EAGAIN || errno == EINTR) return attempt_later();
      return finish(errno_failure("connecting to " + answer_.path));
    }
    answer_.pid = listener_of(fd.get());
    if (::send(fd.get(), question_.data(), question_.size(), MSG_NOSIGNAL) !=
        std::ssize(question_)) {
      return attempt_later();
    }
    text_.clear();
    socket_.assign(fd.release());
    read();
  }

  void attempt_later() {
    error_code ignored;
    socket_.close(ignored);
    again_at_ = Clock::now() + kPause;
  }

  void read() {
    socket_.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                       [self = shared_from_this()](error_code error) {
                         if (!error && !self->is_over()) self->take();
                       });
  }

  void take() {
    char block[65'536];
    const ssize_t got = ::recv(socket_.native_handle(), block, sizeof block, MSG_DONTWAIT);
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) return read();
    if (got < 0 || (got == 0 && text_.empty())) return attempt_later();
    if (got == 0) return finish(std::move(text_));
    text_.append(block, static_cast<std::size_t>(got));
    if (text_.size() <= kAnswerBytesMax) return read();
    finish(Failure{Errc::kFrameTooLarge, "the answer of the agent at " + answer_.path});
  }

  void check_clock() {
    if (is_over()) return;
    const auto now = Clock::now();
    if (now - began_ >= (is_halted() ? kHaltedLimit : kAnswerLimit)) {
      return finish(
          Failure{Errc::kPeerSilent, "the agent at " + answer_.path + " does not answer"});
    }
    if (again_at_ && now >= *again_at_) {
      again_at_.reset();
      attempt();
      if (is_over()) return;
    }
    pause_.expires_after(kPause);
    pause_.async_wait([self = shared_from_this()](error_code error) {
      if (!error) self->check_clock();
    });
  }

  bool is_halted() const {
    return answer_.pid > 0 && agent::is_halted(agent::read_proc_stat(answer_.pid).state);
  }

  void close() {
    error_code ignored;
    socket_.close(ignored);
    pause_.cancel();
  }

  void finish(Result<std::string> text) {
    const Done done = std::exchange(done_, nullptr);
    close();
    answer_.text = std::move(text);
    done(std::move(answer_));
  }

  AgentAnswer answer_;
  const std::string question_;
  boost::asio::posix::stream_descriptor socket_;
  boost::asio::steady_timer pause_;
  const TimePoint began_;
  std::optional<TimePoint> again_at_;  // For another attempt.
  std::string text_;
  Done done_;
};

// The queries to all agents of a run.
class Queries {
 public:
  Queries(boost::asio::io_context& io, const std::vector<AgentQuestion>& questions,
          std::function<void(std::vector<AgentAnswer>)> handler)
      : open_(questions.size()), handler_(std::move(handler)) {
    for (const AgentQuestion& question : questions) {
      const std::size_t index = answers_.size();
      answers_.push_back({question.path, 0, std::string()});
      queries_.push_back(std::make_shared<Query>(
          io, question.path, question.text,
          [this, index](AgentAnswer answer) { take(index, std::move(answer)); }));
    }
  }
  Queries(const Queries&) = delete;
  Queries& operator=(const Queries&) = delete;
  // NOLINTNEXTLINE(bugprone-exception-escape): cancelling throws only if memory is out.
  ~Queries() {
    for (const auto& query : queries_) query->forget();
  }

  void start() {
    for (const auto& query : queries_) query->start();
  }

 private:
  void take(std::size_t index, AgentAnswer answer) {
    answers_[index] = std::move(answer);
    if (--open_ > 0) return;
    const auto handler = std::move(handler_);  // The handler may destroy this object.
    handler(std::move(answers_));
  }

  std::vector<std::shared_ptr<Query>> queries_;
  std::vector<AgentAnswer> answers_;
  std::size_t open_;
  std::function<void(std::vector<AgentAnswer>)> handler_;
};

std::string state_text(char state) {
  switch (state) {
    case 'T': return ", stopped by a signal";
    case 't': return ", held by a debugger";
    case 'D': return ", in uninterruptible sleep";
    case 'Z':
    case 'X': return ", dead";
    default: return "";
  }
}

// The pid of an agent with a socket that accepts no connection: a child of the launcher that has
// its name and is not among the known ones.
int unknown_agent(const RunRecord& run, const std::vector<MuteAgent>& known) {
  const std::string name = agent::read_proc_stat(run.launcher.pid).name;
  for (const int pid : agent::numbered_entries("/proc")) {
    const agent::ProcStat stat = agent::read_proc_stat(pid);
    if (stat.parent != run.launcher.pid || stat.name != name) continue;
    const bool is_known =
        std::ranges::any_of(known, [pid](const MuteAgent& agent) { return agent.pid == pid; });
    if (!is_known) return pid;
  }
  return 0;
}

}  // namespace

std::shared_ptr<void> async_query_windows(boost::asio::io_context& io,
                                          const std::vector<AgentQuestion>& questions,
                                          std::function<void(std::vector<AgentAnswer>)> handler) {
  DDPRUN_ASSERT(!questions.empty());
  const auto queries = std::make_shared<Queries>(io, questions, std::move(handler));
  boost::asio::post(io, [weak = std::weak_ptr(queries)] {
    if (const auto self = weak.lock()) self->start();
  });
  return queries;
}

std::vector<AgentAnswer> query_windows(
    const std::vector<std::string>& paths,
    const std::function<std::string(const std::string& path)>& question) {
  if (paths.empty()) return {};
  std::vector<AgentQuestion> questions;
  for (const std::string& path : paths) questions.push_back({path, question(path)});
  boost::asio::io_context io{1};
  std::vector<AgentAnswer> answers;
  const auto queries = async_query_windows(
      io, questions, [&](std::vector<AgentAnswer> all) { answers = std::move(all); });
  io.run();
  return answers;
}

std::vector<AgentAnswer> query_windows(const std::vector<std::string>& paths,
                                       const std::string& question) {
  return query_windows(paths, [&](const std::string&) { return question; });
}

Result<std::string> query_window(const std::string& path, const std::string& question) {
  return std::move(query_windows({path}, question).front().text);
}

std::vector<std::string> windows_of(const PastRun& run) {
  std::vector<std::string> paths;
  if (run.state != RunState::kRunning || run.record.folder.empty()) return paths;
  for (int index = 0;; ++index) {
    const std::string path = window_path(run.record.folder, index);
    if (::access(path.c_str(), F_OK) != 0) return paths;
    paths.push_back(path);
  }
}

std::string mute_text(const RunRecord& run, const std::vector<MuteAgent>& mute, std::size_t all) {
  std::string agents_text;
  for (const MuteAgent& agent : mute) {
    if (agent.pid == 0) continue;
    agents_text +=
        (agents_text.empty() ? "" : "; ") + std::to_string(agent.pid) + state_text(agent.state);
  }
  const bool one = mute.size() == 1;
  std::string agents = one ? "its agent" : "its agents";
  if (mute.size() < all) {
    agents = std::to_string(mute.size()) + " of its " + std::to_string(all) + " agents";
  }
  return "run " + shell_quote(plain_line(run.run_id)) + " is in progress (launcher " +
         std::to_string(run.launcher.pid) + "), but " + agents +
         (agents_text.empty() ? "" : " (" + agents_text + ")") + (one ? " does" : " do") +
         " not answer";
}

std::string mute_text(const PastRun& run, const std::vector<AgentAnswer>& answers) {
  std::vector<MuteAgent> mute, known;
  for (const AgentAnswer& answer : answers) {
    if (answer.pid > 0) known.push_back({answer.pid});
  }
  for (const AgentAnswer& answer : answers) {
    if (!answer.is_mute()) continue;
    MuteAgent agent{answer.pid};
    if (agent.pid == 0) {
      agent.pid = unknown_agent(run.record, known);
      known.push_back(agent);
    }
    if (agent.pid > 0) agent.state = agent::read_proc_stat(agent.pid).state;
    mute.push_back(agent);
  }
  return mute.empty() ? "" : mute_text(run.record, mute, answers.size());
}

namespace {

std::string line_of(const RunHealth& run) {
  std::string text = "run " + plain_line(run.run_id) + ": ";
  if (run.answers.empty()) return text + "in progress, without an agent\n";
  const rendezvous::RunStatus& status = run.answers.front();
  text += status.state + ", round " + std::to_string(status.round);
  if (status.world_size > 0) text += ", " + std::to_string(status.world_size) + " ranks";
  return text + "\n";
}

}  // namespace

Result<std::string> health_text(const std::vector<RunHealth>& runs, const std::string& run_id) {
  std::string text;
  for (const RunHealth& run : runs) {
    if (!run.mute.empty()) return Failure{Errc::kPeerSilent, run.mute};
    text += line_of(run);
  }
  if (!text.empty()) return text;
  const std::string which = run_id.empty() ? "no run" : "no run '" + plain_line(run_id) + "'";
  return Failure{Errc::kNotFound, which + " of yours is in progress on this machine"};
}

Result<std::string> health_of_this_machine(const std::string& run_id) {
  std::vector<RunHealth> runs;
  for (const PastRun& run : past_runs()) {
    if (!run_id.empty() && run.record.run_id != run_id) continue;
    if (run.state != RunState::kRunning) continue;
    const auto answers = query_windows(windows_of(run), R"({"ask":"watch"})");
    RunHealth health{.run_id = run.record.run_id, .mute = mute_text(run, answers), .answers = {}};
    for (const AgentAnswer& answer : answers) {
      if (!answer.text) continue;
      auto status = rendezvous::decode_status(*answer.text);
      if (!status) return status.error();
      if (!status->runs.empty()) health.answers.push_back(std::move(status->runs.front()));
    }
    runs.push_back(std::move(health));
  }
  return health_text(runs, run_id);
}

}  // namespace ddprun::launcher
