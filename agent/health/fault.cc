#include "agent/health/fault.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <csignal>
#include <initializer_list>

#include "common/worker_death.h"

namespace ddprun::agent {
namespace {

constexpr std::string_view kTraceback = "Traceback (most recent call last)";

bool has_any(std::string_view text, std::initializer_list<std::string_view> phrases) {
  return std::any_of(phrases.begin(), phrases.end(), [&](std::string_view phrase) {
    return text.find(phrase) != std::string_view::npos;
  });
}

// "ValueError: boom", "torch.cuda.OutOfMemoryError: ...", "KeyboardInterrupt".
bool is_python_exception(std::string_view line) {
  const std::string_view name = line.substr(0, line.find(':'));
  const auto in_name = [](unsigned char c) { return std::isalnum(c) || c == '_' || c == '.'; };
  if (name.empty() || !std::isalpha(static_cast<unsigned char>(name.front()))) return false;
  if (!std::all_of(name.begin(), name.end(), in_name)) return false;
  return name.ends_with("Error") || name.ends_with("Exception") || name.ends_with("Interrupt");
}

// The line that says most: the last one that names an exception, else the last one. What Python has
// not caught ends it with 1: after another code an exception further up was caught.
std::string_view essence(std::string_view words, bool python) {
  std::string_view last;
  while (!words.empty()) {
    const std::size_t newline = words.rfind('\n');
    const bool only = newline == std::string_view::npos;
    const std::string_view line = only ? words : words.substr(newline + 1);
    const bool cpp = has_any(line, {"  what():", "terminate called", "uncaught "});
    if (cpp || (is_python_exception(line) && (python || last.empty()))) return line;
    if (last.empty()) last = line;
    words = only ? std::string_view() : words.substr(0, newline);
  }
  return last;
}

Fault fault_of_words(std::string_view line) {
  if (has_any(line, {"ModuleNotFoundError", "ImportError"})) return Fault::kImportError;
  if (has_any(line, {"SyntaxError", "IndentationError", "TabError"})) return Fault::kSyntaxError;
  if (has_any(line, {"error while loading shared libraries"})) return Fault::kMissingLibrary;
  if (has_any(line, {"MemoryError", "bad_alloc", "Cannot allocate memory"})) {
    return Fault::kNoMemory;
  }
  if (has_any(line, {"No space left on device"})) return Fault::kNoSpace;
  if (has_any(line, {"Too many open files"})) return Fault::kNoDescriptors;
  if (has_any(line, {"this rank called abort()"})) return Fault::kAborted;
  if (has_any(line, {": ranks disagree"})) return Fault::kMismatch;
  if (has_any(line, {"no sign of rank", "had given up on", "timed out", "Timed out"})) {
    return Fault::kTimedOut;
  }
  if (has_any(line, {"Connection reset by peer", "Connection closed by peer", "Broken pipe",
                     "remote process exited", "lost rank", "lost the connection",
                     "lost a connection", "Socket closed", " called abort()", " has died",
                     " has left the job", " has given up"})) {
    return Fault::kPeerLost;
  }
  return Fault::kUnknown;
}

Fault fault_of_page(ProgressPage::Failure failure) {
  switch (failure) {
    case ProgressPage::kPeerLost: return Fault::kPeerLost;
    case ProgressPage::kTimedOut: return Fault::kTimedOut;
    case ProgressPage::kMismatch: return Fault::kMismatch;
    case ProgressPage::kAborted: return Fault::kAborted;
    default: return Fault::kUnknown;
  }
}

// The program may have ended like this because a collective failed.
bool may_follow(Fault fault) {
  switch (fault) {
    case Fault::kUnknown:
    case Fault::kExit:
    case Fault::kException:
    case Fault::kPeerLost:
    case Fault::kTimedOut:
    case Fault::kMismatch:
    case Fault::kAborted: return true;
    default: return false;
  }
}

// The rank whose number follows at `text`; -1 if none does.
int number_at(std::string_view text) {
  int rank = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), rank);
  return error == std::errc() && rank >= 0 ? rank : -1;
}

}  // namespace

