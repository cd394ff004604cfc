#pragma once
// Who is left of a group: what each survivor says, and what follows from it. Pure;
// shrink_meeting.cc carries it through the store.

#include <chrono>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace ddprun::worker_sdk {

// What this rank has heard. Whoever says something is there; whoever is called lost by any of them
// shall not be in the smaller group, there or not.
class Survey {
 public:
  Survey(int rank, int size, const std::vector<int>& lost);

  void hear(int rank, const std::vector<int>& lost);
  std::vector<int> awaited() const;  // Neither heard of nor lost.
  std::vector<int> members() const;  // Heard of, and not lost.

 private:
  const int size_;
  std::set<int> heard_, lost_;
};

// What one of them decides for all.
struct AgreedSurvivors {
  std::chrono::milliseconds limit{0};  // For the smaller group to join, equal on all ranks.
  std::vector<int> members;            // Rising.

  bool operator==(const AgreedSurvivors&) const = default;
};

std::string encode_ranks(const std::vector<int>& ranks);
std::string encode(const AgreedSurvivors& settlement);
// Nothing if the text is not what encode makes for a group of `size` ranks.
std::optional<std::vector<int>> decode_ranks(std::string_view text, int size);
std::optional<AgreedSurvivors> decode_agreed(std::string_view text, int size);

}  // namespace ddprun::worker_sdk
