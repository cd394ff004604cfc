#include "worker_sdk/worker/progress.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <utility>

#include "common/system/descriptors.h"

namespace ddprun::worker_sdk {
namespace {

using std::chrono::nanoseconds;

// The time from boot to the start of this process; std::nullopt if the system does not report it.
std::optional<nanoseconds> start_of_process() {
  std::ifstream file("/proc/self/stat");
  std::string line;
  std::getline(file, line);
  const auto name_ends = line.rfind(')');  // A name may hold anything.
  if (name_ends == std::string::npos) return std::nullopt;
  std::istringstream fields(line.substr(name_ends + 1));
  std::string skipped;
  long long ticks = -1;
  for (int field = 3; field < 22; ++field) fields >> skipped;
  fields >> ticks;
  if (!fields) return std::nullopt;
  return nanoseconds(ticks * (1'000'000'000 / ::sysconf(_SC_CLK_TCK)));
}

}  // namespace

nanoseconds process_age() {
  static const pid_t first_caller = ::getpid();
  static const std::optional<nanoseconds> known = start_of_process();
  // A child that was forked from a process that has called this is younger.
  const auto started = first_caller == ::getpid() ? known : start_of_process();
  timespec now{};
  if (!started || ::clock_gettime(CLOCK_BOOTTIME, &now) != 0) return {};
  const nanoseconds up = std::chrono::seconds(now.tv_sec) + nanoseconds(now.tv_nsec);
  return std::max(up - *started, nanoseconds{0});
}

namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;
// The first operations of each kind allocate, compile and connect: their times are not typical.
constexpr std::uint64_t kWarmUp = 3;

template <std::size_t kMost>
void write_text(std::atomic<char> (&letters)[kMost], std::string_view text) {
  const std::size_t length = std::min(text.size(), kMost - 1);
  for (std::size_t i = 0; i < length; ++i) letters[i].store(text[i], kRelaxed);
  letters[length].store('\0', kRelaxed);
}

bool has_name(const ProgressPage::Slot& slot, std::string_view name) {
  const std::size_t length = std::min(name.size(), ProgressPage::kNameMax - 1);
  for (std::size_t i = 0; i < length; ++i) {
    if (slot.name[i].load(kRelaxed) != name[i]) return false;
  }
  return slot.name[length].load(kRelaxed) == '\0';
}

ProgressPage::Failure page_kind(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::peer_lost: return ProgressPage::kPeerLost;
    case ErrorKind::timed_out: return ProgressPage::kTimedOut;
    case ErrorKind::mismatch: return ProgressPage::kMismatch;
    case ErrorKind::aborted: return ProgressPage::kAborted;
    case ErrorKind::wrong_result: return ProgressPage::kWrongResult;
    default: return ProgressPage::kOther;
  }
}

ProgressPage* map_page(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  struct stat facts {};
  // If another process shortened the file now, the agent and this process would lose the memory.
  if (file) (void)::fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK);
  if (!file || ::fstat(file.get(), &facts) != 0) return nullptr;
  if (static_cast<std::size_t>(facts.st_size) < sizeof(ProgressPage)) return nullptr;
  void* page =
      ::mmap(nullptr, sizeof(ProgressPage), PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  return page == MAP_FAILED ? nullptr : static_cast<ProgressPage*>(page);
}

}  // namespace

Progress::Progress(const std::string& path, std::shared_ptr<RoundFence> fence)
    : fence_(std::move(fence)) {
  if (path.empty()) return;
  mapped_ = map_page(path);
  if (mapped_) listener_ = std::make_unique<LossListener>(*mapped_);
  // If another group of this process reports already, that is enough.
  if (!mapped_ || mapped_->magic.load() == ProgressPage::kMagic) return;
  page_ = mapped_;
  since_ = Clock::now();
  beats_ = page_->beats.load();
  go_to(0, 0);
  page_->magic.store(ProgressPage::kMagic, std::memory_order_release);
}

Progress::~Progress() {
  if (page_) page_->magic.store(0, std::memory_order_release);
  listener_.reset();
  if (mapped_) ::munmap(mapped_, sizeof(ProgressPage));
}

std::optional<LossNotice> Progress::loss_notice() const {
  return mapped_ && !fence_ ? read_loss(*mapped_) : std::nullopt;
}

std::shared_ptr<void> Progress::listen(LossListener::Listener listener) {
  return listener_ ? listener_->listen(std::move(listener)) : nullptr;
}

void Progress::count(const WorkerCounts& more) {
  if (!mapped_) return;
  mapped_->sync.add(more.sums);
  mapped_->late.add(more.late);
}

// The slot that is left has its time counted. No call takes a lock of the kernel's or allocates.
void Progress::go_to(std::size_t slot, std::uint64_t number) {
  const auto now = Clock::now();
  ProgressPage::Slot& left = page_->slots[page_->slot.load(kRelaxed)];
  const auto took = static_cast<std::uint64_t>(std::chrono::nanoseconds(now - since_).count());
  if (beats_ > 0) {
    const std::uint64_t before = left.count.load(kRelaxed);
    left.count.store(before + 1, kRelaxed);
    const bool usual = before >= kWarmUp;
    if (usual && took > left.longest_ns.load(kRelaxed)) left.longest_ns.store(took, kRelaxed);
  }
  since_ = now;
  page_->slot.store(slot, kRelaxed);
  page_->number.store(number, kRelaxed);
  page_->beats.store(++beats_, std::memory_order_release);
}

void Progress::note_failure(ErrorKind kind, int peer) {
  if (!mapped_) return;
  const std::uint64_t culprit = peer < 0 ? 0 : static_cast<std::uint64_t>(peer) + 1;
  std::uint64_t none = ProgressPage::kNone;
  mapped_->failure.compare_exchange_strong(none,
                                           page_kind(kind) | culprit << ProgressPage::kPeerShift);
}

void Progress::note_work(std::string_view text, bool can_skip) {
  if (!mapped_) return;
  mapped_->working.store(ProgressPage::kNoWork, kRelaxed);
  std::atomic_thread_fence(std::memory_order_release);
  if (text.empty()) return;
  write_text(mapped_->work, text);
  mapped_->working.store(can_skip ? ProgressPage::kWorkThatCanBeSkipped : ProgressPage::kWork,
                         std::memory_order_release);
}

void Progress::note_left() noexcept {
  if (mapped_) mapped_->left.store(1);
}

void Progress::note_kept(std::int64_t steps) noexcept {
  if (mapped_)
    mapped_->kept_steps.store(static_cast<std::uint64_t>(std::max<std::int64_t>(steps, 0)));
}

// The program continues with another group: it has survived.
void Progress::forget_end() {
  if (!mapped_) return;
  if (mapped_->failure.load(kRelaxed) != ProgressPage::kNone) {
    mapped_->failure.store(ProgressPage::kNone, kRelaxed);
  }
  if (mapped_->left.load(kRelaxed) != 0) mapped_->left.store(0, kRelaxed);
}

void Progress::enter(const Call& call, bool of_whole_job) {
  forget_end();
  if (!page_) return;
  const std::lock_guard lock(mutex_);
  const auto slot = static_cast<std::size_t>(call.what.kind);
  if (slot >= ProgressPage::kOperations) return;
  if (!has_name(page_->slots[slot], name_of(call.what.kind))) {
    write_text(page_->slots[slot].name, name_of(call.what.kind));
  }
  // Messages between two ranks also have their own numbers, which no other rank can compare.
  const bool between_two = is_message(call.what.kind);
  if (of_whole_job && !between_two) number_ = call.number;
  go_to(slot, number_);
}

void Progress::leave() {
  if (!page_) return;
  const std::lock_guard lock(mutex_);
  go_to(phase_, number_);
}

// A program that names more phases than there are slots has the rest counted as one.
std::size_t Progress::slot_of(std::string_view phase) {
  if (phase.empty()) return 0;
  for (std::size_t i = ProgressPage::kOperations; i < ProgressPage::kSlots; ++i) {
    if (has_name(page_->slots[i], phase)) return i;
    if (!has_name(page_->slots[i], "")) continue;
    write_text(page_->slots[i].name, phase);
    return i;
  }
  return ProgressPage::kSlots - 1;
}

void Progress::end_checkpoint_phase(std::string_view next) {
  const auto now = Clock::now();
  if (checkpoint_since_) {
    stood_still(now - *checkpoint_since_);
    saved(now);
  }
  checkpoint_since_.reset();
  if (next == "checkpoint") checkpoint_since_ = now;
}

void Progress::set_phase(std::string_view name) {
  if (!page_) return;
  const std::lock_guard lock(mutex_);
  end_checkpoint_phase(name);
  phase_ = slot_of(name);
  go_to(phase_, number_);
}

// The part of Progress that counts what the agent's ledger needs.

namespace {

std::uint64_t ns(std::chrono::nanoseconds time) {
  return static_cast<std::uint64_t>(std::max<std::int64_t>(time.count(), 0));
}

std::atomic<std::uint64_t>& place(ProgressPage& page, SyncCounts::Row row) {
  return page.sync.values[row.at];
}

// 0: no step has begun.
std::uint64_t since_first_step(ProgressPage& page, std::chrono::steady_clock::time_point then) {
  const std::uint64_t startup = place(page, "startup_ns").load(ProgressPage::kRelaxed);
  if (startup == 0) return 0;
  const std::uint64_t age = ns(process_age() - (std::chrono::steady_clock::now() - then));
  return age > startup ? age - startup : 0;
}

void note_age(std::atomic<std::uint64_t>& value, std::chrono::nanoseconds age) {
  std::uint64_t none = 0;
  value.compare_exchange_strong(none, std::max<std::uint64_t>(ns(age), 1));
}

void raise_to(std::atomic<std::uint64_t>& value, std::uint64_t after) {
  std::uint64_t before = value.load(ProgressPage::kRelaxed);
  while (after > before && !value.compare_exchange_weak(before, after)) {
  }
}

}  // namespace

// Several groups or models of a process may begin; the first counts.
void Progress::begin_steps() {
  if (mapped_) note_age(place(*mapped_, "startup_ns"), process_age());
}

void Progress::begin_joining(std::chrono::nanoseconds age) {
  if (mapped_) note_age(place(*mapped_, "joining_ns"), age);
}

void Progress::met() {
  if (mapped_) note_age(place(*mapped_, "met_ns"), process_age());
}

void Progress::expect_steps(std::uint64_t more) {
  if (!mapped_) return;
  const std::uint64_t made = place(*mapped_, "steps").load(ProgressPage::kRelaxed);
  place(*mapped_, "expected").store(made + more, ProgressPage::kRelaxed);
}

void Progress::count_step(Clock::duration took) {
  if (!mapped_) return;
  place(*mapped_, "steps_ns").fetch_add(ns(took), ProgressPage::kRelaxed);
  place(*mapped_, "commits").fetch_add(1, ProgressPage::kRelaxed);
}

void Progress::stood_still(Clock::duration took) {
  if (mapped_) place(*mapped_, "checkpoint_ns").fetch_add(ns(took), ProgressPage::kRelaxed);
}

void Progress::saved(Clock::time_point then) {
  if (mapped_) raise_to(place(*mapped_, "saved_ns"), since_first_step(*mapped_, then));
}

void Progress::stepped(Clock::time_point then) {
  if (mapped_) raise_to(place(*mapped_, "stepped_ns"), since_first_step(*mapped_, then));
}

}  // namespace ddprun::worker_sdk