Fault classify(const WorkerDeath& death, std::string_view words, bool oom_killed) {
  if (death.signal == SIGKILL) return oom_killed ? Fault::kOutOfMemory : Fault::kSignal;
  if (death.signal == SIGSEGV && has_any(words, {"stack overflow", "Stack overflow"})) {
    return Fault::kStackOverflow;
  }
  const bool may_speak = death.signal == 0 || death.signal == SIGABRT;
  if (!may_speak) return is_crash(death.signal) ? Fault::kCrash : Fault::kSignal;
  const std::string_view line = essence(words, death.exit_code == 1);
  if (const Fault fault = fault_of_words(line); fault != Fault::kUnknown) return fault;
  // A shell's codes, and its words.
  const bool shell_could_not =
      (death.exit_code == 126 || death.exit_code == 127) &&
      has_any(line, {"not found", "ermission denied", "No such file", "Exec format error",
                     "bad interpreter", "cannot execute"});
  if (shell_could_not) return Fault::kCannotStart;
  const bool exception = is_python_exception(line) ||
                         has_any(words, {"terminate called", "uncaught "}) ||
                         (death.exit_code == 1 && has_any(words, {kTraceback}));
  if (exception) return Fault::kException;
  return death.signal == 0 ? Fault::kExit : Fault::kCrash;
}

int rank_blamed(std::string_view words) {
  if (has_any(words, {"this rank called abort()"})) return -1;
  for (const std::string_view phrase :
       {"no sign of rank ", "no sign of ranks ", "lost rank ", "lost ranks ",
        "lost the connection to rank ", " because of rank "}) {
    const std::size_t at = words.find(phrase);
    if (at != std::string_view::npos) return number_at(words.substr(at + phrase.size()));
  }
  for (const std::string_view phrase :
       {" had given up on", " has given up", " has died", " has left the job", " called abort()"}) {
    constexpr std::string_view kRank = "rank ";
    const std::size_t at = words.find(phrase);
    const std::size_t rank = words.substr(0, at).rfind(kRank);
    if (at == std::string_view::npos || rank == std::string_view::npos) continue;
    return number_at(words.substr(rank + kRank.size()));
  }
  return -1;
}

void add_fate(const WorkerFate& fate, WorkerDeath& death) {
  death.collective = fate.collective;
  death.steps = fate.steps;
  const Fault said = fault_of_page(fate.failure);
  if (said == Fault::kUnknown || !may_follow(death.fault)) return;
  if (death.succeeded() && said != Fault::kAborted) return;
  // Who calls abort() because of an exception of its own has said what it was.
  if (said == Fault::kAborted && death.fault == Fault::kException) return;
  death.fault = said;
  if (fate.peer >= 0) death.blames = fate.peer;
}

void add_work(const WorkerFate& fate, bool is_its_doing, WorkerDeath& death) {
  if (death.succeeded() || death.stopped_by_us) return;
  if (death.signal != 0 && !is_crash(death.signal) && !is_its_doing) return;
  death.work = fate.work;
  death.can_skip = fate.can_skip;
}

void add_stall(const std::string& why, WorkerDeath& death) {
  if (why.empty() || death.succeeded()) return;
  death.fault = Fault::kStuck;
  death.evidence = why;
  death.blames = -1;
}

bool ends_in_exception(const std::vector<std::string>& lines) {
  if (lines.empty()) return false;
  if (has_any(lines.back(), {"  what():", "terminate called"})) return true;
  if (!is_python_exception(lines.back())) return false;
  return std::any_of(lines.begin(), lines.end(),
                     [](const std::string& line) { return line.starts_with(kTraceback); });
}

}  // namespace ddprun::agent
