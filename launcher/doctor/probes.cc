#include "launcher/doctor/probes.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>

#include "common/system/child.h"
#include "common/system/descriptors.h"
#include "common/text/figures.h"
#include "launcher/doctor/subject.h"

namespace ddprun::doctor {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr Milliseconds kFastLimit = 1'900ms;  // For all probes of --preflight fast together.
constexpr Milliseconds kExitLimit = 500ms;    // Between a probe's answer and its end.

// A probe's process, and what it has sent so far.
struct Running {
  const Probe* probe = nullptr;
  pid_t pid = -1;
  UniqueFd output;
  TimePoint until;
  std::string text = {};
  std::string why = {};  // The probe has failed.
};

[[noreturn]] void be_probe(const Probe& probe, const ProbeRequest& request, int output) {
  ::setpgid(0, 0);  // Processes that the probe starts end with it.
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::signal(SIGPIPE, SIG_IGN);
  Facts facts;
  probe.gather(request, facts);
  std::string text = encode(facts);
  for (std::string_view rest = text; !rest.empty();) {
    const ssize_t n = ::write(output, rest.data(), rest.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) ::_exit(EXIT_FAILURE);
    rest.remove_prefix(static_cast<std::size_t>(n));
  }
  ::_exit(EXIT_SUCCESS);
}

Running start(const Probe& probe, const ProbeRequest& request, TimePoint until) {
  Running running{.probe = &probe, .output = UniqueFd(), .until = until};
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    running.why = "there are no more descriptors";
    return running;
  }
  running.output = UniqueFd(ends[0]);
  const UniqueFd writer(ends[1]);
  std::fflush(nullptr);
  running.pid = ::fork();
  if (running.pid == 0) be_probe(probe, request, writer.get());
  if (running.pid < 0) running.why = "no process can be started";
  if (running.pid < 0) running.output.reset();
  return running;
}

// Kills the process group, too; the probe may be about to make it.
void end(Running& running) {
  running.output.reset();
  if (running.pid <= 0) return;
  ::kill(-running.pid, SIGKILL);
  ::kill(running.pid, SIGKILL);
  // Does not wait: a process that hangs in the kernel ends when it can, and init reaps it.
  ::waitpid(running.pid, nullptr, WNOHANG);
  running.pid = -1;
}

void receive(Running& running) {
  char buffer[16'384];
  const ssize_t n = ::read(running.output.get(), buffer, sizeof buffer);
  if (n < 0 && errno == EINTR) return;
  if (n > 0 && running.text.size() < kFactsBytesMax) {
    running.text.append(buffer, static_cast<std::size_t>(n));
    return;
  }
  if (running.text.empty()) running.why = "its process died";
  running.output.reset();
  // The answer is complete; a driver may keep the process from ending, which need not be awaited.
  int status = 0;
  if (!reap_within(running.pid, kExitLimit, status)) return end(running);
  running.pid = -1;
}

void expire(Running& running, TimePoint now, Milliseconds limit) {
  if (!running.output || now < running.until) return;
  running.why = "no answer within " + seconds_text(limit);
  end(running);
}

// Waits until all probes have answered or their time is over.
void wait_for(std::vector<Running>& all, Depth depth) {
  for (;;) {
    std::vector<pollfd> polls;
    std::vector<Running*> waiting;
    TimePoint next = TimePoint::max();
    for (Running& running : all) {
      if (!running.output) continue;
      polls.push_back({running.output.get(), POLLIN, 0});
      waiting.push_back(&running);
      next = std::min(next, running.until);
    }
    if (polls.empty()) return;
    const auto left = std::chrono::ceil<Milliseconds>(next - Clock::now());
    ::poll(polls.data(), polls.size(), static_cast<int>(std::max<long>(left.count(), 0)));
    for (std::size_t i = 0; i < polls.size(); ++i) {
      if (polls[i].revents != 0) receive(*waiting[i]);
      expire(*waiting[i], Clock::now(),
             depth == Depth::kFast ? kFastLimit : waiting[i]->probe->limit);
    }
  }
}

void run_some(Depth depth, bool alone, const ProbeRequest& request, Facts& facts) {
  std::vector<Running> all;
  const TimePoint now = Clock::now();
  for (const Subject& subject : all_subjects()) {
    if (!subject.probe || subject.probe->alone != alone) continue;
    const Probe& probe = *subject.probe;
    if (depth == Depth::kFast && !probe.fast) continue;
    all.push_back(start(probe, request, now + (depth == Depth::kFast ? kFastLimit : probe.limit)));
  }
  wait_for(all, depth);
  for (Running& running : all) {
    if (running.why.empty()) {
      Result<Facts> found = decode_facts(running.text);
      if (found)
        facts.merge(std::move(*found));
      else
        running.why = "its answer is damaged";
    }
    if (!running.why.empty()) facts.set_why(running.probe->name, running.why);
  }
}

}  // namespace

Facts gather_facts_of_node(Depth depth, const ProbeRequest& request) {
  Facts facts;
  run_some(depth, false, request, facts);
  run_some(depth, true, request, facts);
  return facts;
}

}  // namespace ddprun::doctor
