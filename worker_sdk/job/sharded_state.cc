#include "worker_sdk/job/sharded_state.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <string>
#include <utility>

#include "common/assert.h"
#include "common/checksum.h"
#include "ddprun/elastic/sharded.h"
#include "ddprun/objects.h"
#include "worker_sdk/group/group_inside.h"
#include "worker_sdk/job/job_inside.h"
#include "worker_sdk/job/kept_state.h"

namespace ddprun::elastic {
namespace {

constexpr int kMostShards = 1 << 14;

std::vector<Buffer> no_parts(ProcessGroup& group) {
  return {static_cast<std::size_t>(group.world_size()), Buffer{nullptr, 0, DataType::u8}};
}

Buffer bytes_of(std::span<std::byte> memory) {
  return {memory.data(), memory.size(), DataType::u8};
}

}  // namespace

ShardedState::ShardedState(std::string name, ShardedOptions options)
    : name_(std::move(name)),
      options_(std::move(options)),
      cut_{options_.count, size_of(options_.type), options_.shards} {
  const bool is_sound =
      cut_.element_size > 0 && options_.shards > 0 && options_.shards <= kMostShards;
  if (is_sound) return;
  throw Error(ErrorKind::bad_argument, {.operation = "Job::keep_sharded"},
              "\"" + name_ + "\" needs an element type, and 1 to " + std::to_string(kMostShards) +
                  " shards");
}

std::uint64_t ShardedState::signature(std::uint64_t seed) const {
  const std::uint64_t numbers[] = {options_.count, static_cast<std::uint64_t>(options_.type),
                                   static_cast<std::uint64_t>(options_.shards)};
  return checksum(numbers, sizeof(numbers), checksum(name_.data(), name_.size(), seed));
}

ShardTraffic ShardedState::stage(ProcessGroup& group, const ShardRound& round) {
  std::vector<ShardPlace> places;
  for (const int node : round.nodes) {
    places.push_back({group.host_of(static_cast<int>(places.size())), node});
  }
  if (options_.shards < group.world_size()) {
    throw Error(ErrorKind::bad_argument, {.rank = group.rank(), .operation = "Job::keep_sharded"},
                "\"" + name_ + "\" has " + std::to_string(options_.shards) + " shards for " +
                    std::to_string(group.world_size()) +
                    " ranks; it needs as many as there may be ranks");
  }
  ShardLayout layout(std::move(places), options_.shards, round.is_elastic);
  std::vector<ShardBlock> mine;
  mine.emplace_back(cut_, layout.owned_by(group.rank()));
  for (const int ward : layout.wards_of(group.rank())) {
    mine.emplace_back(cut_, layout.owned_by(ward));
  }
  const ShardTraffic traffic = fetch(group, round, layout.wanted(), mine);
  for (ShardBlock& block : mine) spare_.push_back(std::move(block));
  staged_ = std::move(layout);
  rank_ = group.rank();
  is_elastic_ = round.is_elastic;
  return traffic;
}

void ShardedState::install() {
  DDPRUN_ASSERT(staged_.is_known());
  layout_ = std::exchange(staged_, ShardLayout());
  const std::vector<int> wards = layout_.wards_of(rank_);
  DDPRUN_ASSERT(spare_.size() > wards.size());
  auto block = spare_.end() - static_cast<std::ptrdiff_t>(wards.size() + 1);
  const auto pair_of = [&](int owner) {
    const ShardRange range = block->range();
    return Pair{owner, std::move(*block++), ShardBlock(cut_, range)};
  };
  own_ = pair_of(rank_);
  wards_.clear();
  for (const int ward : wards) wards_.push_back(pair_of(ward));
  spare_.clear();
  is_touched_ = false;
}

void ShardedState::forget() {
  own_ = {};
  wards_.clear();
  spare_.clear();
  checkpoint_.clear();
  given_.clear();
}

void ShardedState::fill_from(const std::string& path) {
  forget();
  checkpoint_ = path;
}

void ShardedState::fill_from(std::vector<std::byte> whole) {
  DDPRUN_ASSERT(whole.size() == bytes());
  forget();
  given_ = std::move(whole);
}

std::vector<std::byte> ShardedState::gather_on_first(ProcessGroup& group) {
  std::vector<Buffer> out = no_parts(group), in = out;
  out.front() = bytes_of(own_.now.elements());
  std::vector<std::byte> whole(group.rank() == 0 ? static_cast<std::size_t>(bytes()) : 0);
  for (int r = 0; r < group.world_size() && group.rank() == 0; ++r) {
    const ShardRange range = layout_.owned_by(r);
    in[static_cast<std::size_t>(r)] =
        bytes_of(std::span(whole).subspan(cut_.bytes_of({0, range.first}), cut_.bytes_of(range)));
  }
  group.all_to_all(PartsBuffer(std::move(out)), PartsBuffer(std::move(in)), {.on_host = true});
  return whole;
}

CheckpointPiece ShardedState::piece() {
  return {.name = name_in_checkpoint(),
          .part = buffer_of(own_.now),
          .offset = first(),
          .total = options_.count};
}

// Pieces are verified as a whole, so together the ranks read all of them.
void ShardedState::check(const Checkpoint& checkpoint, const EvenShare& share) const {
  const Checkpoint::Array* found = checkpoint.find(name_in_checkpoint());
  if (!found || found->type != options_.type || found->count != options_.count) {
    throw Error(ErrorKind::mismatch, {.operation = "Job::run"},
                "its \"" + name_ + "\" is missing, or of another size or type");
  }
  // Each rank reads its share; together they have read all.
  const auto n = static_cast<std::size_t>(share.count),
             index = static_cast<std::size_t>(share.index);
  const std::size_t begin = found->count * index / n, end = found->count * (index + 1) / n;
  std::vector<std::byte> part((end - begin) * cut_.element_size);
  checkpoint.read(found->name, {part.data(), end - begin, found->type}, begin);
}

Buffer ShardedState::buffer_of(ShardBlock& block) const {
  const std::span<std::byte> memory = block.elements();
  return {memory.data(), memory.size() / cut_.element_size, options_.type};
}

Buffer ShardedState::next() {
  if (!std::exchange(is_touched_, true)) {
    own_.next.reopen();
    own_.next.copy_from(own_.now);
  }
  return buffer_of(own_.next);
}

void ShardedState::refresh(ProcessGroup& group, const ShardVersion& version) {
  const bool has_changed = is_touched_;
  if (is_elastic_) require_sound(group, own_.now, -1);  // Before next() may be a copy of it.
  (void)next();
  if (!is_elastic_) return;  // The checksums are not read.
  if (has_changed) own_.next.seal();
  pass("refresh");
  if (const int keeper = layout_.keeper_of(rank_); keeper >= 0) {
    std::vector<Buffer> out = no_parts(group), in = out;
    out[static_cast<std::size_t>(keeper)] = bytes_of(own_.next.memory());
    for (Pair& ward : wards_) {
      ward.next.reopen();
      in[static_cast<std::size_t>(ward.owner)] = bytes_of(ward.next.memory());
    }
    group.all_to_all(PartsBuffer(std::move(out)), PartsBuffer(std::move(in)), {.on_host = true});
  }
  pass("exchanged");
  own_.next.finish(version);
  for (Pair& ward : wards_) {
    require_sound(group, ward.next, ward.owner);
    ward.next.finish(version);
  }
  pass("refreshed");
}

void ShardedState::advance(const ShardVersion& version) noexcept {
  own_.next.finish(version);
  std::swap(own_.now, own_.next);
  for (Pair& ward : wards_) std::swap(ward.now, ward.next);
  is_touched_ = false;
}

ShardTraffic ShardedState::spread(ProcessGroup& group, const ShardRound& round) {
  const Wanted wanted = layout_.spread();
  const auto is_needed = [](const std::vector<int>& ranks) { return !ranks.empty(); };
  if (std::none_of(wanted.begin(), wanted.end(), is_needed)) return {};
  std::vector<ShardBlock> mine;
  for (int shard = 0; shard < options_.shards; ++shard) {
    const auto& ranks = wanted[static_cast<std::size_t>(shard)];
    if (std::find(ranks.begin(), ranks.end(), group.rank()) == ranks.end()) continue;
    mine.emplace_back(cut_, ShardRange{shard, shard + 1});
  }
  pass("spread");
  const ShardTraffic traffic = fetch(group, round, wanted, mine);
  for (ShardBlock& block : mine) spare_.push_back(std::move(block));
  return traffic;
}

void ShardedState::gather(ProcessGroup& group, const Buffer& mine, const Buffer& whole) const {
  if (whole.count != options_.count || whole.type != options_.type) {
    throw Error(ErrorKind::bad_argument, {.rank = group.rank(), .operation = "Sharded::gather"},
                "\"" + name_ + "\" has " + std::to_string(options_.count) + " elements of " +
                    name_of(options_.type));
  }
  std::vector<Buffer> parts;
  auto* const bytes = static_cast<std::byte*>(whole.data);
  for (int r = 0; r < group.world_size(); ++r) {
    const ShardRange range = layout_.owned_by(r);
    parts.push_back({bytes + cut_.bytes_of({0, range.first}),
                     cut_.bytes_of(range) / cut_.element_size, options_.type});
  }
  group.all_gather(mine, PartsBuffer(std::move(parts)), {.on_host = true});
}

// How the shards of a ShardedState get to the ranks that are to have them.
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

// Drops damaged shards, so that a sound copy replaces them. If ranks are fixed, there are no
// checksums.
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

// Gathers one byte per shard, and whether this rank knows which ranks had the shards. A rank that
// returns has shards of earlier steps only.
ShardedState::Holds ShardedState::query_all(ProcessGroup& group, const ShardRound& round) {
  const std::int64_t steps = round.version.steps;
  const bool has_fill = options_.fill != nullptr || !checkpoint_.empty() || !given_.empty();
  const bool can_fill = round.origin == steps && (steps == 0 || has_fill);
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
  const Holds holds = query_all(group, round);
  const ShardMoves plan = plan_moves(holds.by_rank, wanted);
  if (!plan.lost.empty()) refuse(group, plan.lost, holds, round);
  report_damaged(group, holds);
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
    const std::size_t first = cut_.first_of(one.shard);
    if (!checkpoint_.empty()) {
      Checkpoint(checkpoint_).read(name_in_checkpoint(), buffer_of(block), first);
    } else if (!given_.empty()) {
      const std::span<std::byte> memory = block.elements();
      std::memcpy(memory.data(), given_.data() + first * cut_.element_size, memory.size());
    } else if (options_.fill) {
      options_.fill(first, buffer_of(block));
    }
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

// Warns of this rank's damaged shards, which other ranks or the program replace.
void ShardedState::report_damaged(ProcessGroup& group, const Holds& holds) const {
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

namespace {

constexpr std::size_t kPieceBytes = std::size_t{4} << 20;  // Of all streams of a rank,
constexpr std::size_t kLeastBytes = std::size_t{1} << 16;  // and of each at least.

// The pieces of all streams of one direction that are on their way at once.
class Pieces {
 public:
  Pieces(const std::vector<ShardStream>& streams, std::size_t limit)
      : streams_(streams), limit_(limit), memory_(streams.size()) {
    for (std::size_t r = 0; r < streams.size(); ++r) {
      if (streams[r].total() > 0) {
        memory_[r].resize(std::min<std::uint64_t>(limit, streams[r].total()) + kChecksumBytes);
      }
    }
  }

  // The size of the piece that begins at `at`.
  std::size_t bytes(std::size_t r, std::uint64_t at) const {
    const std::uint64_t total = streams_[r].total();
    return at >= total ? 0 : static_cast<std::size_t>(std::min<std::uint64_t>(limit_, total - at));
  }
  PartsBuffer buffers(std::uint64_t at) {
    std::vector<Buffer> parts;
    for (std::size_t r = 0; r < memory_.size(); ++r) {
      const std::size_t n = bytes(r, at);
      parts.push_back({memory_[r].data(), n > 0 ? n + kChecksumBytes : 0, DataType::u8});
    }
    return PartsBuffer(std::move(parts));
  }

  void load(std::uint64_t at) {
    for (std::size_t r = 0; r < memory_.size(); ++r) {
      const std::size_t n = bytes(r, at);
      if (n == 0) continue;
      streams_[r].read(at, std::span(memory_[r]).first(n));
      const std::uint64_t sum = checksum(memory_[r].data(), n);
      std::memcpy(memory_[r].data() + n, &sum, kChecksumBytes);
    }
  }
  // Returns the rank of a damaged piece; -1: none.
  int store(std::uint64_t at) {
    for (std::size_t r = 0; r < memory_.size(); ++r) {
      const std::size_t n = bytes(r, at);
      if (n == 0) continue;
      const std::uint64_t sum = checksum(memory_[r].data(), n);
      if (std::memcmp(memory_[r].data() + n, &sum, kChecksumBytes) != 0) return static_cast<int>(r);
      streams_[r].write(at, std::span(memory_[r]).first(n));
    }
    return -1;
  }

 private:
  const std::vector<ShardStream>& streams_;
  const std::size_t limit_;
  std::vector<std::vector<std::byte>> memory_;  // By rank.
};

}  // namespace

void ShardStream::add(std::span<std::byte> part) {
  parts_.push_back(part);
  total_ += part.size();
}

template <class Visit>
void ShardStream::visit(std::uint64_t at, std::size_t bytes, Visit visit) const {
  std::uint64_t begin = 0;
  std::size_t done = 0;
  for (const auto& part : parts_) {
    const std::uint64_t from = at + done, end = begin + part.size();
    if (done < bytes && from < end) {
      const auto n = static_cast<std::size_t>(std::min<std::uint64_t>(bytes - done, end - from));
      visit(part.subspan(static_cast<std::size_t>(from - begin), n), done);
      done += n;
    }
    begin = end;
  }
  DDPRUN_ASSERT(done == bytes);
}

void ShardStream::read(std::uint64_t at, std::span<std::byte> memory) const {
  visit(at, memory.size(), [&](std::span<std::byte> part, std::size_t place) {
    std::memcpy(memory.data() + place, part.data(), part.size());
  });
}

void ShardStream::write(std::uint64_t at, std::span<const std::byte> memory) const {
  visit(at, memory.size(), [&](std::span<std::byte> part, std::size_t place) {
    std::memcpy(part.data(), memory.data() + place, part.size());
  });
}

void carry(ProcessGroup& group, const std::vector<ShardStream>& out,
           const std::vector<ShardStream>& in, std::uint64_t longest) {
  const std::size_t limit = std::max(kLeastBytes, kPieceBytes / out.size());
  Pieces leaving(out, limit), coming(in, limit);
  for (std::uint64_t at = 0; at < longest; at += limit) {
    leaving.load(at);
    pass("shards");
    group.all_to_all(leaving.buffers(at), coming.buffers(at), {.on_host = true});
    const int damaged = coming.store(at);
    if (damaged < 0) continue;
    throw Error(ErrorKind::corrupt,
                {.rank = group.rank(), .operation = "receiving shards", .peer = damaged},
                "a piece of the shards of rank " + std::to_string(damaged) + " arrived damaged");
  }
}

// The public class of ddprun/elastic/sharded.h: passes calls on.
Sharded::Sharded(std::unique_ptr<ShardedState> state) : state_(std::move(state)) {}
Sharded::~Sharded() = default;

std::size_t Sharded::first() const noexcept { return state_->first(); }
std::size_t Sharded::size() const noexcept { return state_->now().count; }
Buffer Sharded::now() const noexcept { return state_->now(); }
Buffer Sharded::next() {
  if (worker_sdk::GroupInside::refusal) {
    throw Error(ErrorKind::bad_argument, {.operation = "Sharded::next"},
                "\"" + state_->name() +
                    "\" was asked for by the function that commit() calls, which is too late: the "
                    "copy on another rank has been made");
  }
  return state_->next();
}

void Sharded::gather(ProcessGroup& group, Buffer whole) const {
  state_->gather(group, state_->now(), whole);
}
void Sharded::gather_next(ProcessGroup& group, Buffer whole) {
  state_->gather(group, state_->next(), whole);
}

void Sharded::require_type(DataType type) const {
  if (type == state_->type()) return;
  throw Error(ErrorKind::bad_argument, {.operation = "Sharded"},
              "\"" + state_->name() + "\" has elements of " + name_of(state_->type()) + ", not " +
                  name_of(type));
}

// What a job does with its sharded states, the same for each of them.
Sharded& JobInside::keep_sharded(std::string name, ShardedOptions options) {
  const auto same = [&](const auto& one) { return one->state_->name() == name; };
  if (group_) refuse("Job::keep_sharded", "\"" + name + "\" is to be kept before run()");
  if (std::any_of(sharded_.begin(), sharded_.end(), same)) {
    refuse("Job::keep_sharded", "\"" + name + "\" is kept already");
  }
  sharded_.push_back(std::make_unique<Sharded>(
      std::make_unique<ShardedState>(std::move(name), std::move(options))));
  return *sharded_.back();
}

std::uint64_t JobInside::signature_of_shards(std::uint64_t seed) const {
  for (const auto& one : sharded_) seed = one->state_->signature(seed);
  return seed;
}

ShardRound JobInside::shard_round(const ShardVersion& version) const {
  return {.nodes = nodes_, .version = version, .origin = origin_, .is_elastic = is_elastic()};
}

void JobInside::count(const ShardTraffic& traffic) {
  counters_.bytes_sent += traffic.sent;
  counters_.bytes_received += traffic.received;
}

void JobInside::stage_shards(const ShardVersion& version) {
  try {
    for (const auto& one : sharded_) count(one->state_->stage(*group_, shard_round(version)));
  } catch (const Error& error) {
    is_lost_ = error.kind() == ErrorKind::state_lost;
    throw;
  }
}

void JobInside::add_shard_pieces(std::vector<CheckpointPiece>& pieces) {
  for (const auto& one : sharded_) pieces.push_back(one->state_->piece());
}

void JobInside::meet_with_shards() {
  if (sharded_.empty()) return;
  group_->barrier();
  pass("installed");
}

void JobInside::install_shards() {
  for (const auto& one : sharded_) one->state_->install();
}

void JobInside::begin_shards() {
  for (const auto& one : sharded_) one->state_->begin_step();
}

void JobInside::refresh_shards() {
  for (const auto& one : sharded_) one->state_->refresh(*group_, {committed() + 1, round()});
}

void JobInside::advance_shards() {
  for (const auto& one : sharded_) one->state_->advance({committed() + 1, round()});
}

void JobInside::spread_shards() {
  if (is_over()) return;
  const ShardRound round = shard_round({committed(), standing_.made});
  for (const auto& one : sharded_) count(one->state_->spread(*group_, round));
}

}  // namespace ddprun::elastic
