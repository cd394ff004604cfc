#include "agent/placement/gpu_memory.h"

#include <unistd.h>

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/error.hpp>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "agent/placement/gpus.h"
#include "agent/placement/worker_environment.h"
#include "agent/process/proc_file.h"
#include "common/text/figures.h"

namespace ddprun::agent {
namespace {

constexpr Milliseconds kExitLimit{100};  // Between the answer and the end of its process.

std::vector<GpuUser> users_of(const Nvml& nvml, Nvml::Device device) {
  constexpr unsigned kUsersMax = 64;
  const auto query = nvml.find<int (*)(Nvml::Device, unsigned*, Nvml::ProcessInfo*)>(
      "nvmlDeviceGetComputeRunningProcesses_v3");
  std::vector<Nvml::ProcessInfo> found(kUsersMax);
  unsigned count = kUsersMax;
  if (!query || query(device, &count, found.data()) != Nvml::kSuccess) return {};
  std::vector<GpuUser> users;
  for (unsigned i = 0; i < std::min(count, kUsersMax); ++i) {
    const int pid = static_cast<int>(found[i].pid);
    const bool unknown = found[i].used == ~0ULL;  // NVML_VALUE_NOT_AVAILABLE.
    users.push_back(
        {.pid = pid, .bytes = unknown ? 0 : found[i].used, .name = read_proc_stat(pid).name});
  }
  return users;
}

std::string gib(std::uint64_t bytes) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f GiB", static_cast<double>(bytes) / double(1 << 30));
  return text;
}

std::string user_text(const GpuUser& user, const GpuQuestion& question) {
  const auto rank = question.ranks.find(user.pid);
  const std::string pid = "pid " + std::to_string(user.pid);
  std::string text = rank != question.ranks.end()
                         ? "rank " + std::to_string(rank->second) + " (" + pid + ")"
                         : pid + (user.name.empty() ? "" : " (" + user.name + ")");
  if (user.bytes > 0) text += " " + gib(user.bytes);
  return text;
}

std::string gpu_text(std::size_t index, const GpuMemory& gpu, const GpuQuestion& question) {
  constexpr std::size_t kListed = 6;
  std::vector<GpuUser> others;
  for (const GpuUser& user : gpu.users) {
    if (user.pid != question.pid) others.push_back(user);
  }
  if (others.empty()) return "";
  std::stable_sort(others.begin(), others.end(),
                   [](const GpuUser& a, const GpuUser& b) { return a.bytes > b.bytes; });
  std::string text =
      "of the " + gib(gpu.total) + " of GPU " + std::to_string(index) +
      (others.size() == 1 ? " another process holds a part: " : " other processes hold parts: ");
  for (std::size_t i = 0; i < std::min(others.size(), kListed); ++i) {
    text += (i > 0 ? ", " : "") + user_text(others[i], question);
  }
  if (others.size() > kListed) text += " and " + std::to_string(others.size() - kListed) + " more";
  return text;
}

}  // namespace

bool has_nvml() {
  return ::access("/dev/nvidiactl", F_OK) == 0 || std::getenv("DDPRUN_NVML_LIB") != nullptr;
}

std::vector<GpuMemory> memory_of_gpus() {
  const Nvml nvml;
  std::vector<GpuMemory> gpus;
  for (const Nvml::Device device : nvml.devices()) {
    const auto memory = nvml.query<Nvml::MemoryInfo>("nvmlDeviceGetMemoryInfo", device);
    gpus.push_back({.total = memory ? memory->total : 0, .users = users_of(nvml, device)});
  }
  return gpus;
}

int gpu_in(std::string_view words) {
  for (const std::string_view word : {"(GPU ", " GPU "}) {
    for (std::size_t at = words.find(word); at != std::string_view::npos;
         at = words.find(word, at + 1)) {
      const std::string_view rest = words.substr(at + word.size());
      int gpu = -1;
      const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), gpu);
      const std::string_view after = rest.substr(static_cast<std::size_t>(end - rest.data()));
      if (error == std::errc() && gpu >= 0 &&
          (after.starts_with("; ") || after.starts_with(" has a total capac"))) {
        return gpu;
      }
    }
  }
  return -1;
}

int gpu_at(int ordinal, std::string_view visible) {
  if (ordinal < 0 || visible.empty()) return ordinal;
  const std::vector<std::string> list = split_gpu_list(visible);
  const auto index = static_cast<std::size_t>(ordinal);
  if (index >= list.size()) return -1;
  return as_number<int>(list[index]).value_or(-1);
}

std::string holders_text(const std::vector<GpuMemory>& gpus, const GpuQuestion& question) {
  std::string text;
  for (std::size_t i = 0; i < gpus.size(); ++i) {
    if (question.gpu >= 0 && static_cast<std::size_t>(question.gpu) != i) continue;
    const std::string one = gpu_text(i, gpus[i], question);
    if (!one.empty()) text += (text.empty() ? "" : "; ") + one;
  }
  const bool known = question.gpu >= 0 && static_cast<std::size_t>(question.gpu) < gpus.size();
  if (!text.empty() || !known) return text;
  return "no other process holds memory of GPU " + std::to_string(question.gpu);
}

GpuInquiry::GpuInquiry(boost::asio::io_context& loop, const GpuQuestion& question, Duration limit,
                       Done done)
    : answer_(loop), limit_(loop), done_(std::move(done)) {
  if (auto child = fork_answer([&] { return holders_text(memory_of_gpus(), question); })) {
    child_ = std::move(*child);
    answer_.assign(child_.output.release());
  }
  limit_.expires_after(child_.runs() ? limit : Duration::zero());
  limit_.async_wait([this](const boost::system::error_code& ec) {
    if (!ec) finish();
  });
  if (child_.runs()) read_more();
}

GpuInquiry::~GpuInquiry() { end_child(Milliseconds(0)); }

void GpuInquiry::read_more() {
  answer_.async_read_some(boost::asio::buffer(part_),
                          [this](const boost::system::error_code& ec, std::size_t bytes) {
                            if (ec == boost::asio::error::operation_aborted) return;
                            if (ec) {
                              end_child(kExitLimit);
                              return finish();
                            }
                            text_.append(part_.data(), bytes);
                            read_more();
                          });
}

// One that hangs in the driver may not even die: it is left to the guardian then.
void GpuInquiry::end_child(Milliseconds limit) {
  if (!child_.runs()) return;
  kill(child_);
  (void)reap_within(child_, limit);
  child_ = {};
}

void GpuInquiry::finish() {
  boost::system::error_code ignored;
  answer_.cancel(ignored);
  limit_.cancel();
  end_child(Milliseconds(0));
  // The owner may destroy this object when it has its answer.
  const Done done = std::exchange(done_, nullptr);
  if (done) done(std::move(text_));
}

}  // namespace ddprun::agent
