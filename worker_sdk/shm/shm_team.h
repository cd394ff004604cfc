#pragma once
// The ranks of one host as seen through their shared segment: barriers, what each of them is
// calling, and whether they still live. Does not reduce; shm_backend.h moves the bytes.
//
//   enter():    a barrier. Returns when all ranks have entered as often as this one.
//   exchange(): a barrier at which each rank shows its Posting to all others.
//
// Ranks are counted within the team here, from 0; errors name them by their rank in the group. The
// two differ if the team is only the part of the group that shares a host.
//
// A rank that dies is noticed by its held process, one that gives up by its state, within
// kPollInterval; one that the agent has lost by the agent's notice, mostly at once; one that is
// merely late, by the deadline. All are thrown as Error and name the rank.
//
// Why a Posting needs no second barrier: there are two sets, used in turn. A rank writes into a set
// again only after the next exchange's barrier, which no rank enters before it has read the former
// one.

#include <atomic>
#include <cstddef>
#include <memory>
#include <vector>

#include "common/system/descriptors.h"
#include "ddprun/error.h"
#include "worker_sdk/base/operation.h"
#include "worker_sdk/shm/shm_segment.h"
#include "worker_sdk/shm/shm_sync.h"
#include "worker_sdk/transport/diagnosis.h"

namespace ddprun::worker_sdk {

// What a rank shows the others at the start of an operation.
struct Posting {
  Signature what;
  std::uint64_t number = 0;
  std::uint64_t memory_id = 0;  // The allocate() of the array; 0 for ordinary memory.
  std::uint64_t offset = 0;     // The array's offset in that memory.
  SegmentName segment = {};     // For a new allocation.
  std::int32_t error = 0;       // errno, if this rank cannot take part in an allocation.
};

constexpr std::size_t kSmallBytes = 8 << 10;    // Up to here each rank reduces everything itself.
constexpr std::size_t kChunkBytes = 512 << 10;  // Staged by a rank between two barriers.
constexpr std::size_t kParcelBytes = 64 << 10;  // Staged by send() at once.
constexpr int kShmRanksMax = 128;

// A parcel of a send() in transit; the first one of each message describes it to the receiver.
struct Parcel {
  Signature what;
  std::uint64_t number = 0;
};

// One direction between two ranks, with room for two parcels. The counters count parcels.
struct Mailbox {
  alignas(128) SharedCounter sent;
  alignas(128) SharedCounter taken;
  Parcel parcels[2];
};

class ShmTeam {
 public:
  // `members`: the team's ranks in the group, rising; this one's is among them. `control` is a
  // segment of control_bytes(n), zeroed before the first rank used it. `processes`, held, by
  // member; an empty one for a rank that cannot die without this one.
  ShmTeam(std::shared_ptr<const Roster> roster, std::vector<int> members,
          std::shared_ptr<Segment> control, std::vector<UniqueFd> processes);
  ~ShmTeam();  // Marks for the others that this rank has left.

  static std::size_t control_bytes(int ranks);

  const Roster& roster() const { return *roster_; }
  int rank() const { return rank_; }
  int size() const { return static_cast<int>(members_.size()); }
  int group_rank(int r) const { return members_[static_cast<std::size_t>(r)]; }
  int team_rank(int group_rank) const;  // -1: not of this team.
  std::string name(int r) const { return roster_->name(group_rank(r)); }

  void enter(const Call& call);
  void exchange(const Call& call, const Posting& mine);
  const Posting& posting(int rank) const;  // In the latest exchange.
  // kSmallBytes that travel with an exchange: filled before it, read after it.
  std::byte* small_of_next() const;
  std::byte* small(int rank) const;
  std::byte* staging(unsigned parity, int rank) const;  // kChunkBytes each.
  std::byte* result(unsigned parity) const;             // kChunkBytes.
  Mailbox& mailbox(int source, int destination) const;
  std::byte* parcel(int source, int destination, unsigned parity) const;

  // Waits for a counter that `peer` advances.
  void await(const Call& call, SharedCounter& counter, std::uint32_t target, int peer);

