#pragma once
// Which shards of a step a second rank computes as well, and which rank is wrong if the two differ.
// Pure: the same on all ranks. Used by worker_sdk/job, which carries it out:
//
//   a step      owner and auditor of an audited shard each hash what they have computed; the sum of
//               the ranks' doubts travels with their votes, and is 0 if all is well
//   not 0       all ranks exchange the hashes; the step is not committed, and runs again, in which
//               a third rank, the voter, computes the shards that are in dispute
//   afterwards  the voter's hash decides which of the two first hashes was wrong; without a voter
//               the same two compute again, and if they still differ both are named

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace ddprun::elastic {

constexpr std::int64_t kMillion = 1'000'000;

// Parts per million of "1", "0.5" or "2.5%"; -1 if it is no percentage from 0 to 100.
std::int64_t per_million_of(const std::string& percent);

// By shard, the rank that computes it as well, on another host if there is one; -1: the shard is
// not audited. `per_million`: of all shards. `owners`: by shard, the rank whose it is. `hosts`: by
// rank, a number for each host. `least`: of each rank at least so many shards, whatever the step.
//
// The ranks are audited in the same steps, and each computes as many shards of another as that one
// of it: a step lasts as long as its last rank, so single audits would each cost a whole shard.
// Only if one host has more than half of the ranks the others compute more.
std::vector<int> auditors_of(std::int64_t per_million, std::int64_t step,
                             std::span<const int> owners, std::span<const int> hosts,
                             std::size_t least = 0);

// A shard whose owner and auditor have found different results.
struct Dispute {
  int shard = 0;
  int owner = -1, auditor = -1;
  std::uint64_t owners = 0, auditors = 0;  // Their hashes.
  bool operator==(const Dispute&) const = default;
};

// The rank that decides it: on a third host. If all ranks are on one host, any third rank. -1:
// there is none, and the two compute again.
int voter_of(std::span<const int> hosts, const Dispute& dispute);

// What a rank adds to the sum of all doubts for a shard that it has computed as its owner, or as
// its auditor. The two add up to 0 if the hashes are equal.
std::uint64_t discrepancy_of(int shard, std::uint64_t hash, bool is_owner);
// For state that is to be equal on all ranks. The doubts of all ranks add up to 0 if it is.
std::uint64_t discrepancy_of_state(int rank, int ranks, std::uint64_t hash);

enum class Finding {
  kCulprit,     // The voter agrees with one of the two: the other is wrong.
  kNoTwoAgree,  // No verdict: the arithmetic is not deterministic.
  kPassed,      // Without a voter: the two agree now, and one of them was wrong before.
  kRecurs,      // Without a voter: they differ again.
};

struct Judged {
  Finding finding = Finding::kNoTwoAgree;
  int culprit = -1;  // With kCulprit.
  bool operator==(const Judged&) const = default;
};

// `second`: the same shard in the step that ran again. `votes`: the voter's hash, if there is one.
Judged judge(const Dispute& first, const Dispute& second, bool has_voter, std::uint64_t vote);

}  // namespace ddprun::elastic
