#include "agent/health/progress_files.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "common/system/signals.h"

namespace ddprun::agent {
namespace {

std::int64_t modified_ns(const UniqueFd& file) {
  struct stat facts {};
  if (::fstat(file.get(), &facts) != 0) return 0;
  return std::int64_t{facts.st_mtim.tv_sec} * 1'000'000'000 + facts.st_mtim.tv_nsec;
}

template <std::size_t kMost>
std::string text_of(const std::atomic<char> (&letters)[kMost]) {
  std::string text;
  for (const auto& letter : letters) {
    const char c = letter.load(std::memory_order_relaxed);
    if (c == '\0') break;
    text += c >= ' ' && c <= '~' ? c : '?';  // It ends up in log lines.
  }
  return text;
}

}  // namespace

ProgressSample read_page(const ProgressPage& page) {
  ProgressSample sample;
  if (page.magic.load(std::memory_order_acquire) != ProgressPage::kMagic) return sample;
  const std::uint64_t slot = page.slot.load(std::memory_order_relaxed);
  if (slot >= ProgressPage::kSlots) return sample;
  sample.reports = true;
  sample.beats = page.beats.load(std::memory_order_acquire);
  sample.in_collective = slot > 0 && slot < ProgressPage::kOperations;
  sample.phase = text_of(page.slots[slot].name);
  sample.number = page.number.load(std::memory_order_relaxed);
  sample.count = page.slots[slot].count.load(std::memory_order_relaxed);
  // A year is more than any phase takes, and little enough to be multiplied.
  constexpr std::uint64_t kYearNs = std::uint64_t{365} * 24 * 3600 * 1'000'000'000;
  const std::uint64_t longest = page.slots[slot].longest_ns.load(std::memory_order_relaxed);
  sample.longest = std::chrono::nanoseconds(std::min(longest, kYearNs));
  return sample;
}

WorkerCounts read_sync(const ProgressPage& page) { return {page.sync.read(), page.late.read()}; }

WorkerFate read_fate(const ProgressPage& page) {
  const auto bounded = [](std::uint64_t count) {
    return static_cast<std::int64_t>(std::min(count, std::uint64_t{1} << 50));
  };
  WorkerFate fate;
  const std::uint64_t failure = page.failure.load(std::memory_order_relaxed);
  const std::uint64_t kind = failure & ((1U << ProgressPage::kPeerShift) - 1);
  if (kind <= ProgressPage::kWrongResult) fate.failure = static_cast<ProgressPage::Failure>(kind);
  const std::uint64_t peer = failure >> ProgressPage::kPeerShift;
  if (peer > 0 && peer <= std::numeric_limits<int>::max()) fate.peer = static_cast<int>(peer) - 1;
  fate.collective = bounded(page.number.load(std::memory_order_relaxed));
  fate.steps = bounded(page.sync.read()["steps"]);
  fate.left = page.left.load() != 0;
  fate.kept_steps = bounded(page.kept_steps.load(std::memory_order_relaxed));
  const std::uint64_t working = page.working.load(std::memory_order_acquire);
  if (working == ProgressPage::kNoWork || working > ProgressPage::kWorkThatCanBeSkipped)
    return fate;
  fate.work = text_of(page.work);
  fate.can_skip = working == ProgressPage::kWorkThatCanBeSkipped;
  return fate;
}

void write_loss(ProgressPage& page, int lost_rank, const std::string& why) {
  if (page.lost.load(std::memory_order_relaxed) != 0) return;
  const std::size_t length = std::min(why.size(), ProgressPage::kWhyMax - 1);
  for (std::size_t i = 0; i < length; ++i) page.why[i].store(why[i], std::memory_order_relaxed);
  page.why[length].store('\0', std::memory_order_relaxed);
  page.lost.store(static_cast<std::uint64_t>(lost_rank) + 1, std::memory_order_release);
  ring(page.bell);
}

Result<ProgressFile> ProgressFile::make(int local_rank) {
  const std::string name = "ddprun progress of local rank " + std::to_string(local_rank);
  UniqueFd file(::memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file || ::ftruncate(file.get(), sizeof(ProgressPage)) != 0) {
    return errno_failure("making a progress page");
  }
  void* page =
      ::mmap(nullptr, sizeof(ProgressPage), PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (page == MAP_FAILED) return errno_failure("mapping a progress page");
  return ProgressFile(std::move(file), static_cast<ProgressPage*>(page));
}

ProgressFile::ProgressFile(ProgressFile&& other) noexcept
    : file_(std::move(other.file_)),
      page_(std::exchange(other.page_, nullptr)),
      is_page_(other.is_page_),
      made_ns_(other.made_ns_),
      touched_ns_(other.touched_ns_),
      touches_(other.touches_),
      longest_(other.longest_) {}

ProgressFile::~ProgressFile() {
  if (page_) ::munmap(page_, sizeof(ProgressPage));
}

std::string ProgressFile::path() const {
  return "/proc/" + std::to_string(::getpid()) + "/fd/" + std::to_string(file_.get());
}

void ProgressFile::notify_loss(int lost_rank, const std::string& why) {
  if (lost_rank >= 0 && is_page()) write_loss(*page_, lost_rank, why);
}

bool ProgressFile::request_bundle() {
  if (!is_page() || page_->takes_requests.load(std::memory_order_relaxed) == 0) return false;
  page_->bundles.fetch_add(1, std::memory_order_relaxed);
  return true;
}

// The SDK has made sure that the file stays as long as the page. Until then `> $DDPRUN_PROGRESS` in
// a script takes the memory from under the mapping, and reading it would end us with SIGBUS.
bool ProgressFile::is_page() {
  if (is_page_) return true;
  const int seals = ::fcntl(file_.get(), F_GET_SEALS);
  struct stat facts {};
  is_page_ = seals >= 0 && (seals & F_SEAL_SHRINK) != 0 && ::fstat(file_.get(), &facts) == 0 &&
             facts.st_size >= static_cast<off_t>(sizeof(ProgressPage));
  return is_page_;
}

WorkerCounts ProgressFile::sync() { return is_page() ? read_sync(*page_) : WorkerCounts(); }

WorkerFate ProgressFile::fate() { return is_page() ? read_fate(*page_) : WorkerFate(); }

ProgressSample ProgressFile::read() {
  if (!is_page()) return read_touches();
  const ProgressSample sample = read_page(*page_);
  if (sample.reports || page_->beats.load(std::memory_order_relaxed) > 0) return sample;
  return read_touches();
}

// The times between touches are only as exact as our checks, so what is learned is rather too long.
ProgressSample ProgressFile::read_touches() {
  const std::int64_t now = modified_ns(file_);
  if (made_ns_ == 0) made_ns_ = touched_ns_ = now;
  if (now != touched_ns_) {
    const bool first = touches_ == 0;
    if (!first)
      longest_ = std::max<Duration>(longest_, std::chrono::nanoseconds(now - touched_ns_));
    touched_ns_ = now;
    ++touches_;
  }
  ProgressSample sample;
  sample.reports = touches_ > 0;
  sample.beats = sample.count = touches_;
  sample.longest = longest_;
  return sample;
}

}  // namespace ddprun::agent
