// How the shards of a ShardedState come to the ranks that are to have them.

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <utility>

#include "common/assert.h"
#include "ddprun/objects.h"
#include "worker_sdk/job/points.h"
#include "worker_sdk/job/sharded_state.h"

namespace ddprun::elastic {

ShardBlock* ShardedState::find(int shard, const ShardVersion& version) {
  const auto visit = [&](ShardBlock& block) {
    return block.has(shard, version) ? &block : nullptr;
  };
  if (ShardBlock* found = visit(own_.now)) return found;
  if (ShardBlock* found = visit(own_.next)) return found;
  for (Pair& ward : wards_) {
    if (ShardBlock* found = visit(ward.now)) return found;
    if (ShardBlock* found = visit(ward.next)) return found;
  }
  for (ShardBlock& block : spare_) {
    if (ShardBlock* found = visit(block)) return found;
  }
  return nullptr;
}

// What is damaged is dropped, so that a sound copy comes in its place. Where ranks are fixed nobody
// has made the checksums.
Hold ShardedState::hold_of(int shard, const ShardVersion& version, std::vector<int>& damaged) {
  bool is_damaged = false;
  ShardBlock* found = find(shard, version);
  for (; found && is_elastic_ && !found->is_sound(shard); found = find(shard, version)) {
    found->drop(shard);
    is_damaged = true;
  }
  if (is_damaged) damaged.push_back(shard);
  return found ? Hold::kHas : is_damaged ? Hold::kDamaged : Hold::kNothing;
}

// A byte for each shard, and whether this rank knows who had them. A rank that comes back has
// shards of earlier steps only.
ShardedState::Holds ShardedState::ask_all(ProcessGroup& group, const ShardRound& round) {
  const std::int64_t steps = round.version.steps;
  const bool can_fill = round.origin == steps && (steps == 0 || options_.fill != nullptr);
  const auto shards = static_cast<std::size_t>(options_.shards);
  const auto ranks = static_cast<std::size_t>(group.world_size());
  std::vector<std::uint8_t> mine, all((shards + 1) * ranks);
  bool has_some = false;
  Holds holds;
  for (int shard = 0; shard < options_.shards; ++shard) {
    const Hold hold = hold_of(shard, round.version, holds.damaged);
    const bool fills = can_fill && hold != Hold::kHas;
    mine.push_back(static_cast<std::uint8_t>(fills ? Hold::kFills : hold));
    has_some = has_some || hold == Hold::kHas;
  }
  mine.push_back(layout_.is_known() && has_some ? 1 : 0);
  group.all_gather(buffer(mine.data(), mine.size()), buffer(all.data(), all.size()),
                   {.on_host = true});
  for (std::size_t r = 0; r < ranks; ++r) {
    const std::uint8_t* first = all.data() + r * (shards + 1);
    std::vector<Hold> one;
    for (std::size_t s = 0; s < shards; ++s) one.push_back(static_cast<Hold>(first[s]));
    holds.by_rank.push_back(std::move(one));
    if (holds.historian < 0 && first[shards] != 0) holds.historian = static_cast<int>(r);
  }
  return holds;
}

ShardTraffic ShardedState::fetch(ProcessGroup& group, const ShardRound& round, const Wanted& wanted,
                                 std::vector<ShardBlock>& into) {
  const Holds holds = ask_all(group, round);
  const ShardMoves plan = plan_moves(holds.by_rank, wanted);
  if (!plan.lost.empty()) refuse(group, plan.lost, holds, round);
  tell_damaged(group, holds);
  fill(plan.fills, group.rank(), round.version);
  for (ShardBlock& block : into) {
    for (int shard = block.range().first; shard < block.range().last; ++shard) {
      ShardBlock* const held = find(shard, round.version);
      if (!held) continue;
      std::memcpy(block.shard(shard).data(), held->shard(shard).data(), block.shard(shard).size());
      std::memcpy(block.sum(shard).data(), held->sum(shard).data(), ShardCut::kSumBytes);
    }
  }
  const ShardTraffic traffic = move(group, round, plan.moves, into);
  for (ShardBlock& block : into) {
    require_sound(group, block, -1);
    block.finish(round.version);
  }
  pass("staged");
  return traffic;
}

void ShardedState::fill(const std::vector<ShardFill>& fills, int rank,
                        const ShardVersion& version) {
  for (const ShardFill& one : fills) {
    if (one.rank != rank) continue;
    ShardBlock block(cut_, {one.shard, one.shard + 1});
    if (options_.fill) options_.fill(cut_.first_of(one.shard), buffer_of(block));
    block.seal();
    block.finish(version);
    spare_.push_back(std::move(block));
  }
}

ShardTraffic ShardedState::move(ProcessGroup& group, const ShardRound& round,
                                const std::vector<ShardMove>& moves,
                                std::vector<ShardBlock>& into) {
  const auto ranks = static_cast<std::size_t>(group.world_size());
  std::vector<ShardStream> out(ranks), in(ranks);
  std::map<std::pair<int, int>, std::uint64_t> totals;
  ShardTraffic traffic;
  std::uint64_t longest = 0;
  for (const auto& [shard, from, to] : moves) {
    const std::uint64_t bytes = cut_.bytes_of({shard, shard + 1}) + ShardCut::kSumBytes;
    longest = std::max(longest, totals[{from, to}] += bytes);
    const auto add = [&](ShardStream& stream, ShardBlock& block) {
      stream.add(block.shard(shard)), stream.add(block.sum(shard));
    };
    if (from == group.rank()) {
      ShardBlock* const held = find(shard, round.version);
      DDPRUN_ASSERT(held);
      add(out[static_cast<std::size_t>(to)], *held);
      traffic.sent += bytes;
    }
    if (to == group.rank()) {
      const auto place = std::find_if(into.begin(), into.end(), [&, s = shard](ShardBlock& block) {
        return block.range().has(s);
      });
      DDPRUN_ASSERT(place != into.end());
      add(in[static_cast<std::size_t>(from)], *place);
      traffic.received += bytes;
    }
  }
  carry(group, out, in, longest);
  return traffic;
}

void ShardedState::require_sound(ProcessGroup& group, const ShardBlock& block, int peer) const {
  const int damaged = block.damaged();
  if (damaged < 0) return;
  throw Error(
      ErrorKind::corrupt, {.rank = group.rank(), .operation = "keeping shards", .peer = peer},
      "shard " + std::to_string(damaged) + " of \"" + name_ +
          "\" does not match its checksum: it was changed other than through next(), or damaged");
}

// Which of this rank's shards others, or the program, have to make good.
void ShardedState::tell_damaged(ProcessGroup& group, const Holds& holds) const {
  for (const int shard : holds.damaged) {
    const auto has = [&](const std::vector<Hold>& one) {
      return one[static_cast<std::size_t>(shard)] == Hold::kHas;
    };
    const auto found = std::find_if(holds.by_rank.begin(), holds.by_rank.end(), has);
    const auto source = static_cast<int>(found - holds.by_rank.begin());
    const std::string instead = found == holds.by_rank.end()
                                    ? "it is filled again"
                                    : "the copy of rank " + std::to_string(source) + " on " +
                                          group.host_of(source) + " is used";
    std::fprintf(
        stderr,
        "ddprun: warning: rank %d on %s: shard %d of \"%s\" does not match its checksum: it "
        "was changed other than through next(), or damaged; %s\n",
        group.rank(), group.host_of(group.rank()).c_str(), shard, name_.c_str(), instead.c_str());
  }
}

void ShardedState::refuse(ProcessGroup& group, const std::vector<int>& lost, const Holds& holds,
                          const ShardRound& round) const {
  std::vector<int> damaged, gone;
  for (const int shard : lost) {
    const bool is_damaged = std::any_of(
        holds.by_rank.begin(), holds.by_rank.end(),
        [&](const auto& one) { return one[static_cast<std::size_t>(shard)] == Hold::kDamaged; });
    (is_damaged ? damaged : gone).push_back(shard);
  }
  std::string text;
  if (!gone.empty()) {
    text = "no rank has " + std::to_string(gone.size()) + " of its " +
           std::to_string(options_.shards) + " shards, nor a function that fills them";
    if (holds.historian == group.rank()) {
      text = layout_.describe(gone) + ", are lost with these ranks";
    }
    if (holds.historian >= 0) text = broadcast_bytes(group, text, holds.historian);
  }
  if (!damaged.empty()) {
    text += (text.empty() ? "" : "; ") + shards_text(damaged) +
            (damaged.size() == 1 ? " does" : " do") +
            " not match the checksum on any rank that has it: changed other than through next(), "
            "or damaged";
  }
  throw Error(ErrorKind::state_lost, {.rank = group.rank(), .operation = "entering a round"},
              "\"" + name_ + "\" after " + std::to_string(round.version.steps) + " steps: " + text +
                  "; start from a checkpoint");
}

}  // namespace ddprun::elastic