  // Whether the process of `rank` is gone, or will be within `patience`.
  bool ends(int rank, std::chrono::milliseconds patience) const;

  // Ends the peers' waits for this rank, which has thrown `error`.
  void give_up(const Error& error) noexcept;
  void abort() noexcept;
  void lose(int group_rank, const std::string& why) noexcept;

  // Whether waiting begins with spinning: not if there are fewer CPUs than ranks, as the awaited
  // rank may then need this CPU. Known after the first barrier.
  bool spins() const { return spin_.limit().count() > 0; }

 private:
  struct Line;
  Line& line(int rank) const;
  void show_cpus() const;
  bool have_cpus_for_all() const;
  Posting& posting(unsigned exchange, int rank) const;
  template <class Missing>
  void await_while(const Call& call, SharedCounter& counter, std::uint32_t target, int peer,
                   Missing missing);
  template <class Missing>
  void check(const Call& call, Missing missing) const;
  void check_agreement(const Call& call) const;
  void check_now() noexcept;

  std::shared_ptr<const Roster> roster_;
  std::vector<int> members_;
  int rank_;
  std::shared_ptr<Segment> control_;
  std::vector<UniqueFd> processes_;
  SpinBudget spin_;
  std::uint32_t entered_ = 0;
  unsigned exchanges_ = 0;
  std::atomic<bool> aborted_{false};
  LostPeer lost_;
  std::atomic<SharedCounter*> awaited_{nullptr};  // The counter on which this rank sleeps.
};

// The layout of the control segment of n ranks. Only shm_team.cc includes this.

// A rank's own cache lines.
struct alignas(128) ShmLine {
  SharedCounter entered;             // Barriers.
  std::atomic<std::int32_t> cpu;     // The CPU at its last entry.
  std::atomic<std::uint32_t> state;  // See RankState in shm_team.cc.
};

// The CPUs that a rank may use, one bit per CPU; none if they are unknown. Written once.
struct alignas(128) ShmCpus {
  std::atomic<std::uint64_t> words[16];
};

struct alignas(128) PostingSlot {
  Posting posting;
};

class ShmLayout {
 public:
  explicit constexpr ShmLayout(int ranks) : n_(static_cast<std::size_t>(ranks)) {}

  constexpr std::size_t line(int r) const { return at(r) * sizeof(ShmLine); }
  constexpr std::size_t cpus(int r) const { return n_ * sizeof(ShmLine) + at(r) * sizeof(ShmCpus); }
  constexpr std::size_t posting(unsigned parity, int r) const {
    return cpus(static_cast<int>(n_)) + (parity * n_ + at(r)) * sizeof(PostingSlot);
  }
  constexpr std::size_t mailbox(int from, int to) const {
    return posting(2, 0) + (at(from) * n_ + at(to)) * sizeof(Mailbox);
  }
  // From here on the segment holds bytes of arrays.
  constexpr std::size_t small(unsigned parity, int r) const {
    return page(posting(2, 0) + n_ * n_ * sizeof(Mailbox)) + (parity * n_ + at(r)) * kSmallBytes;
  }
  constexpr std::size_t staging(unsigned parity, int r) const {
    return small(2, 0) + (parity * n_ + at(r)) * kChunkBytes;
  }
  constexpr std::size_t result(unsigned parity) const {
    return staging(2, 0) + parity * kChunkBytes;
  }
  constexpr std::size_t parcel(int from, int to, unsigned parity) const {
    return result(2) + ((at(from) * n_ + at(to)) * 2 + parity) * kParcelBytes;
  }
  constexpr std::size_t total() const { return result(2) + n_ * n_ * 2 * kParcelBytes; }

 private:
  static constexpr std::size_t at(int r) { return static_cast<std::size_t>(r); }
  static constexpr std::size_t page(std::size_t bytes) { return (bytes + 4095) / 4096 * 4096; }

  std::size_t n_;
};

}  // namespace ddprun::worker_sdk
