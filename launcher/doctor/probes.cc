#include "launcher/doctor/probes.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "common/system/child_process.h"
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
  ChildProcess process;
  TimePoint until;
  std::string text = {};
  std::string why = {};  // The probe has failed.
};

Running start(const Probe& probe, const ProbeRequest& request, TimePoint until) {
  Running running{.probe = &probe, .process = {}, .until = until};
  auto started = fork_answer([&] {
    Facts facts;
    probe.gather(request, facts);
    return encode(facts);
  });
  if (started)
    running.process = std::move(*started);
  else
    running.why = started.error().code.value() == EMFILE || started.error().code.value() == ENFILE
                      ? "there are no more descriptors"
                      : "no process can be started";
  return running;
}

// Does not wait: a process that hangs in the kernel ends when it can, and init reaps it.
void end(Running& running) {
  running.process.output.reset();
  kill(running.process);
  if (running.process.runs()) (void)reap_within(running.process, 0ms);
}

void receive(Running& running) {
  char buffer[16'384];
  const ssize_t n = ::read(running.process.output.get(), buffer, sizeof buffer);
  if (n < 0 && (errno == EINTR || errno == EAGAIN)) return;
  if (n > 0 && running.text.size() < kFactsBytesMax) {
    running.text.append(buffer, static_cast<std::size_t>(n));
    return;
  }
  if (running.text.empty()) running.why = "its process died";
  running.process.output.reset();
  // The answer is complete; a driver may keep the process from ending, which need not be awaited.
  if (!reap_within(running.process, kExitLimit)) end(running);
}

void expire(Running& running, TimePoint now, Milliseconds limit) {
  if (!running.process.output || now < running.until) return;
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
      if (!running.process.output) continue;
      polls.push_back({running.process.output.get(), POLLIN, 0});
      waiting.push_back(&running);
      next = std::min(next, running.until);
    }
    if (polls.empty()) return;
    poll_until(polls, next);
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
