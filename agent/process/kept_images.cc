#include "agent/process/kept_images.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <optional>

#include "agent/process/proc_file.h"
#include "common/archive/packed.h"
#include "common/system/held_process.h"
#include "common/text/figures.h"

namespace ddprun::agent {
namespace {

constexpr std::size_t kProgramMax = 4096, kKeyMax = 64;
constexpr int kModulesMax = 1'000'000;
constexpr std::uint64_t kBlockBytes = 512;                       // Of stat::st_blocks.
constexpr const char* kMemory = "/memfd:ddprun-kept (deleted)";  // As /proc shows the file.
constexpr int kSeals = F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE;

using Form = archive::Ended<'\0'>;

// Nothing: it is none, or none of ours.
std::optional<KeptImage> image_of(int pid) {
  const std::string folder = "/proc/" + std::to_string(pid);
  if (read_proc_file(folder + "/comm") != std::string(kHolderName) + "\n") return std::nullopt;
  struct stat process {};
  if (::stat(folder.c_str(), &process) != 0 || process.st_uid != ::geteuid()) return std::nullopt;
  KeptImage image;
  image.holder = pid;
  image.process = hold_process(pid);
  if (!image.process) return std::nullopt;
  const std::string path = folder + "/fd/" + std::to_string(kHolderFile);
  std::array<char, 64> target{};
  const ssize_t size = ::readlink(path.c_str(), target.data(), target.size());
  if (size < 0 || std::string_view(target.data(), static_cast<std::size_t>(size)) != kMemory) {
    return std::nullopt;
  }
  image.file.reset(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat status {};
  // Only root could open what is another user's, and must not run it.
  if (!image.file || ::fstat(image.file.get(), &status) != 0 || status.st_uid != ::geteuid() ||
      !is_sealed(image.file.get())) {
    return std::nullopt;
  }
  auto facts = facts_of(image.file.get());
  // The number may have become that of another process since; the descriptor has not.
  if (!facts || !send_signal(image.process, 0)) return std::nullopt;
  image.facts = std::move(*facts);
  image.bytes = static_cast<std::uint64_t>(status.st_blocks) * kBlockBytes;
  image.until = status.st_mtim.tv_sec;
  return image;
}

}  // namespace

void fields(auto& a, archive::Is<KeptFacts> auto& m) {
  a.constant("kind", "ddprun kept 1");
  a.text("key", m.key, kKeyMax), a.text("program", m.program, kProgramMax);
  a("modules", m.modules);
}

std::string encode(KeptFacts facts) {
  std::erase(facts.program, '\0');
  if (facts.program.size() > kProgramMax) facts.program.resize(kProgramMax);
  return archive::packed<Form>(facts);
}

Result<KeptFacts> decode_kept_facts(std::string_view bytes) {
  constexpr int kFields = 4;
  std::size_t end = 0;
  for (int field = 0; field < kFields && end <= bytes.size(); ++field) {
    const std::size_t next = bytes.find('\0', end);
    end = next == std::string_view::npos ? bytes.size() + 1 : next + 1;
  }
  auto facts = archive::unpacked<Form, KeptFacts>(bytes.substr(0, std::min(end, bytes.size())),
                                                  "what is known of a kept fork server");
  if (!facts) return facts;
  if (facts->modules < 0 || facts->modules > kModulesMax) {
    return archive::failure_of({"modules"}, "what is known of a kept fork server");
  }
  return facts;
}

Result<KeptFacts> facts_of(int file) {
  std::string bytes(kKeptFactsMax, '\0');
  const ssize_t got = ::pread(file, bytes.data(), bytes.size(), 0);
  bytes.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
  return decode_kept_facts(bytes);
}

std::vector<KeptImage> kept_images() {
  std::vector<KeptImage> images;
  for (const int pid : numbered_entries("/proc")) {
    if (auto image = image_of(pid)) images.push_back(std::move(*image));
  }
  std::ranges::stable_sort(images, {}, &KeptImage::until);
  return images;
}

// A run that uses it has locked it.
bool is_in_use(const KeptImage& image) {
  if (::flock(image.file.get(), LOCK_EX | LOCK_NB) != 0) return true;
  ::flock(image.file.get(), LOCK_UN);
  return false;
}

void make_room_for(const std::string& key) {
  std::vector<KeptImage> images = kept_images();
  const auto replaced = std::ranges::stable_partition(
      images, [&](const KeptImage& image) { return image.facts.key != key; });
  for (const KeptImage& image : replaced) send_signal(image.process, SIGKILL);
  images.erase(replaced.begin(), replaced.end());
  for (std::size_t i = 0; i + kKeptMax <= images.size(); ++i) {
    if (!is_in_use(images[i])) send_signal(images[i].process, SIGKILL);
  }
}

Result<UniqueFd> make_image_file() {
  UniqueFd file(::memfd_create(kHolderName, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file || ::fchmod(file.get(), S_IRUSR | S_IWUSR) != 0) {
    return errno_failure("making a file in memory");
  }
  return file;
}

Result<void> seal_image(int file, const KeptFacts& facts) {
  const std::string bytes = encode(facts);
  const auto size = static_cast<ssize_t>(bytes.size());
  const bool written = ::pwrite(file, bytes.data(), bytes.size(), 0) == size;
  if (written && ::fcntl(file, F_ADD_SEALS, kSeals) == 0) return {};
  return errno_failure("completing the file of a kept fork server");
}

bool is_sealed(int file) {
  const int seals = ::fcntl(file, F_GET_SEALS);
  return seals >= 0 && (seals & kSeals) == kSeals;
}

Result<void> keep_for(int file, std::chrono::minutes time) {
  const std::time_t until = std::time(nullptr) + std::chrono::seconds(time).count();
  const timespec times[2] = {{.tv_sec = 0, .tv_nsec = UTIME_OMIT}, {.tv_sec = until, .tv_nsec = 0}};
  if (::futimens(file, times) == 0) return {};
  return errno_failure("setting until when a fork server is kept");
}

std::time_t kept_until(int file) {
  struct stat status {};
  return ::fstat(file, &status) == 0 ? status.st_mtim.tv_sec : 0;
}

std::string kept_sentence(int holder, int file) {
  struct stat status {};
  std::tm fields{};
  char clock[16] = "?";
  if (::fstat(file, &status) == 0 && ::localtime_r(&status.st_mtim.tv_sec, &fields)) {
    std::strftime(clock, sizeof clock, "%H:%M", &fields);
  }
  const std::string process = std::to_string(holder);
  return "preload: the imported modules are kept in memory (" +
         memory_text(static_cast<std::uint64_t>(status.st_blocks) * kBlockBytes) + ") until " +
         clock + " by process " + process + "; end it by `ddprunctl preload --end " + process + "`";
}

}  // namespace ddprun::agent
