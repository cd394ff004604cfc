#include "worker_sdk/elastic/audit.h"

#include <charconv>
#include <cmath>

#include "worker_sdk/elastic/mix.h"

namespace ddprun::elastic {

using worker_sdk::mix64;

namespace {

// Different for each use, so that a shard's choice and its auditor do not depend on each other.
constexpr std::uint64_t kChoiceKey = 0x6175'6469'7431, kAuditorKey = 0x6175'6469'7432,
                        kVoterKey = 0x6175'6469'7433, kDoubtKey = 0x6175'6469'7434;

std::uint64_t number_of(std::uint64_t key, std::int64_t step, int shard) {
  return mix64(mix64(key ^ static_cast<std::uint64_t>(step)) ^ static_cast<std::uint64_t>(shard));
}

int pick(const std::vector<int>& ranks, std::uint64_t number) {
  return ranks.empty() ? -1 : ranks[number % ranks.size()];
}

}  // namespace

bool is_chosen(std::int64_t per_million, std::int64_t step, int shard) {
  constexpr std::uint64_t kAll = kMillion;
  return static_cast<std::int64_t>(number_of(kChoiceKey, step, shard) % kAll) < per_million;
}

std::int64_t per_million_of(const std::string& percent) {
  const bool has_sign = !percent.empty() && percent.back() == '%';
  const char* const end = percent.data() + percent.size() - (has_sign ? 1 : 0);
  double value = -1;
  const auto read = std::from_chars(percent.data(), end, value, std::chars_format::fixed);
  if (read.ec != std::errc() || read.ptr != end || !(value >= 0 && value <= 100)) return -1;
  return std::llround(value * (kMillion / 100));
}

int auditor_of(std::span<const int> hosts, std::int64_t step, int shard, int owner) {
  std::vector<int> elsewhere, others;
  for (int rank = 0; rank < static_cast<int>(hosts.size()); ++rank) {
    if (rank == owner) continue;
    others.push_back(rank);
    const auto host = [&](int of) { return hosts[static_cast<std::size_t>(of)]; };
    if (host(rank) != host(owner)) elsewhere.push_back(rank);
  }
  return pick(elsewhere.empty() ? others : elsewhere, number_of(kAuditorKey, step, shard));
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

std::uint64_t doubt_of(int shard, std::uint64_t hash, bool is_owner) {
  const std::uint64_t mixed = mix64(number_of(kDoubtKey, shard, 0) ^ hash);
  return is_owner ? mixed : 0 - mixed;
}

std::uint64_t doubt_of_state(int rank, int ranks, std::uint64_t hash) {
  const std::uint64_t mixed = mix64(kDoubtKey ^ hash);
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
