#include "worker_sdk/shm/shm_team.h"

#include <sched.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>

#include "common/assert.h"
#include "common/system/held_process.h"

namespace ddprun::worker_sdk {
namespace {

using std::chrono::nanoseconds;

// How long a sleeper goes without looking after its peers.
constexpr nanoseconds kPollInterval = std::chrono::milliseconds(10);

// A few times as long as waking a sleeping CPU takes.
constexpr nanoseconds kSpin = std::chrono::microseconds(50);

// The lowest 4 bits of a rank's state. For kGaveUp, the next 8 hold the ErrorKind and the others
// the culprit's rank in the group + 1.
enum RankState : std::uint32_t { kPresent = 0, kLeft, kGaveUp, kAborted };

RankState state_in(std::uint32_t word) { return static_cast<RankState>(word & 0xf); }

// A rank without one is this process.
bool has_died(const UniqueFd& process, std::chrono::milliseconds patience = {}) {
  return process && ends_within(process, patience);
}

// While one lives, `place` has the counter on which this rank sleeps.
class Sleep {
 public:
  Sleep(std::atomic<SharedCounter*>& place, SharedCounter& counter) : place_(place) {
    place_.store(&counter);
  }
  ~Sleep() { place_.store(nullptr); }
  Sleep(const Sleep&) = delete;

 private:
  std::atomic<SharedCounter*>& place_;
};

}  // namespace

struct ShmTeam::Line : ShmLine {};

ShmTeam::ShmTeam(std::shared_ptr<const Roster> roster, std::vector<int> members,
                 std::shared_ptr<Segment> control, std::vector<UniqueFd> processes)
    : roster_(std::move(roster)),
      members_(std::move(members)),
      rank_(team_rank(roster_->rank)),
      control_(std::move(control)),
      processes_(std::move(processes)),
      spin_(nanoseconds(0)) {
  DDPRUN_ASSERT(rank_ >= 0);
  DDPRUN_ASSERT(control_->bytes() >= control_bytes(size()));
  DDPRUN_ASSERT(processes_.size() == members_.size());
  show_cpus();
}

ShmTeam::~ShmTeam() {
  std::uint32_t present = kPresent;
  line(rank()).state.compare_exchange_strong(present, kLeft);
}

int ShmTeam::team_rank(int group_rank) const {
  const auto at = std::find(members_.begin(), members_.end(), group_rank);
  return at == members_.end() ? -1 : static_cast<int>(at - members_.begin());
}

std::size_t ShmTeam::control_bytes(int ranks) { return ShmLayout(ranks).total(); }

void ShmTeam::show_cpus() const {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof(set), &set) != 0) return;
  auto& mine = *reinterpret_cast<ShmCpus*>(control_->data() + ShmLayout(size()).cpus(rank()));
  for (std::size_t cpu = 0; cpu < 64 * std::size(mine.words); ++cpu) {
    if (CPU_ISSET(cpu, &set)) mine.words[cpu / 64].fetch_or(std::uint64_t{1} << cpu % 64);
  }
}

// Counts the CPUs of all ranks together: each may be bound to one of its own. Known after a
// barrier.
bool ShmTeam::have_cpus_for_all() const {
  std::array<std::uint64_t, std::size(ShmCpus{}.words)> all{};
  for (int r = 0; r < size(); ++r) {
    const auto& cpus =
        *reinterpret_cast<const ShmCpus*>(control_->data() + ShmLayout(size()).cpus(r));
    for (std::size_t i = 0; i < all.size(); ++i) all[i] |= cpus.words[i].load();
  }
  int number = 0;
  for (const std::uint64_t word : all) number += std::popcount(word);
  return size() <= number;
}

ShmTeam::Line& ShmTeam::line(int r) const {
  return *reinterpret_cast<Line*>(control_->data() + ShmLayout(size()).line(r));
}

Posting& ShmTeam::posting(unsigned exchange, int r) const {
  return reinterpret_cast<PostingSlot*>(control_->data() +
                                        ShmLayout(size()).posting(exchange % 2, r))
      ->posting;
}

const Posting& ShmTeam::posting(int r) const { return posting(exchanges_, r); }

std::byte* ShmTeam::small_of_next() const {
  return control_->data() + ShmLayout(size()).small((exchanges_ + 1) % 2, rank());
}

std::byte* ShmTeam::small(int r) const {
  return control_->data() + ShmLayout(size()).small(exchanges_ % 2, r);
}

std::byte* ShmTeam::staging(unsigned parity, int r) const {
  return control_->data() + ShmLayout(size()).staging(parity, r);
}

std::byte* ShmTeam::result(unsigned parity) const {
  return control_->data() + ShmLayout(size()).result(parity);
}

Mailbox& ShmTeam::mailbox(int source, int destination) const {
  return *reinterpret_cast<Mailbox*>(control_->data() +
                                     ShmLayout(size()).mailbox(source, destination));
}

std::byte* ShmTeam::parcel(int source, int destination, unsigned parity) const {
  return control_->data() + ShmLayout(size()).parcel(source, destination, parity);
}

void ShmTeam::enter(const Call& call) {
  if (aborted_.load(std::memory_order_relaxed) || lost_) {
    check(call, [] { return std::vector<int>(); });
  }
  ++entered_;
  line(rank()).cpu.store(::sched_getcpu(), std::memory_order_relaxed);
  publish(line(rank()).entered, entered_);
  const auto missing = [this] {
    std::vector<int> ranks;
    for (int r = 0; r < size(); ++r) {
      if (!has_reached(line(r).entered.value.load(std::memory_order_acquire), entered_)) {
        ranks.push_back(r);
      }
    }
    return ranks;
  };
  for (int r = 0; r < size(); ++r) {
    if (r != rank()) await_while(call, line(r).entered, entered_, r, missing);
  }
  if (entered_ == 1 && have_cpus_for_all()) spin_ = SpinBudget(kSpin);
}

