#include "tests/support/elastic_host.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "common/system/child_process.h"

namespace ddprun::test {
namespace {

using namespace worker_link;

constexpr int kLinkNumber = 100;
constexpr int kPatienceMs = 60'000;

std::string described(int status) {
  return WIFSIGNALED(status) ? "signal " + std::to_string(WTERMSIG(status))
                             : "status " + std::to_string(WEXITSTATUS(status));
}

}  // namespace

ElasticHost::ElasticHost(ElasticHostOptions options) : options_(std::move(options)) {
  for (int slot = 0; slot < options_.slots; ++slot) spawn(slot, 0);
}

ElasticHost::~ElasticHost() {
  for (const auto& worker : workers_) {
    ::kill(worker->pid, SIGKILL);
    ::waitpid(worker->pid, nullptr, 0);
  }
}

void ElasticHost::spawn(int slot, int life) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) std::abort();
  auto worker = std::make_unique<Worker>();
  worker->slot = slot;
  worker->life = life;
  worker->link = UniqueFd(ends[0]);
  const UniqueFd theirs(ends[1]);
  std::vector<std::string> variables;  // Of one name the first counts.
  const auto set = [&](const std::string& name, const std::string& value) {
    variables.push_back(name + "=" + value);
  };
  for (const auto& [name, value] : options_.environment(slot, life)) set(name, value);
  set(kVariable, std::to_string(kLinkNumber));
  set("LOCAL_RANK", std::to_string(slot));
  if (options_.spread) set("DDPRUN_HOST", slot * 2 < options_.slots ? "first" : "second");
  for (char** entry = ::environ; *entry; ++entry) variables.emplace_back(*entry);
  std::vector<char*> pointers;
  for (std::string& variable : variables) pointers.push_back(variable.data());
  pointers.push_back(nullptr);
  std::string program = options_.program;
  char* arguments[] = {program.data(), nullptr};
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, theirs.get(), kLinkNumber);
  if (::posix_spawn(&worker->pid, program.c_str(), &actions, nullptr, arguments, pointers.data()) !=
      0) {
    std::abort();
  }
  ::posix_spawn_file_actions_destroy(&actions);
  worker->pidfd = open_pidfd(worker->pid);
  workers_.push_back(std::move(worker));
}

bool ElasticHost::any_seated() const {
  return std::any_of(workers_.begin(), workers_.end(), [](const auto& w) { return w->seat >= 0; });
}

std::string ElasticHost::run() {
  while (problem_.empty() && !workers_.empty()) {
    // Newcomers are of no use where all others have finished.
    if (finished_ > 0 && !any_seated()) break;
    wait_once();
    seat_if_possible();
  }
  return problem_;
}

void ElasticHost::wait_once() {
  std::vector<pollfd> entries;
  for (const auto& worker : workers_) {
    entries.push_back({worker->link.get(), POLLIN, 0});
    entries.push_back({worker->pidfd.get(), POLLIN, 0});
  }
  if (::poll(entries.data(), entries.size(), kPatienceMs) <= 0) {
    problem_ = "nothing has happened for a minute";
    return;
  }
  for (std::size_t i = workers_.size(); i-- > 0;) {
    if (entries[2 * i].revents != 0) receive(*workers_[i]);
    if (entries[2 * i + 1].revents != 0) reap(i);
  }
}

void ElasticHost::receive(Worker& worker) {
  char bytes[kMessageBytesMax];
  for (;;) {
    const ssize_t got = ::recv(worker.link.get(), bytes, sizeof(bytes), MSG_DONTWAIT);
    if (got <= 0) return;  // At its end the process ends soon, or has closed the link before.
    const auto message = decode_worker_message({bytes, static_cast<std::size_t>(got)});
    if (message.has_error()) {
      problem_ = message.error().context;
      return;
    }
    take(worker, message.value());
  }
}

