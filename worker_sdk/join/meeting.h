#pragma once
// Rounds in which every rank writes a text and rank 0 answers all, through the store: a constant
// number of keys per rank, and one reader of all of them. Used by join.cc before ranks are
// connected.

#include <chrono>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/error.h"
#include "ddprun/store.h"
#include "worker_sdk/base/operation.h"

namespace ddprun::worker_sdk {

class Meeting {
 public:
  // `roster` has no hosts yet.
  Meeting(Store& keys, std::shared_ptr<const Roster> roster, int size, Clock::time_point deadline)
      : keys_(keys),
        roster_(std::move(roster)),
        rank_(roster_->rank),
        size_(size),
        deadline_(deadline) {}

  // Writes `mine` under `topic` and returns rank 0's answer, which `decide` makes of the texts of
  // all ranks. If ranks do not arrive before the deadline, or `decide` throws Error, all ranks
  // throw the same.
  using Decide = std::function<std::string(const std::vector<std::string>& statements)>;
  std::string hold(const std::string& topic, const std::string& mine, const Decide& decide);

  // Whether the error that hold() threw is rank 0's answer to all ranks.
  bool failed_for_all() const { return failed_for_all_; }

  // For a rank that cannot continue because of `error`, which no other rank has seen: the others
  // receive it in whichever of the join's rounds they wait, and throw it.
  static void withdraw(Store& keys, int rank, const Error& error);

 private:
  std::string await_answer(const std::string& topic);
  std::string preside(const std::string& topic, const Decide& decide);
  std::vector<std::string> listen(const std::string& topic);
  [[noreturn]] void throw_absence(const std::string& topic);

  Store& keys_;
  const std::shared_ptr<const Roster> roster_;
  const int rank_;
  const int size_;
  const Clock::time_point deadline_;
  bool failed_for_all_ = false;
};

// Which ranks are left of a group: what each survivor reports, and what follows from it. Pure;
// meeting.cc carries it through the store.

// The reports that this rank has received. A rank that reports is present; a rank that any report
// calls lost is not in the smaller group, present or not.
class Survey {
 public:
  Survey(int rank, int size, const std::vector<int>& lost);

  void add_report(int rank, const std::vector<int>& lost);
  std::vector<int> awaited() const;  // Ranks that have neither reported nor are lost.
  std::vector<int> members() const;  // Ranks that have reported and are not lost.

 private:
  const int size_;
  std::set<int> reported_, lost_;
};

// The decision that one of the survivors makes for all.
struct AgreedSurvivors {
  std::chrono::milliseconds limit{0};  // For the smaller group to join, equal on all ranks.
  std::vector<int> members;            // Rising.

  bool operator==(const AgreedSurvivors&) const = default;
};

std::string encode_ranks(const std::vector<int>& ranks);
std::string encode(const AgreedSurvivors& settlement);
// A failure names the field that is not what encode makes for a group of `size` ranks.
Result<std::vector<int>> decode_ranks(std::string_view text, int size);
Result<AgreedSurvivors> decode_agreed(std::string_view text, int size);

// How the survivors of a group agree through the store on its members, without knowing which ranks
// will arrive: each reports itself and the ranks that it considers lost. The first that knows of
// all ranks, or reaches its limit, settles the members for all. Used by group_create.cc.
struct SurvivorsRequest {
  int rank = 0, size = 1;
  std::vector<int> lost;  // Rising.
  Clock::time_point give_up{};
  std::chrono::milliseconds limit{0};  // The `limit` to settle on.
};

// `keys`: for this meeting alone. Throws Error: timed_out if the settling rank wrote no decision,
// mismatch if a text is of another version.
AgreedSurvivors agree_on_survivors(Store& keys, const SurvivorsRequest& request);

}  // namespace ddprun::worker_sdk
