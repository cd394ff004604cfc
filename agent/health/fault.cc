#include "agent/health/fault.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <csignal>
#include <initializer_list>

#include "common/text/words.h"
#include "common/worker_death.h"

namespace ddprun::agent {
namespace {

constexpr std::string_view kTraceback = "Traceback (most recent call last)";

bool has_any(std::string_view text, std::initializer_list<std::string_view> phrases) {
  return std::any_of(phrases.begin(), phrases.end(), [&](std::string_view phrase) {
    return text.find(phrase) != std::string_view::npos;
  });
}

// PyTorch 2 begins each line of an uncaught exception with "[rank3]: ".
std::string_view without_rank(std::string_view line) {
  const std::size_t end = line.find("]: ");
  return line.starts_with("[rank") && end < 16 ? line.substr(end + 3) : line;
}

// "ValueError: boom", "torch.cuda.OutOfMemoryError: ...", "KeyboardInterrupt". PyTorch's message of
// an error of NCCL has a second line that looks so, "ncclRemoteError: A call failed ...".
bool is_python_exception(std::string_view line) {
  line = without_rank(line);
  if (line.starts_with("nccl")) return false;
  const std::string_view name = line.substr(0, line.find(':'));
  const auto in_name = [](unsigned char c) { return std::isalnum(c) || c == '_' || c == '.'; };
  if (name.empty() || !std::isalpha(static_cast<unsigned char>(name.front()))) return false;
  if (!std::all_of(name.begin(), name.end(), in_name)) return false;
  return name.ends_with("Error") || name.ends_with("Exception") || name.ends_with("Interrupt");
}

// The most useful part of `words`: from the last line that names an exception, else the last line.
// An uncaught exception ends Python with 1: after another code an exception further up was caught.
std::string_view message_in(std::string_view words, bool python) {
  std::string_view last;
  for (std::string_view before = words; !before.empty();) {
    const std::size_t newline = before.rfind('\n');
    const bool only = newline == std::string_view::npos;
    const std::size_t begin = only ? 0 : newline + 1;
    const std::string_view line = before.substr(begin);
    const bool cpp = has_any(line, {"  what():", "terminate called", "uncaught "});
    if (cpp || (is_python_exception(line) && (python || last.empty()))) return words.substr(begin);
    if (last.empty()) last = words.substr(begin);
    before = only ? std::string_view() : before.substr(0, newline);
  }
  return last;
}

bool begins_with_any(std::string_view line, std::initializer_list<std::string_view> beginnings) {
  return std::any_of(beginnings.begin(), beginnings.end(),
                     [&](std::string_view beginning) { return line.starts_with(beginning); });
}

// A further line of a message of PyTorch about CUDA or NCCL, or of the stack of its C++.
bool is_of_the_message(std::string_view line) {
  line = without_rank(line);
  return line.find_first_not_of(" \t\r~^") == std::string_view::npos ||
         begins_with_any(
             line, {"CUDA kernel errors might be", "For debugging consider passing",
                    "Compile with `TORCH_USE_CUDA_DSA`", "Device-side assert", "Search for `cuda",
                    "Exception raised from", "frame #", "Last error:", "nccl"});
}

// Or what PyTorch, trackers and progress bars write while the process ends.
bool is_of_the_end(std::string_view line) {
  if (is_of_the_message(line)) return true;
  line = without_rank(line);
  return begins_with_any(line, {"terminate called", "  what():", "[W", "[E", "[I", "[F", "[rank",
                                "wandb:", "Fatal Python error", "Thread 0x", "Current thread 0x",
                                "Extension modules:", "  File \"", "  warnings.warn",
                                "ddprun: ", "Exception ignored in", "Aborted"}) ||
         has_any(line, {"Warning: ", "it/s]", "s/it]", "[0x"});
}

// Whether the program died of the error in the first line of `message`. If it went on, and died of
// something else, other lines follow.
bool is_the_end(std::string_view message) {
  bool detail = false;  // The line before was "Last error:", which only announces one.
  for (std::size_t at = message.find('\n'); at != std::string_view::npos;) {
    const std::string_view line = first_line(message.substr(at + 1));
    if (!detail && !is_of_the_end(line)) return false;
    detail = without_rank(line).starts_with("Last error:");
    at = message.find('\n', at + 1);
  }
  return true;
}

// Of GPUs. The texts are those of the CUDA runtime and of PyTorch 1.12 to 2.15.
Fault fault_of_gpu(std::string_view line, std::string_view message) {
  if (has_any(line, {"CUDA out of memory", "HIP out of memory", "CUDA error: out of memory",
                     "CUDA_ERROR_OUT_OF_MEMORY", "CUBLAS_STATUS_ALLOC_FAILED"})) {
    return Fault::kGpuMemory;
  }
  const bool nccl = has_any(line, {"NCCL error", "NCCL Error"});
  if (!nccl && !has_any(line, {"CUDA", "cuda", "NVIDIA", "HIP error"})) return Fault::kUnknown;
  const std::string_view text = nccl ? message : line;
  if (nccl && has_any(text, {"'out of memory'"})) return Fault::kGpuMemory;
  if (has_any(text, {"device-side assert triggered"})) return Fault::kGpuAssert;
  if (has_any(text, {"uncorrectable ECC error", "uncorrectable NVLink error",
                     "over nvlink or a hardware error", "GPU is lost", "fallen off the bus"})) {
    return Fault::kGpuBroken;
  }
  if (has_any(text, {"an illegal memory access was encountered", "misaligned address",
                     "an illegal instruction was encountered", "unspecified launch failure",
                     "invalid program counter", "hardware stack error"})) {
    return Fault::kGpuAccess;
  }
  if (has_any(text, {"invalid device ordinal", "No CUDA GPUs are available",
                     "no CUDA-capable device is detected", "is/are busy or unavailable",
                     "no kernel image is available", "CUDA driver version is insufficient",
                     "not compiled with CUDA enabled", "Found no NVIDIA driver"})) {
    return Fault::kNoGpu;
  }
  return Fault::kUnknown;
}

// PyTorch's text of an error of NCCL, with NCCL's own explanation in its last lines.
Fault fault_of_nccl(std::string_view line, std::string_view message) {
  if (!has_any(line, {"NCCL error", "NCCL Error"})) return Fault::kUnknown;
  if (has_any(message, {"remote process exited", "Connection closed by remote peer",
                        "Connection reset by peer", "Broken pipe"})) {
    return Fault::kPeerLost;
  }
  if (has_any(message, {"Mismatched NCCL version", "NCCL version mismatch"})) {
    return Fault::kNcclVersion;
  }
  return Fault::kNccl;
}

// Kinds that count only if the program died of the message: it may log the same text and live on.
Fault fault_of_message(std::string_view message) {
  const std::string_view line = first_line(message);
  if (!is_the_end(message)) return Fault::kUnknown;
  if (const Fault fault = fault_of_gpu(line, message); fault != Fault::kUnknown) return fault;
  if (const Fault fault = fault_of_nccl(line, message); fault != Fault::kUnknown) return fault;
  if (has_any(line, {"EADDRINUSE", "ddress already in use"})) return Fault::kAddressInUse;
  if (has_any(line, {"Disk quota exceeded"})) return Fault::kQuota;
  const bool opened = has_any(line, {"  what():", "uncaught ", "can't open file"}) &&
                      has_any(line, {"No such file or directory"});
  return opened || without_rank(line).starts_with("FileNotFoundError") ? Fault::kNoFile
                                                                       : Fault::kUnknown;
}

Fault fault_of_line(std::string_view line) {
  if (has_any(line, {"ModuleNotFoundError", "ImportError", ": No module named "}))
    return Fault::kImportError;
  if (has_any(line, {"SyntaxError", "IndentationError", "TabError"})) return Fault::kSyntaxError;
  if (has_any(line, {"error while loading shared libraries"})) return Fault::kMissingLibrary;
  // "torch.cuda.OutOfMemoryError" is about a GPU, and is judged with its message.
  if (has_any(line, {"MemoryError", "bad_alloc", "Cannot allocate memory"}) &&
      !has_any(line, {"OutOfMemoryError"})) {
    return Fault::kNoMemory;
  }
  if (has_any(line, {"No space left on device"})) return Fault::kNoSpace;
  if (has_any(line, {"Too many open files"})) return Fault::kNoDescriptors;
  if (has_any(line, {"this rank called abort()"})) return Fault::kAborted;
  if (has_any(line, {": ranks disagree"})) return Fault::kMismatch;
  if (has_any(line, {"no sign of rank", "had given up on", "timed out", "Timed out",
                     "collective operation timeout"})) {
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
    case ProgressPage::kWrongResult: return Fault::kWrongResult;
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
    case Fault::kNccl:
    case Fault::kAborted: return true;
    default: return false;
  }
}

// The rank number at `text`; -1 if there is none.
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
  const bool may_explain = death.signal == 0 || death.signal == SIGABRT;
  if (!may_explain) return is_crash(death.signal) ? Fault::kCrash : Fault::kSignal;
  const std::string_view message = message_in(words, death.exit_code == 1);
  const std::string_view line = first_line(message);
  if (const Fault fault = fault_of_message(message); fault != Fault::kUnknown) return fault;
  if (const Fault fault = fault_of_line(line); fault != Fault::kUnknown) return fault;
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
  death.kept_steps = fate.kept_steps;
  const Fault reported = fault_of_page(fate.failure);
  if (reported == Fault::kUnknown || !may_follow(death.fault)) return;
  if (death.succeeded() && reported != Fault::kAborted) return;
  // A program that calls abort() because of its own exception has already printed that exception.
  if (reported == Fault::kAborted && death.fault == Fault::kException) return;
  death.fault = reported;
  if (fate.peer >= 0 && fate.peer != death.rank) death.blames = fate.peer;
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
  std::size_t end = lines.size();
  while (end > 0 && !has_any(lines[end - 1], {"  what():", "terminate called"}) &&
         !is_python_exception(lines[end - 1])) {
    const bool is_detail = end > 1 && without_rank(lines[end - 2]).starts_with("Last error:");
    if (!is_detail && !is_of_the_message(lines[end - 1])) return false;
    --end;
  }
  if (end == 0) return false;
  if (!is_python_exception(lines[end - 1])) return true;
  return std::any_of(lines.begin(), lines.end(), [](const std::string& line) {
    return without_rank(line).starts_with(kTraceback);
  });
}

}  // namespace ddprun::agent