void ElasticHost::take(Worker& worker, const WorkerMessage& message) {
  const std::string name =
      "slot " + std::to_string(worker.slot) + "." + std::to_string(worker.life);
  if (std::holds_alternative<Ready>(message)) {
    note(name + " is ready");
    worker.ready = true;
    return;
  }
  if (const auto* left = std::get_if<LeftRound>(&message)) {
    note(name + " left round " + std::to_string(left->round) + " after step " +
         std::to_string(left->step));
    if (left->round == round_) worker.left = true;
    return;
  }
  const auto& resumed = std::get<Resumed>(message);
  note(name + " goes on with step " + std::to_string(resumed.step) + ", repeats " +
       std::to_string(resumed.repeated) + ", lost " + std::to_string(resumed.lost_us) + " us");
  repeated_ = std::max(repeated_, resumed.repeated);
  if (last_was_planned_) repeated_planned_ += resumed.repeated;
}

void ElasticHost::reap(std::size_t at) {
  receive(*workers_[at]);  // What it sent before.
  const std::unique_ptr<Worker> gone = std::move(workers_[at]);
  workers_.erase(workers_.begin() + static_cast<std::ptrdiff_t>(at));
  int status = 0;
  ::waitpid(gone->pid, &status, 0);
  note("slot " + std::to_string(gone->slot) + "." + std::to_string(gone->life) + ", rank " +
       std::to_string(gone->seat) + ", ended: " + described(status));
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
    ++finished_;
    return;
  }
  ++deaths_;
  if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL) {
    problem_ = "a worker ended by itself, with " + described(status);
  }
  if (gone->seat >= 0) end_round(gone->seat, "it ended with " + described(status));
  if (replaced_ < options_.replacements) {
    ++replaced_;
    spawn(gone->slot, gone->life + 1);
  }
}

void ElasticHost::send(Worker& worker, const AgentMessage& message) {
  const std::string bytes = encode(message);
  (void)::send(worker.link.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
}

void ElasticHost::end_round(int lost_rank, const std::string& why) {
  if (ending_ && !ending_planned_) return;
  ending_ = true;
  ending_planned_ = false;
  for (const auto& worker : workers_) {
    if (worker->seat < 0) continue;
    worker->left = false;
    send(*worker, Fence{.round = round_, .lost_rank = lost_rank, .why = why});
  }
}

void ElasticHost::seat_if_possible() {
  std::vector<Worker*> ready;
  for (const auto& worker : workers_) {
    if (worker->ready) ready.push_back(worker.get());
  }
  const bool is_first = round_ < 0;
  if (is_first && ready.size() < static_cast<std::size_t>(options_.slots)) return;
  const bool is_running = any_seated() && !ending_;
  const bool has_parked =
      std::any_of(ready.begin(), ready.end(), [](const Worker* w) { return w->seat < 0; });
  if (is_running) {
    if (!has_parked) return;
    ending_ = ending_planned_ = true;
    for (const auto& worker : workers_) {
      if (worker->seat >= 0) send(*worker, Change{.round = round_, .why = "a rank is to be added"});
    }
    return;
  }
  for (const auto& worker : workers_) {
    if (worker->seat >= 0 && !worker->left) return;
  }
  if (ready.empty() || (!is_first && finished_ > 0 && !any_seated())) return;
  if (!is_first && ending_planned_) ++planned_;
  last_was_planned_ = !is_first && ending_planned_;
  ending_ = ending_planned_ = false;
  ++round_;
  ++rounds_;
  std::sort(ready.begin(), ready.end(),
            [](const Worker* a, const Worker* b) { return a->slot < b->slot; });
  store_ = std::make_unique<worker_sdk::StoreHost>(
      "127.0.0.1", std::uint16_t{0}, worker_sdk::deadline_after(std::chrono::seconds(60)));
  const int size = static_cast<int>(ready.size());
  note("round " + std::to_string(round_) + " of " + std::to_string(size));
  for (int rank = 0; rank < size; ++rank) {
    Worker& worker = *ready[static_cast<std::size_t>(rank)];
    worker.seat = rank;
    worker.left = false;
    send(worker, Seated{.round = round_,
                        .restart_count = 0,
                        .rank = rank,
                        .world_size = size,
                        .local_rank = worker.slot,
                        .local_world_size = size,
                        .group_rank = 0,
                        .group_world_size = 1,
                        .master_address = "127.0.0.1",
                        .master_port = store_->port()});
  }
}

}  // namespace ddprun::test
