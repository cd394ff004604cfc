#include "launcher/watch/stacks.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "agent/process/proc_file.h"
#include "common/system/child_process.h"
#include "common/system/log.h"
#include "common/system/standard_output.h"
#include "common/text/display.h"
#include "common/text/figures.h"
#include "common/time.h"
#include "launcher/watch/logs.h"
#include "launcher/watch/top_screen.h"
#include "launcher/watch/window_client.h"

namespace ddprun::launcher {
namespace {

using nlohmann::json;

constexpr std::size_t kEnvironmentMax = std::size_t{4} << 20;
constexpr int kAncestorsMax = 100;

bool descends(int pid, int ancestor, const std::string& proc) {
  for (int depth = 0; depth < kAncestorsMax && pid > 1; ++depth) {
    pid = agent::read_proc_stat(pid, proc).parent;
    if (pid == ancestor) return true;
  }
  return false;
}

}  // namespace

Result<int> pid_of(const PastRun& run, int rank) {
  int world_size = 0;
  const auto answers = query_windows(windows_of(run), R"({"ask":"workers"})");
  for (const AgentAnswer& answer : answers) {
    if (!answer.text) continue;
    const json reply = json::parse(*answer.text, nullptr, /*allow_exceptions=*/false);
    if (!reply.is_object() || !reply.contains("workers")) continue;
    world_size = reply.value("world_size", 0);
    for (const json& worker : reply["workers"]) {
      if (worker.value("rank", -1) == rank) return worker.value("pid", 0);
    }
  }
  const std::string number = std::to_string(rank);
  if (const std::string mute = mute_text(run, answers); !mute.empty()) {
    const int pid = worker_started_as(run.record.launcher.pid, rank);
    if (pid == 0) {
      return Failure{Errc::kPeerSilent,
                     mute + ", and no worker here was started as rank " + number};
    }
    log::warning(mute + "; process " + std::to_string(pid) + " was started as rank " + number);
    return pid;
  }
  const std::string of = "rank " + number + " of run '" + cell_text(run.record.run_id) +
                         "' has no process on this machine";
  if (run.state != RunState::kRunning) return Failure{Errc::kNotFound, of + ": the run is over"};
  const bool elsewhere = rank < world_size;
  return Failure{Errc::kNotFound,
                 of + (elsewhere ? "; query it on the machine where it runs"
                                 : "; the run has " + number_of(world_size, "rank"))};
}

int worker_started_as(int launcher, int rank, const std::string& proc) {
  struct Found {
    agent::ProcStat stat;
    int pid = 0;
  };
  const std::string wanted = std::to_string(rank);
  std::vector<Found> found;
  for (const int pid : agent::numbered_entries(proc)) {
    const std::string process = proc + "/" + std::to_string(pid);
    if (started_with(process, "RANK") != wanted) continue;
    if (started_with(process, "DDPRUN_JOB").empty() || !descends(pid, launcher, proc)) continue;
    found.push_back({agent::read_proc_stat(pid, proc), pid});
  }
  // A worker's children have its variables: the worker is the process without a parent among them.
  // Processes that a dead worker left behind are older than the worker that replaced it.
  std::erase_if(found, [](const Found& one) { return one.stat.state == 'Z'; });
  const Found* newest = nullptr;
  for (const Found& one : found) {
    const bool is_child = std::ranges::any_of(
        found, [&](const Found& other) { return other.pid == one.stat.parent; });
    // The launcher adopts what workers leave behind.
    const bool is_left = one.stat.parent == launcher;
    if (is_child || is_left) continue;
    if (!newest || one.stat.started > newest->stat.started) newest = &one;
  }
  return newest ? newest->pid : 0;
}

std::string started_with(const std::string& process, std::string_view name) {
  std::ifstream in(process + "/environ", std::ios::binary);
  std::string text(kEnvironmentMax, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(in.gcount()));
  // "NAME=value" entries with a zero byte behind each.
  for (std::string_view rest = text; !rest.empty();) {
    const std::string_view entry = rest.substr(0, rest.find('\0'));
    if (entry.size() > name.size() && entry.starts_with(name) && entry[name.size()] == '=') {
      return std::string(entry.substr(name.size() + 1));
    }
    rest.remove_prefix(std::min(entry.size() + 1, rest.size()));
  }
  return {};
}

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kToolLimit{30};
constexpr std::chrono::seconds kToolEndLimit{5};  // From the end of its output to its own.
constexpr std::size_t kToolBytesMax = std::size_t{4} << 20;

struct Tool {
  const char* title;
  std::vector<std::string> argv;
};

std::string found_on_path(const std::string& name) {
  const char* path = std::getenv("PATH");
  for (std::string rest = path ? path : "/usr/bin:/bin"; !rest.empty();) {
    const std::size_t colon = std::min(rest.find(':'), rest.size());
    const std::string candidate = rest.substr(0, colon) + "/" + name;
    if (colon > 0 && ::access(candidate.c_str(), X_OK) == 0) return candidate;
    rest.erase(0, std::min(colon + 1, rest.size()));
  }
  return "";
}

// Standard output and error together; absent: the tool failed, and `why` is the reason.
std::optional<std::string> output_of(const std::vector<std::string>& argv, std::string& why) {
  auto tool = start_program(argv, {.own_group = false, .errors_in_output = true});
  if (!tool) return why = "it cannot be started", std::nullopt;
  tool->input.reset();
  const PipedAnswer answer = read_until(tool->output, Clock::now() + kToolLimit, kToolBytesMax);
  if (!answer.in_time) ::kill(tool->pid, SIGKILL);  // The process that it held continues.
  const auto code = reap_within(*tool, kToolEndLimit);
  if (!code) {
    ::kill(tool->pid, SIGKILL);
    return why = "it has said all and does not end", std::nullopt;
  }
  if (!answer.in_time) return why = "it took longer than 30 s", std::nullopt;
  const std::string& text = answer.text;
  if (*code == 0) return text;
  const std::size_t end = text.find_last_not_of('\n');
  const std::size_t line = end == std::string::npos ? end : text.rfind('\n', end);
  why = end == std::string::npos
            ? "it failed"
            : text.substr(line == std::string::npos ? 0 : line + 1,
                          end - (line == std::string::npos ? 0 : line + 1) + 1);
  return std::nullopt;
}

// gdb ends well although it could not attach.
bool has_frames(const std::string& text) { return text.find("#0 ") != std::string::npos; }

std::vector<Tool> native_tools(const std::string& pid) {
  return {
      {"gdb",
       {"gdb", "-nx", "-batch", "-iex", "set debuginfod enabled off", "-iex", "set auto-load off",
        "-ex", "set pagination off", "-ex", "thread apply all backtrace 64", "-p", pid}},
      {"eu-stack", {"eu-stack", "-p", pid}}};
}

// Whether one of the tools has shown the stacks; `missing` gets the reasons of the others.
bool show_native(int pid, std::string& missing) {
  for (Tool& tool : native_tools(std::to_string(pid))) {
    tool.argv[0] = found_on_path(tool.title);
    if (tool.argv[0].empty()) {
      missing += std::string(missing.empty() ? "" : "; ") + "there is no " + tool.title;
      continue;
    }
    std::string why;
    const auto text = output_of(tool.argv, why);
    if (text && has_frames(*text)) {
      write_output(std::string("\nnative stacks, by ") + tool.title + ":\n" +
                   without_escapes(*text));
      return true;
    }
    if (text) why = "it may not look into the process (ptrace)";
    missing += std::string(missing.empty() ? "" : "; ") + tool.title + ": " + cell_text(why);
  }
  return false;
}

bool is_python(int pid) {
  std::string target(4096, '\0');
  const std::string link = "/proc/" + std::to_string(pid) + "/exe";
  const ssize_t size = ::readlink(link.c_str(), target.data(), target.size());
  target.resize(static_cast<std::size_t>(std::max<ssize_t>(size, 0)));
  return target.substr(target.rfind('/') + 1).starts_with("python");
}

void show_python(int pid) {
  const std::string tool = found_on_path("py-spy");
  if (tool.empty()) {
    write_output("\nPython stacks: there is no py-spy (pip install py-spy)\n");
    return;
  }
  std::string why;
  const auto text = output_of({tool, "dump", "--pid", std::to_string(pid)}, why);
  write_output(text ? "\nPython stacks, by py-spy:\n" + without_escapes(*text)
                    : "\nPython stacks: py-spy: " + cell_text(why) + "\n");
}

std::string one_line(std::string text) {
  while (text.ends_with('\n') || text.ends_with('\0')) text.pop_back();
  std::replace(text.begin(), text.end(), '\0', ' ');
  return cell_text(text);
}

}  // namespace

