// How a job carries out its audits: which shards this rank computes for others, and what follows if
// two ranks have found different results. elastic/audit.h decides.

#include <algorithm>
#include <cstdio>
#include <utility>

#include "common/assert.h"
#include "worker_sdk/group/group_inside.h"
#include "worker_sdk/job/job_inside.h"
#include "worker_sdk/job/shard_plan.h"

namespace ddprun::elastic {

using worker_sdk::GroupInside;

// In the first step of a round one shard of each rank is: so all hosts are compared at once. A
// shard in dispute is computed again by the same two.
std::vector<int> JobInside::auditors_of(const Step::State& step) const {
  if (!is_auditing()) return {};
  std::vector<int> owners;
  for (int shard = 0; shard < step.shards; ++shard) owners.push_back(owner(step, shard));
  const std::size_t least = step.number == first_of_round_ ? 1 : 0;
  std::vector<int> auditors =
      elastic::auditors_of(per_million_, step.number, owners, hosts_, least);
  for (const Dispute& dispute : disputes_) {
    if (dispute.shard < step.shards)
      auditors[static_cast<std::size_t>(dispute.shard)] = dispute.auditor;
  }
  return auditors;
}

int JobInside::auditor(const Step::State& step, int shard) const {
  const bool is_known = shard >= 0 && shard < static_cast<int>(step.auditors.size());
  return is_known ? step.auditors[static_cast<std::size_t>(shard)] : -1;
}

bool JobInside::is_audited(const Step::State& step, int shard) const {
  if (replay_) return true;  // Its hash is compared with that of the bundle.
  return auditor(step, shard) >= 0 && !skips(step, shard);
}

// Of all ranks.
std::vector<int> JobInside::audited(const Step::State& step) const {
  std::vector<int> result;
  if (replay_) return result;
  for (int shard = 0; shard < step.shards; ++shard) {
    if (is_audited(step, shard)) result.push_back(shard);
  }
  return result;
}

int JobInside::owner(const Step::State& step, int shard) const {
  return division_.owner(shard, step.shards);
}

int JobInside::voter(int shard) const {
  for (const Dispute& dispute : disputes_) {
    if (dispute.shard == shard) return voter_of(hosts_, dispute);
  }
  return -1;
}

std::vector<int> JobInside::audits(const Step::State& step) const {
  std::vector<int> result;
  for (const int shard : audited(step)) {
    const int rank = group_->rank();
    if (auditor(step, shard) == rank || voter(shard) == rank) result.push_back(shard);
  }
  return result;
}

void JobInside::audit(Step::State& step, int shard, std::uint64_t hash) {
  if (!is_audited(step, shard)) return;
  if (replay_) return void(step.hashes.try_emplace(shard, std::max<std::uint64_t>(hash, 1)));
  if (owner(step, shard) != group_->rank() && !step.hashes.contains(shard)) {
    ++counters_.audited_shards;
    GroupInside::progress(*group_)->count({.sums = {{"audited_shards", 1}}, .late = {}});
  }
  step.hashes[shard] = std::max<std::uint64_t>(hash, 1);  // 0: this rank has passed none.
}

// 0 in the sum over all ranks, if there is nothing to find.
std::uint64_t JobInside::discrepancy(const Step::State& step) {
  const std::vector<int> shards = audited(step);
  if (shards.empty()) return 0;
  const int rank = group_->rank();
  std::uint64_t sum = discrepancy_of_state(rank, group_->world_size(), kept_.hash(*group_));
  for (const int shard : shards) {
    const auto found = step.hashes.find(shard);
    if (found == step.hashes.end()) continue;
    if (owner(step, shard) == rank) sum += discrepancy_of(shard, found->second, true);
    if (auditor(step, shard) == rank) sum += discrepancy_of(shard, found->second, false);
  }
  return sum;
}

std::string JobInside::name_of(int rank) const {
  return "rank " + std::to_string(rank) + " on " + group_->host_of(rank);
}

std::string JobInside::text_of(const Step::State& step, const Dispute& dispute) const {
  return piece_of(step.number, dispute.shard) + ": " + name_of(dispute.owner) + " has computed " +
         hash_text(dispute.owners) + ", " + name_of(dispute.auditor) + " " +
         hash_text(dispute.auditors);
}

// The hashes of all audited shards, from the ranks that have them; `votes`: by shard in the result.
// Collective.
std::vector<Dispute> JobInside::exchange(const Step::State& step,
                                         std::vector<std::uint64_t>& votes) {
  const std::vector<int> shards = audited(step);
  const int rank = group_->rank();
  std::vector<std::int64_t> table(3 * shards.size());
  for (std::size_t i = 0; i < shards.size(); ++i) {
    const auto found = step.hashes.find(shards[i]);
    if (found == step.hashes.end()) continue;
    const auto hash = static_cast<std::int64_t>(found->second);
    if (owner(step, shards[i]) == rank) table[3 * i] = hash;
    if (auditor(step, shards[i]) == rank) table[3 * i + 1] = hash;
    if (voter(shards[i]) == rank) table[3 * i + 2] = hash;
  }
  if (!table.empty()) {
    group_->all_reduce(buffer(table.data(), table.size()), ReduceOp::sum, {.on_host = true});
  }
  std::vector<Dispute> result;
  for (std::size_t i = 0; i < shards.size(); ++i) {
    const auto at = [&](std::size_t n) { return static_cast<std::uint64_t>(table[3 * i + n]); };
    result.push_back({.shard = shards[i],
                      .owner = owner(step, shards[i]),
                      .auditor = auditor(step, shards[i]),
                      .owners = at(0),
                      .auditors = at(1)});
    votes.push_back(at(2));
  }
  return result;
}

void JobInside::settle_discrepancy(const Step::State& step, std::uint64_t discrepancy) {
  if (!disputes_.empty()) return decide(step);
  if (discrepancy == 0) return;
  require_equal_state(step);
  std::vector<std::uint64_t> votes;
  for (const Dispute& found : exchange(step, votes)) {
    if (found.owners == found.auditors) continue;
    if (found.owners == 0) refuse_silent(step, found.shard, found.owner);
    if (found.auditors == 0) refuse_silent(step, found.shard, found.auditor);
    disputes_.push_back(found);
  }
  if (disputes_.empty()) {
    throw Error(ErrorKind::mismatch, {.rank = group_->rank(), .operation = "Step::commit"},
                "the ranks do not agree which shards of step " + std::to_string(step.number) +
                    " are audited, though each result is that of the other rank");
  }
  const std::string text = "audit: " + text_of(step, disputes_.front());
  note_audit(text + "; the step is not committed, and runs again to find out which is wrong");
  run_again(text);
}

// After the step has run again.
void JobInside::decide(const Step::State& step) {
  std::vector<std::uint64_t> votes;
  const std::vector<Dispute> again = exchange(step, votes);
  const std::vector<Dispute> disputes = std::exchange(disputes_, {});
  std::vector<Dispute> others;
  for (std::size_t i = 0; i < again.size(); ++i) {
    const auto is_this = [&](const Dispute& one) { return one.shard == again[i].shard; };
    const auto first = std::find_if(disputes.begin(), disputes.end(), is_this);
    if (first != disputes.end()) {
      decide(step, *first, again[i], votes[i]);
    } else if (again[i].owners != again[i].auditors) {
      others.push_back(again[i]);
    }
  }
  if (others.empty()) return;
  disputes_ = others;
  run_again("audit: " + text_of(step, others.front()));
}

void JobInside::decide(const Step::State& step, const Dispute& first, const Dispute& again,
                       std::uint64_t vote) {
  const int third = voter_of(hosts_, first);
  if (third >= 0 && vote == 0) refuse_silent(step, first.shard, third);
  const std::string text = text_of(step, first);
  const std::string thirds = third < 0 ? "" : name_of(third) + " " + hash_text(vote);
  const Judged judged = judge(first, again, third >= 0, vote);
  switch (judged.finding) {
    case Finding::kCulprit:
      if (judged.culprit != group_->rank()) {
        capture_audited(step, first, vote, text + ", " + thirds);
      }
      accuse({judged.culprit}, text + ", " + thirds + ": " + name_of(judged.culprit) + " is wrong");
    case Finding::kNoTwoAgree:
      end_all(text + ", " + thirds +
              ": no two agree, so the arithmetic of this job is not deterministic, or the hosts "
              "differ in libraries, threads or instruction set");
    case Finding::kRecurs:
      capture_audited(step, first, again.owners, text);
      end_all(text + ", and again " + hash_text(again.owners) + " and " +
              hash_text(again.auditors) +
              ": one of the two is wrong, and there is no third host to decide which");
    case Finding::kPassed:
      note_audit("audit: " + text +
                 "; computed again they are equal: one of the two was wrong before, and there is "
                 "no third host to decide which");
  }
}

// A rank whose kept state is not that of most others. Collective.
void JobInside::require_equal_state(const Step::State& step) {
  std::vector<std::int64_t> all(static_cast<std::size_t>(group_->world_size()));
  all[static_cast<std::size_t>(group_->rank())] = static_cast<std::int64_t>(kept_.hash(*group_));
  group_->all_reduce(buffer(all.data(), all.size()), ReduceOp::sum, {.on_host = true});
  const std::vector<int> odd = odd_ranks({all.begin(), all.end()});
  if (odd.empty()) return;
  std::string text = "before step " + std::to_string(step.number) + " the kept state of";
  const auto hex_of = [&](int rank) {
    return hash_text(static_cast<std::uint64_t>(all[static_cast<std::size_t>(rank)]));
  };
  for (const int rank : odd) text += " " + name_of(rank) + " was " + hex_of(rank) + ",";
  int other = 0;  // The lowest rank of the others.
  while (std::find(odd.begin(), odd.end(), other) != odd.end()) ++other;
  text += " that of " + name_of(other) + " " + hex_of(other);
  if (2 * odd.size() < all.size()) accuse(odd, text);
  end_all(text + ": it cannot be said which is wrong");
}

// Ranks that have computed wrong end, and the others go on without them. All end if there is no
// launcher that would replace them.
void JobInside::accuse(const std::vector<int>& culprits, const std::string& text) {
  const bool is_mine =
      std::find(culprits.begin(), culprits.end(), group_->rank()) != culprits.end();
  if (is_mine || !is_elastic()) end_with(text, is_mine ? group_->rank() : culprits.front());
  int printer = 0;  // The lowest of the others.
  while (std::find(culprits.begin(), culprits.end(), printer) != culprits.end()) ++printer;
  note_audit("audit: " + text + "; the others go on without it", printer);
  run_again(text);
}

void JobInside::end_all(const std::string& text) { end_with(text, -1); }

void JobInside::end_with(const std::string& text, int culprit) {
  const Error error(ErrorKind::wrong_result,
                    {.rank = group_->rank(), .operation = "audit", .peer = culprit}, text);
  // Without a culprit nothing is known of this rank, and its node must not be left out.
  if (culprit >= 0) GroupInside::note_failure(*group_, error);
  throw error;
}

// On all ranks: a body that computes an audited shard, and does not pass its hash on.
void JobInside::refuse_silent(const Step::State& step, int shard, int rank) const {
  throw Error(ErrorKind::mismatch,
              {.rank = group_->rank(), .operation = "Step::commit", .peer = rank},
              name_of(rank) + " has not passed " + piece_of(step.number, shard) +
                  " to Step::audit(): a body computes the shards of Step::audits(), too");
}

void JobInside::run_again(const std::string& why) {
  runs_again_ = true;
  throw Error(ErrorKind::membership_changed, {.rank = group_->rank(), .operation = "Step::commit"},
              why + "; the step runs again");
}

// One rank prints it.
void JobInside::note_audit(const std::string& text, int printer) const {
  if (group_->rank() == printer) std::fprintf(stderr, "ddprun: %s\n", text.c_str());
}

}  // namespace ddprun::elastic