void ShmTeam::exchange(const Call& call, const Posting& mine) {
  posting(exchanges_ + 1, rank()) = mine;
  ++exchanges_;
  enter(call);
  check_agreement(call);
}

void ShmTeam::await(const Call& call, SharedCounter& counter, std::uint32_t target, int peer) {
  await_while(call, counter, target, peer, [&] {
    const bool reached = has_reached(counter.value.load(std::memory_order_acquire), target);
    return reached ? std::vector<int>() : std::vector<int>{peer};
  });
}

template <class Missing>
void ShmTeam::await_while(const Call& call, SharedCounter& counter, std::uint32_t target, int peer,
                          Missing missing) {
  if (has_reached(counter.value.load(std::memory_order_acquire), target)) return;
  if (spins() && line(peer).cpu.load(std::memory_order_relaxed) == ::sched_getcpu()) {
    if (yield_until_reached(counter, target, kSpin)) return;
  } else {
    if (spin_until_reached(counter, target, spin_.limit())) return spin_.worked();
    spin_.failed();
  }
  const Sleep here(awaited_, counter);
  for (;;) {
    const nanoseconds left = call.deadline - Clock::now();
    if (sleep_until_reached(counter, target, std::min(kPollInterval, left))) return;
    check(call, missing);
  }
}

// From any thread. A rank that is just about to sleep looks after kPollInterval.
void ShmTeam::check_now() noexcept {
  if (SharedCounter* counter = awaited_.load()) wake_sleepers(*counter);
}

void ShmTeam::lose(int group_rank, const std::string& why) noexcept {
  lost_.report(group_rank, why);
  check_now();
}

// Throws if waiting is useless. A rank that is gone may have done its part before, so `missing` is
// queried again after its state was read.
template <class Missing>
void ShmTeam::check(const Call& call, Missing missing) const {
  if (aborted_.load()) {
    throw failure(*roster_, call, ErrorKind::aborted, -1, "this rank called abort()");
  }
  if (lost_) throw lost_.error(*roster_, call);
  const auto lost = [&](int r, const std::string& why) {
    const std::vector<int> still = missing();
    if (std::find(still.begin(), still.end(), r) == still.end()) return;
    throw failure(*roster_, call, ErrorKind::peer_lost, group_rank(r), name(r) + why);
  };
  for (const int r : missing()) {
    const RankState state = state_in(line(r).state.load());
    if (state == kLeft) lost(r, " has left the job");
    if (state == kAborted) lost(r, " called abort()");
    if (has_died(processes_[static_cast<std::size_t>(r)]) &&
        state_in(line(r).state.load()) != kGaveUp) {
      lost(r, " has died");
    }
  }
  const std::vector<int> late = missing();
  if (late.empty()) return;
  for (int r = 0; r < size(); ++r) {
    const std::uint32_t state = line(r).state.load();
    if (state_in(state) != kGaveUp) continue;
    if (missing().empty()) return;
    const int culprit = static_cast<int>(state >> 12) - 1;
    const bool other = culprit >= 0 && culprit != roster_->rank;
    throw failure(
        *roster_, call, static_cast<ErrorKind>(state >> 4 & 0xff), other ? culprit : group_rank(r),
        name(r) + " has given up" + (other ? " because of " + roster_->name(culprit) : ""));
  }
  if (Clock::now() < call.deadline) return;
  std::vector<int> names;
  for (const int r : late) names.push_back(group_rank(r));
  throw failure(*roster_, call, ErrorKind::timed_out, names.front(),
                "no sign of " + roster_->names(names), names);
}

// All ranks see the same postings, so all throw and blame the same rank: the lowest that differs
// from what most have called (from rank 0, if there is no majority).
void ShmTeam::check_agreement(const Call& call) const {
  const auto same = [this](int a, int b) {
    return posting(a).what == posting(b).what && posting(a).number == posting(b).number;
  };
  int first_odd = 0;
  while (first_odd < size() && same(0, first_odd)) ++first_odd;
  if (first_odd == size()) return;
  int reference = 0;
  for (int r = 0, most = 0; r < size(); ++r) {
    int votes = 0;
    for (int other = 0; other < size(); ++other) votes += same(r, other) ? 1 : 0;
    if (votes > most) most = votes, reference = r;
  }
  const int odd = reference == 0 ? first_odd : 0;
  const auto called = [this](int r) {
    return name(r) + " called " +
           to_string(Call{.what = posting(r).what, .number = posting(r).number});
  };
  throw failure(*roster_, call, ErrorKind::mismatch, group_rank(odd),
                called(odd) + " where " + called(reference));
}

bool ShmTeam::ends(int rank, std::chrono::milliseconds patience) const {
  return has_died(processes_[static_cast<std::size_t>(rank)], patience);
}

void ShmTeam::give_up(const Error& error) noexcept {
  const auto culprit = static_cast<std::uint32_t>(roster_->from_shown(error.where().peer) + 1);
  const auto kind = static_cast<std::uint32_t>(error.code().value());
  std::uint32_t present = kPresent;
  line(rank()).state.compare_exchange_strong(present, kGaveUp | kind << 4 | culprit << 12);
}

void ShmTeam::abort() noexcept {
  aborted_.store(true);
  line(rank()).state.store(kAborted);
  check_now();
}

}  // namespace ddprun::worker_sdk