std::string kernel_view(int pid, const std::string& proc) {
  const std::string process = proc + "/" + std::to_string(pid);
  std::string text;
  for (const int thread : agent::numbered_entries(process + "/task")) {
    const std::string folder = process + "/task/" + std::to_string(thread);
    const agent::ProcStat stat = agent::parse_proc_stat(agent::read_proc_file(folder + "/stat"));
    const std::string where = one_line(agent::read_proc_file(folder + "/wchan"));
    text +=
        "thread " + std::to_string(thread) + " (" + cell_text(stat.name) + "), state " + stat.state;
    if (where != "0" && where != "-") text += ", waits in " + where;
    const std::string call = one_line(agent::read_proc_file(folder + "/syscall"));
    if (call != "-" && call != "running") text += ", system call " + call;
    text += "\n";
    const std::string stack = agent::read_proc_file(folder + "/stack");  // Readable by root.
    for (std::size_t at = 0; at < stack.size();) {
      const std::size_t end = std::min(stack.find('\n', at), stack.size());
      text += "  " + cell_text(stack.substr(at, end - at)) + "\n";
      at = end + 1;
    }
  }
  return text;
}

Result<void> print_stacks(const std::string& run_word, int rank) {
  const auto run = named_run(run_word);
  if (!run) return run.error();
  const auto pid = pid_of(*run, rank);
  if (!pid) return pid.error();
  const std::string process = "/proc/" + std::to_string(*pid);
  write_output("rank " + std::to_string(rank) + " is pid " + std::to_string(*pid) + ": " +
               one_line(agent::read_proc_file(process + "/cmdline")) + "\n");
  if (is_python(*pid)) show_python(*pid);
  std::string missing;
  if (show_native(*pid, missing)) return {};
  write_output("\nno native stacks: " + missing + "\nwhat the kernel reports:\n" +
               kernel_view(*pid));
  return {};
}

}  // namespace ddprun::launcher
