#include "worker_sdk/elastic/audit.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>
#include <tuple>

#include "worker_sdk/elastic/mix.h"

namespace ddprun::elastic {

using worker_sdk::mix64;

namespace {

// Different for each use, so that what is chosen by one does not depend on another.
constexpr std::uint64_t kChoiceKey = 0x6175'6469'7431, kAuditorKey = 0x6175'6469'7432,
                        kVoterKey = 0x6175'6469'7433, kDiscrepancyKey = 0x6175'6469'7434,
                        kShardKey = 0x6175'6469'7435, kOrderKey = 0x6175'6469'7436;

std::uint64_t number_of(std::uint64_t key, std::int64_t step, int which) {
  return mix64(mix64(key ^ static_cast<std::uint64_t>(step)) ^ static_cast<std::uint64_t>(which));
}

int pick(const std::vector<int>& ranks, std::uint64_t number) {
  return ranks.empty() ? -1 : ranks[number % ranks.size()];
}

}  // namespace

std::int64_t per_million_of(const std::string& percent) {
  const bool has_sign = !percent.empty() && percent.back() == '%';
  const char* const end = percent.data() + percent.size() - (has_sign ? 1 : 0);
  double value = -1;
  const auto read = std::from_chars(percent.data(), end, value, std::chars_format::fixed);
  if (read.ec != std::errc() || read.ptr != end || !(value >= 0 && value <= 100)) return -1;
  return std::llround(value * (kMillion / 100));
}

namespace {

// The auditor of each rank in a step: the ranks in a circle, those of a host side by side, and the
// auditor is as many places on for all of them. At least as many as the largest host has ranks,
// which is another host then.
class Circle {
 public:
  Circle(std::span<const int> hosts, std::int64_t step)
      : hosts_(hosts), step_(step), ranks_(hosts.size()), places_(hosts.size()) {
    std::iota(ranks_.begin(), ranks_.end(), 0);
    std::sort(ranks_.begin(), ranks_.end(), [&](int a, int b) {
      const auto key = [&](int rank) {
        return std::tuple(host(rank), number_of(kOrderKey, step, rank), rank);
      };
      return key(a) < key(b);
    });
    std::size_t largest = 0, of_host = 0;
    for (std::size_t place = 0; place < ranks_.size(); ++place) {
      places_[static_cast<std::size_t>(ranks_[place])] = place;
      const bool is_same = place > 0 && host(ranks_[place]) == host(ranks_[place - 1]);
      largest = std::max(largest, of_host = is_same ? of_host + 1 : 1);
    }
    if (2 * largest <= ranks_.size())
      least_ = largest, most_ = ranks_.size() - largest;
    else
      least_ = 1, most_ = ranks_.size() - 1;
  }

  // `nth`: of the owner's shards that are audited in this step.
  int auditor(int owner, std::size_t nth) const {
    const std::uint64_t turn = number_of(kAuditorKey, step_, 0) + nth;
    const std::size_t shift = least_ + turn % (most_ - least_ + 1);
    const std::size_t place = places_[static_cast<std::size_t>(owner)];
    const int next = ranks_[(place + shift) % ranks_.size()];
    if (host(next) != host(owner)) return next;
    std::vector<int> elsewhere;
    for (const int rank : ranks_) {
      if (host(rank) != host(owner)) elsewhere.push_back(rank);
    }
    return elsewhere.empty() ? next : pick(elsewhere, number_of(kAuditorKey, step_, owner) + nth);
  }

 private:
  int host(int rank) const { return hosts_[static_cast<std::size_t>(rank)]; }

  std::span<const int> hosts_;
  std::int64_t step_;
  std::vector<int> ranks_;            // By place.
  std::vector<std::size_t> places_;   // By rank.
  std::size_t least_ = 0, most_ = 0;  // Places from an owner to its auditor.
};

}  // namespace

std::vector<int> auditors_of(std::int64_t per_million, std::int64_t step,
                             std::span<const int> owners, std::span<const int> hosts,
                             std::size_t least) {
  std::vector<int> auditors(owners.size(), -1);
  if (hosts.size() < 2) return auditors;
  std::vector<std::vector<std::size_t>> shards(hosts.size());  // By owner.
  for (std::size_t shard = 0; shard < owners.size(); ++shard) {
    shards[static_cast<std::size_t>(owners[shard])].push_back(shard);
  }
  const Circle circle(hosts, step);
  // The same for all ranks, and for any number of shards the right part of them in the mean.
  const auto lot = static_cast<std::size_t>(number_of(kChoiceKey, step, 0) % kMillion);
  for (int owner = 0; owner < static_cast<int>(hosts.size()); ++owner) {
    const std::vector<std::size_t>& its = shards[static_cast<std::size_t>(owner)];
    const std::size_t wanted =
        (its.size() * static_cast<std::size_t>(per_million) + lot) / kMillion;
    const std::size_t chosen = std::min(std::max(wanted, least), its.size());
    const std::uint64_t first = number_of(kShardKey, step, owner);
    for (std::size_t nth = 0; nth < chosen; ++nth) {
      auditors[its[(first + nth) % its.size()]] = circle.auditor(owner, nth);
    }
  }
  return auditors;
}

int voter_of(std::span<const int> hosts, const Dispute& dispute) {
  const auto host = [&](int rank) { return hosts[static_cast<std::size_t>(rank)]; };
  const bool is_one_host = host(dispute.owner) == host(dispute.auditor);
  std::vector<int> voters;
  for (int rank = 0; rank < static_cast<int>(hosts.size()); ++rank) {
    if (rank == dispute.owner || rank == dispute.auditor) continue;
    const bool is_apart = host(rank) != host(dispute.owner) && host(rank) != host(dispute.auditor);
    if (is_apart || is_one_host) voters.push_back(rank);
  }
  return pick(voters, number_of(kVoterKey, dispute.owner, dispute.shard));
}

std::uint64_t discrepancy_of(int shard, std::uint64_t hash, bool is_owner) {
  const std::uint64_t mixed = mix64(number_of(kDiscrepancyKey, shard, 0) ^ hash);
  return is_owner ? mixed : 0 - mixed;
}

std::uint64_t discrepancy_of_state(int rank, int ranks, std::uint64_t hash) {
  const std::uint64_t mixed = mix64(kDiscrepancyKey ^ hash);
  return rank > 0 ? mixed : (0 - mixed) * (static_cast<std::uint64_t>(ranks) - 1);
}

Judged judge(const Dispute& first, const Dispute& second, bool has_voter, std::uint64_t vote) {
  if (!has_voter) {
    return {.finding = second.owners == second.auditors ? Finding::kPassed : Finding::kRecurs};
  }
  if (vote == first.auditors) return {.finding = Finding::kCulprit, .culprit = first.owner};
  if (vote == first.owners) return {.finding = Finding::kCulprit, .culprit = first.auditor};
  return {.finding = Finding::kNoTwoAgree};
}

}  // namespace ddprun::elastic
