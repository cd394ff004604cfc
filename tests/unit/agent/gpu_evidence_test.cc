// What the machine shows about a failure of a GPU, and about a time limit.

#include <boost/asio/io_context.hpp>
#include <catch2/catch.hpp>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>

#include "agent/health/death_evidence.h"
#include "agent/placement/gpu_memory.h"

namespace ddprun::agent {
namespace {

using namespace std::chrono_literals;

struct KernelLog {
  std::filesystem::path root;
  explicit KernelLog(const std::string& text) {
    char folder[] = "/tmp/ddprun-kmsg-XXXXXX";
    root = ::mkdtemp(folder);
    std::filesystem::create_directories(root / "dev");
    std::ofstream(root / "dev/kmsg") << text;
  }
  ~KernelLog() { std::filesystem::remove_all(root); }
};

WorkerDeath failed(Fault fault, const std::string& words = "CUDA error") {
  return {.pid = 4711, .exit_code = 1, .detail = words, .fault = fault};
}

TEST_CASE("GPU log: an Xid of the hardware is the cause, an old one is not", "[gpu]") {
  const KernelLog log(
      "3,10,1000,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=99, GPU has fallen off the bus.\n"
      "3,11,5000,-;NVRM: Xid (PCI:0000:3b:00): 31, pid=4711, name=python3, Ch 00000008, MMU Fault\n"
      "3,12,6000,-;NVRM: Xid (PCI:0000:5e:00): 13, pid=88, Graphics Exception\n");
  GpuLog watch(log.root.string());
  const auto seen = [&](std::int64_t began, WorkerDeath death) {
    watch.begin(began);
    watch.add_to(death);
    return death;
  };
  const WorkerDeath mistake = seen(2000, failed(Fault::kGpuAccess));
  CHECK(mistake.fault == Fault::kGpuAccess);
  CHECK(
      mistake.evidence ==
      "kernel log: NVRM: Xid (PCI:0000:3b:00): 31, pid=4711, name=python3, Ch 00000008, MMU Fault");
  const WorkerDeath broken = seen(0, failed(Fault::kGpuAccess));
  CHECK(broken.fault == Fault::kGpuBroken);
  CHECK(broken.evidence.find("fallen off the bus") != std::string::npos);
  CHECK(seen(0, failed(Fault::kException)).fault == Fault::kGpuBroken);
  CHECK(seen(0, failed(Fault::kException, "KeyError: 'x'")) ==
        failed(Fault::kException, "KeyError: 'x'"));
  CHECK(seen(0, failed(Fault::kOutOfMemory)) == failed(Fault::kOutOfMemory));
  CHECK(seen(7000, failed(Fault::kGpuAccess)) == failed(Fault::kGpuAccess));
}

TEST_CASE("GPU log: lines that are no Xid", "[gpu]") {
  for (const char* line : {"", "NVRM: Xid", "NVRM: Xid (PCI:0000:3b:00)", "NVRM: Xid (x): abc",
                           "6,1,2,-;usb 1-1: new device"}) {
    CHECK_FALSE(xid_in(line));
  }
  CHECK(xid_in("NVRM: Xid (PCI:0000:3b:00): 48, pid='<unknown>', name=<unknown>")->pid == 0);
}

TEST_CASE("Time limit: only near its end, and only signals that a batch system sends", "[limit]") {
  const std::string over = "the time limit of Slurm job 4711 is reached";
  CHECK(time_limit_over("1700000000", "4711", 1700000000) == over);
  CHECK(time_limit_over("1700000000", "4711", 1700000090) == over);
  CHECK(time_limit_over("1700000000", "4711", 1699999900).empty());
  CHECK(time_limit_over("1700000000", "4711", 1700001000).empty());
  for (const char* end : {"", "0", "-5", "soon", "1700000000x"}) {
    CHECK(time_limit_over(end, "4711", 1700000000).empty());
  }
  CHECK(time_limit_over(SIGINT).empty());
}

TEST_CASE("GPU memory: the GPU that PyTorch names", "[gpu]") {
  CHECK(gpu_in("Tried to allocate 2 GiB (GPU 3; 10.92 GiB total capacity; 8.57 MiB") == 3);
  CHECK(gpu_in("Tried to allocate 2 GiB. GPU 12 has a total capacty of 14.75 GiB of which") == 12);
  CHECK(gpu_in("Tried to allocate 2 GiB. GPU 0 has a total capacity of 14.75 GiB of which") == 0);
  for (const char* words :
       {"", "CUDA error: out of memory", "no GPU ", "GPU 3 is fast", " GPU -1; "}) {
    CHECK(gpu_in(words) == -1);
  }
  CHECK(gpu_at(1, "") == 1);
  CHECK(gpu_at(1, "4,6") == 6);
  CHECK(gpu_at(2, "4,6") == -1);
  CHECK(gpu_at(0, "GPU-5ebe") == -1);
  CHECK(gpu_at(-1, "4,6") == -1);
}

TEST_CASE("GPU memory: those that hold it, without the process that was refused", "[gpu]") {
  constexpr std::uint64_t kGiB = 1 << 30;
  const std::vector<GpuMemory> gpus = {
      {.total = 80 * kGiB,
       .users = {{.pid = 20398, .bytes = 14 * kGiB, .name = "python3"},
                 {.pid = 7, .bytes = kGiB},
                 {.pid = 50, .bytes = 30 * kGiB, .name = "python3"}}},
      {.total = 80 * kGiB, .users = {{.pid = 51, .bytes = 0, .name = "x"}}}};
  const GpuQuestion question{.gpu = 0, .pid = 50, .ranks = {{7, 3}}};
  CHECK(holders_text(gpus, question) ==
        "of the 80.0 GiB of GPU 0 other processes hold parts: pid 20398 (python3) 14.0 GiB, rank 3 "
        "(pid 7) 1.0 GiB");
  CHECK(holders_text(gpus, {.gpu = 1, .pid = 51}) == "no other process holds memory of GPU 1");
  CHECK(holders_text(gpus, {.gpu = 1, .pid = 50}) ==
        "of the 80.0 GiB of GPU 1 another process holds a part: pid 51 (x)");
  CHECK(holders_text(gpus, {.gpu = 7, .pid = 50}).empty());
  CHECK(holders_text({}, {.gpu = 0, .pid = 50}).empty());
}

// What was answered until the loop had nothing more to wait for.
std::optional<std::string> answer(const char* nvml, const char* illness, Duration limit) {
  ::setenv("DDPRUN_NVML_LIB", nvml, 1);
  ::setenv("FAKE_SICK_NVML", illness, 1);
  boost::asio::io_context loop;
  std::optional<std::string> text;
  const GpuInquiry inquiry(loop, {.gpu = 1, .pid = 50}, limit,
                           [&](std::string given) { text = std::move(given); });
  loop.run();
  ::unsetenv("FAKE_SICK_NVML");
  ::unsetenv("DDPRUN_NVML_LIB");
  return text;
}

TEST_CASE("GPU memory: a child asks NVML, and one that hangs costs the limit only", "[gpu]") {
  const std::string held = answer(FAKE_SICK_NVML_LIB, "used", 30s).value_or("none");
  CHECK(held.starts_with("of the 79.1 GiB of GPU 1 another process holds a part: pid "));
  CHECK(held.ends_with(" 14.5 GiB"));
  CHECK(answer(FAKE_SICK_NVML_LIB, "", 30s) == "no other process holds memory of GPU 1");
  CHECK(answer("/nonexistent", "", 30s) == "");
  CHECK(answer(FAKE_SICK_NVML_LIB, "hang", 50ms) == "");
  CHECK(answer(FAKE_SICK_NVML_LIB, "leave", 30s) == "");
}

}  // namespace
}  // namespace ddprun::agent
