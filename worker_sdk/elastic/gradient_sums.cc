// The first bucket begins with the head (sum_layout.h). So one all_reduce, for small models the
// only one, shows every rank whether the step is good before the other buckets are reduced.
//
// Three sets of exponents: `committed` belongs to the last committed step; `running` is used for
// this step, and changes only when the step runs again within one group; `next` is the result of
// the step.

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/assert.h"
#include "common/checksum.h"
#include "ddprun/elastic/gradient_sums.h"
#include "worker_sdk/elastic/combine.h"
#include "worker_sdk/elastic/exact_sum.h"
#include "worker_sdk/elastic/mix.h"
#include "worker_sdk/elastic/sum_layout.h"

namespace ddprun::worker_sdk {
namespace {

// Computes one bucket from all ranks' gradients if each rank has kept the gradients of its only
// shard: the sums of exact_sum.h, made while they are read.
class CombinePieces : public Combine {
 public:
  struct Tensors {
    const std::vector<int>& exponents;
    const std::vector<bool>& finite;  // The sums of others are NaN.
  };
  // `pieces`: those of the bucket.
  CombinePieces(std::span<const SumPiece> pieces, Tensors tensors, double divisor)
      : pieces_(pieces), tensors_(tensors), divisor_(divisor) {}

  void combine(std::size_t at, std::size_t count, const void* const* sources, int ranks,
               void* result) const noexcept override;

 private:
  std::span<const SumPiece> pieces_;
  Tensors tensors_;
  double divisor_;
};

void CombinePieces::combine(std::size_t at, std::size_t count, const void* const* sources,
                            int ranks, void* result) const noexcept {
  constexpr std::size_t kRanksMax = 1024;  // Of one host.
  DDPRUN_ASSERT(ranks > 0 && static_cast<std::size_t>(ranks) <= kRanksMax);
  std::array<const float*, kRanksMax> parts;
  const auto first =
      std::partition_point(pieces_.begin(), pieces_.end(),
                           [&](const SumPiece& piece) { return piece.at + piece.count <= at; });
  for (auto piece = first; piece != pieces_.end() && piece->at < at + count; ++piece) {
    const std::size_t begin = std::max(piece->at, at);
    const std::size_t end = std::min(piece->at + piece->count, at + count);
    const std::span sums(static_cast<float*>(result) + (begin - at), end - begin);
    if (!tensors_.finite[piece->tensor]) {
      std::fill(sums.begin(), sums.end(), std::numeric_limits<float>::quiet_NaN());
      continue;
    }
    for (int r = 0; r < ranks; ++r) {
      parts[static_cast<std::size_t>(r)] = static_cast<const float*>(sources[r]) + (begin - at);
    }
    combine_exact({parts.data(), static_cast<std::size_t>(ranks)}, sums,
                  tensors_.exponents[piece->tensor], divisor_);
  }
}

}  // namespace
}  // namespace ddprun::worker_sdk

namespace ddprun {

// If ranks can read each other's arrays (combine.h), the gradients of a rank's first shard are kept
// as they are. If no rank adds a second one, they become sums while they are read: then exact sums
// move as many bytes as plain ones. A second shard makes integers of both.
//
// The sums of a tensor that are left in the memory are contiguous, also over several buckets:
// pieces fill a bucket up to its end before the next one begins.
struct GradientSums::Impl {
  enum class State { kNoGroup, kReady, kAdding, kReduced };

  Impl(std::vector<std::size_t> tensor_sizes, const GradientSumOptions& chosen);

  std::size_t element() const { return options.exact ? sizeof(std::int64_t) : sizeof(float); }
  // The first element of a bucket.
  std::int64_t* integers(std::size_t bucket) const {
    return static_cast<std::int64_t*>(memory.get()) + starts[bucket];
  }
  float* floats(std::size_t bucket) const {
    return static_cast<float*>(memory.get()) + starts[bucket];
  }
  // In the second half of the memory: integers made of them, in order, are written behind the
  // elements still to be read.
  float* kept(std::size_t bucket) const {
    return static_cast<float*>(memory.get()) + starts.back() + starts[bucket];
  }
  // The place for the gradients of the first shard if they are taken in unchanged, or null.
  float* first(const worker_sdk::SumPiece& piece) const {
    if (options.exact && !keeps) return nullptr;
    return (options.exact ? kept(piece.bucket) : floats(piece.bucket)) + piece.at;
  }
  // The place of the sums if the caller has no arrays for them. Made of integers, in order, they
  // too are written behind the elements still to be read.
  float* place(const worker_sdk::SumPiece& piece) const {
    return (combines ? kept(piece.bucket) : floats(piece.bucket)) + piece.at;
  }
  std::span<const worker_sdk::SumPiece> pieces_of(std::size_t bucket) const;
  // Null if the tensor has no elements.
  const worker_sdk::SumPiece* first_piece_of(std::size_t tensor) const;
  [[noreturn]] static void refuse(ErrorKind kind, const std::string& text) {
    throw Error(kind, {.operation = "GradientSums"}, text);
  }
  void require(bool condition, const char* text) const {
    if (!condition) refuse(ErrorKind::bad_argument, text);
  }
  void begin_again();
  void lay_out(bool keeping, std::size_t room_for_notes);
  void add_piece(const worker_sdk::SumPiece& piece, std::span<const float> gradient);
  void add_plain_piece(const worker_sdk::SumPiece& piece, std::span<const float> gradient);
  std::uint64_t hash_of(std::size_t tensor, std::span<const float> gradient,
                        std::uint64_t seed) const;
  std::uint64_t fingerprint(double divisor) const;
  void write_head(const Call& call);
  Result read_head(int ranks, const Call& call);
  void judge_tensors(Result& result);
  void reduce_bucket(ProcessGroup& group, std::size_t bucket);
  void reduce_bucket(ProcessGroup& group, std::size_t bucket, const Call& call);
  void expand_kept();
  std::span<float> part_of(const worker_sdk::SumPiece& piece,
                           std::span<const std::span<float>> gradients) const;
  void finish_piece(const worker_sdk::SumPiece& piece, std::span<float> part, const Call& call,
                    Result& result);
  void finish_exact_piece(const worker_sdk::SumPiece& piece, std::span<float> part,
                          const Call& call);
  void note_not_finite(Result& result, std::size_t tensor) const;

  const std::vector<std::size_t> sizes;
  const GradientSumOptions options;
  worker_sdk::SumLayout layout;
  std::size_t notes = 0;                      // So many are in the head.
  std::vector<int> committed, running, next;  // By tensor.
  std::vector<std::uint32_t> largest;         // Magnitudes of this rank's gradients, by tensor.
  std::vector<bool> finite;                   // By tensor, found by all ranks.
  std::vector<std::size_t> starts;            // By bucket, in elements of memory; then the end.
  std::shared_ptr<void> memory;
  State state = State::kNoGroup;
  std::int64_t shards = 0;  // On this rank.
  bool keeps = false;       // The gradients of a rank's first shard stay as they are for a while.
  bool combines = false;    // Also, no rank has more: they become sums while they are read.
  bool in_place = false;    // place() has the sums of the last reduce().
};

using namespace worker_sdk;

GradientSums::Impl::Impl(std::vector<std::size_t> tensor_sizes, const GradientSumOptions& chosen)
    : sizes(std::move(tensor_sizes)),
      options(chosen),
      committed(sizes.size(), kNoExponent),
      running(committed),
      next(committed),
      largest(sizes.size()),
      finite(sizes.size(), true) {
  constexpr std::size_t kLeastBytes = 4096;
  if (options.bucket_bytes < kLeastBytes) {
    Impl::refuse(ErrorKind::bad_argument, "bucket_bytes is below " + std::to_string(kLeastBytes));
  }
  lay_out(false, 0);
}

void GradientSums::Impl::begin_again() {
  shards = 0;
  std::fill(largest.begin(), largest.end(), 0U);
}

// Equal on ranks with sums that may be added up.
std::uint64_t GradientSums::Impl::fingerprint(double divisor) const {
  std::uint64_t print = mix64(mix64(options.equal) ^ std::bit_cast<std::uint64_t>(divisor));
  for (std::size_t t = 0; t < sizes.size(); ++t) {
    print = mix64(print ^ sizes[t]);
    print = mix64(print ^ static_cast<std::uint64_t>(static_cast<std::int64_t>(running[t])));
  }
  return print;
}

void GradientSums::Impl::write_head(const Call& call) {
  const SumFields fields{static_cast<std::uint64_t>(call.note), static_cast<std::uint64_t>(shards),
                         fingerprint(call.divide_by), shards > 1 ? 1U : 0U};
  std::vector<std::int64_t> all(call.notes.begin(), call.notes.end());
  all.resize(notes);
  if (options.exact) return write_exact_head(integers(0), fields, all, largest);
  write_plain_head(floats(0), fields, all);
}

GradientSums::Result GradientSums::Impl::read_head(int ranks, const Call& call) {
  const auto fields = options.exact ? fields_of_exact(integers(0)) : fields_of_plain(floats(0));
  if (fields.fingerprint != static_cast<std::uint64_t>(ranks) * fingerprint(call.divide_by)) {
    Impl::refuse(
        ErrorKind::mismatch,
        "ranks differ in sizes, divisor, what restore() gave them, or GradientSumOptions::equal");
  }
  Result result{.note = static_cast<std::int64_t>(fields.note),
                .notes = options.exact ? notes_of_exact(integers(0), notes)
                                       : notes_of_plain(floats(0), notes),
                .shards = static_cast<std::int64_t>(fields.shards)};
  if (result.shards > kExactShardsMax) {
    Impl::refuse(ErrorKind::bad_argument, std::to_string(result.shards) +
                                              " shards in one step; at most " +
                                              std::to_string(kExactShardsMax) + " may be");
  }
  combines = keeps && fields.several == 0;
  if (options.exact) judge_tensors(result);
  return result;
}

void GradientSums::Impl::judge_tensors(Result& result) {
  for (std::size_t t = 0; t < sizes.size(); ++t) {
    const Judgement judgement =
        judge(running[t], highest_class(tail_of_tensor(integers(0), notes, t)));
    next[t] = judgement.next;
    finite[t] = judgement.kind != Judgement::Kind::kNotFinite;
    if (!finite[t]) note_not_finite(result, t);
    if (judgement.kind != Judgement::Kind::kOver || result.kind == Kind::over) continue;
    result.kind = Kind::over;
    result.tensor = t;
  }
}

// The first such tensor counts; `over` has priority.
void GradientSums::Impl::note_not_finite(Result& result, std::size_t tensor) const {
  if (result.kind != Kind::good) return;
  result.kind = Kind::not_finite;
  result.tensor = tensor;
}

void GradientSums::Impl::reduce_bucket(ProcessGroup& group, std::size_t bucket) {
  const Buffer all = options.exact ? buffer(integers(bucket), layout.buckets[bucket])
                                   : buffer(floats(bucket), layout.buckets[bucket]);
  group.all_reduce(all, ReduceOp::sum);
}

void GradientSums::Impl::reduce_bucket(ProcessGroup& group, std::size_t bucket, const Call& call) {
  if (!combines) return reduce_bucket(group, bucket);
  combine_all(group, buffer(kept(bucket), layout.buckets[bucket]),
              CombinePieces(pieces_of(bucket), {running, finite}, call.divide_by));
}

std::span<float> GradientSums::Impl::part_of(const SumPiece& piece,
                                             std::span<const std::span<float>> gradients) const {
  if (gradients.empty()) return {place(piece), piece.count};
  const auto gradient = gradients[piece.tensor];
  return gradient.empty() ? gradient : gradient.subspan(piece.from, piece.count);
}

// Empty `part`: the caller does not need these sums.
void GradientSums::Impl::finish_piece(const SumPiece& piece, std::span<float> part,
                                      const Call& call, Result& result) {
  if (options.exact) {
    if (!part.empty()) finish_exact_piece(piece, part, call);
    return;
  }
  const std::span sums(floats(piece.bucket) + piece.at, piece.count);
  const auto found =
      finish_plain(sums, part.empty() ? sums : part, static_cast<float>(call.divide_by));
  if (class_of(found) == kNotFiniteClass) note_not_finite(result, piece.tensor);
}

void GradientSums::Impl::finish_exact_piece(const SumPiece& piece, std::span<float> part,
                                            const Call& call) {
  if (combines) {
    const float* sums = kept(piece.bucket) + piece.at;
    if (part.data() != sums) std::copy_n(sums, part.size(), part.begin());
  } else if (!finite[piece.tensor]) {
    std::fill(part.begin(), part.end(), std::numeric_limits<float>::quiet_NaN());
  } else {
    const std::span sums(integers(piece.bucket) + piece.at, piece.count);
    finish_exact(sums, part, running[piece.tensor], call.divide_by);
  }
}

GradientSums::GradientSums(std::vector<std::size_t> sizes, const GradientSumOptions& options)
    : impl_(std::make_unique<Impl>(std::move(sizes), options)) {}

GradientSums::~GradientSums() = default;

void GradientSums::use(ProcessGroup& group) {
  if (group.device() >= 0) {
    Impl::refuse(ErrorKind::unsupported,
                 "the sums are made by the host; backend nccl has arrays of GPUs");
  }
  impl_->state = Impl::State::kNoGroup;
  impl_->in_place = false;
  impl_->memory.reset();
  impl_->lay_out(impl_->options.exact && can_combine(group), notes_most(group.world_size()));
  impl_->memory = group.allocate(impl_->starts.back() * impl_->element());  // Zeros.
  impl_->running = impl_->committed;
  impl_->state = Impl::State::kReady;
}

void GradientSums::begin() {
  impl_->require(impl_->state != Impl::State::kNoGroup, "begin() before use()");
  impl_->begin_again();
  impl_->in_place = false;
  impl_->state = Impl::State::kAdding;
}

void GradientSums::add(std::span<const std::span<const float>> gradients) {
  Impl& in = *impl_;
  in.require(in.state == Impl::State::kAdding, "add() outside of a step");
  in.require(gradients.size() == in.sizes.size(), "add() needs an array for each tensor");
  for (std::size_t t = 0; t < gradients.size(); ++t) {
    in.require(gradients[t].empty() || gradients[t].size() == in.sizes[t],
               "add() was given a gradient of another size than its tensor");
  }
  for (const SumPiece& piece : in.layout.pieces) in.add_piece(piece, gradients[piece.tensor]);
  ++in.shards;
}

std::uint64_t GradientSums::hash(std::span<const std::span<const float>> gradients) const {
  const Impl& in = *impl_;
  in.require(in.state == Impl::State::kAdding, "hash() outside of a step");
  in.require(gradients.size() == in.sizes.size(), "hash() needs an array for each tensor");
  std::uint64_t hash = 0;
  for (std::size_t t = 0; t < gradients.size(); ++t) {
    in.require(gradients[t].empty() || gradients[t].size() == in.sizes[t],
               "hash() was given a gradient of another size than its tensor");
    hash = in.hash_of(t, gradients[t], hash);
  }
  return hash;
}

bool GradientSums::is_finite() const {
  const auto finite = [](std::uint32_t largest) { return class_of(largest) != kNotFiniteClass; };
  return std::all_of(impl_->largest.begin(), impl_->largest.end(), finite);
}

GradientSums::Result GradientSums::reduce(ProcessGroup& group,
                                          std::span<const std::span<float>> gradients,
                                          const Call& call) {
  Impl& in = *impl_;
  in.require(in.state == Impl::State::kAdding, "reduce() outside of a step");
  in.require(gradients.empty() || gradients.size() == in.sizes.size(),
             "reduce() needs an array for each tensor, or none at all");
  for (std::size_t t = 0; t < gradients.size(); ++t) {
    in.require(gradients[t].empty() || gradients[t].size() == in.sizes[t],
               "reduce() was given an array of another size than its tensor");
  }
  in.require(std::isfinite(call.divide_by) && call.divide_by > 0, "divide_by is not above 0");
  in.require(call.notes.size() <= in.notes, "reduce() was given more notes than notes_most()");
  if (in.shards == 0) {
    for (const SumPiece& piece : in.layout.pieces) in.add_piece(piece, {});
  }
  in.write_head(call);
  in.reduce_bucket(group, 0);
  Result result = in.read_head(group.world_size(), call);
  if (result.kind == Kind::over) {
    in.running = in.next;
    in.state = Impl::State::kReady;
    return result;
  }
  if (!in.combines) in.expand_kept();
  std::size_t reduced = 0;
  for (const SumPiece& piece : in.layout.pieces) {
    for (; reduced < piece.bucket; ++reduced) in.reduce_bucket(group, reduced + 1, call);
    in.finish_piece(piece, in.part_of(piece, gradients), call, result);
  }
  in.in_place = gradients.empty();
  in.state = Impl::State::kReduced;
  return result;
}

std::shared_ptr<float> GradientSums::first(std::size_t tensor) const {
  const Impl& in = *impl_;
  in.require(in.state == Impl::State::kAdding && in.shards == 0,
             "first() is for the time between begin() and add()");
  const SumPiece* piece = in.first_piece_of(tensor);
  return {in.memory, piece ? in.first(*piece) : nullptr};
}

std::shared_ptr<float> GradientSums::sum(std::size_t tensor) const {
  const Impl& in = *impl_;
  in.require(in.in_place, "sum() without a reduce() that leaves the sums in place");
  const SumPiece* piece = in.first_piece_of(tensor);
  return {in.memory, piece ? in.place(*piece) : nullptr};
}

void GradientSums::commit() {
  impl_->require(impl_->state == Impl::State::kReduced, "commit() without a reduce() before it");
  impl_->committed = impl_->running = impl_->next;
  impl_->state = Impl::State::kReady;
}

std::string GradientSums::state() const {
  const std::vector<std::int16_t> exponents(impl_->committed.begin(), impl_->committed.end());
  return {reinterpret_cast<const char*>(exponents.data()), exponents.size() * sizeof(std::int16_t)};
}

void GradientSums::restore(std::string_view state) {
  std::vector<std::int16_t> exponents(impl_->sizes.size());
  if (state.size() != exponents.size() * sizeof(std::int16_t)) {
    Impl::refuse(ErrorKind::mismatch, "restore() was given the state of other tensors");
  }
  if (!state.empty()) std::memcpy(exponents.data(), state.data(), state.size());
  for (const std::int16_t e : exponents) {
    if (e == kNoExponent || (e >= kLeastExponent && e <= kMostExponent)) continue;
    Impl::refuse(ErrorKind::mismatch, "restore() was given bytes that are not a state of sums");
  }
  impl_->committed.assign(exponents.begin(), exponents.end());
  impl_->running = impl_->committed;
  if (impl_->state != Impl::State::kNoGroup) impl_->state = Impl::State::kReady;
}

// Stores the gradients of shards until they are reduced.

using namespace worker_sdk;

void GradientSums::Impl::lay_out(bool keeping, std::size_t room_for_notes) {
  keeps = keeping;
  notes = room_for_notes;
  const std::size_t head =
      options.exact ? exact_head_size(notes, sizes.size()) : plain_head_size(notes);
  layout = lay_out_sums(sizes, head, options.bucket_bytes / element(), keeps);
  starts.assign(1, 0);
  for (const std::size_t count : layout.buckets) starts.push_back(starts.back() + count);
}

void GradientSums::Impl::add_piece(const SumPiece& piece, std::span<const float> gradient) {
  if (!options.exact) return add_plain_piece(piece, gradient);
  const auto part = gradient.empty() ? gradient : gradient.subspan(piece.from, piece.count);
  const std::span sums(integers(piece.bucket) + piece.at, piece.count);
  const int exponent = running[piece.tensor];
  std::uint32_t found = 0;
  if (keeps && shards <= 1) {
    const std::span floats(kept(piece.bucket) + piece.at, piece.count);
    if (shards == 1) {
      found = expand_exact(sums, floats.data(), part, exponent);
    } else if (part.empty()) {
      std::fill(floats.begin(), floats.end(), 0.0f);
    } else {
      const bool there = part.data() == floats.data();
      found = there ? largest_of(part) : keep_exact(floats, part);
    }
  } else if (part.empty()) {
    if (shards == 0) std::fill(sums.begin(), sums.end(), 0);
  } else {
    found = shards == 0 ? set_exact(sums, part, exponent) : add_exact(sums, part, exponent);
  }
  largest[piece.tensor] = std::max(largest[piece.tensor], found);
}

void GradientSums::Impl::add_plain_piece(const SumPiece& piece, std::span<const float> gradient) {
  const bool first = shards == 0;
  const auto part = gradient.empty() ? gradient : gradient.subspan(piece.from, piece.count);
  const std::span sums(floats(piece.bucket) + piece.at, piece.count);
  if (part.empty() && first) std::fill(sums.begin(), sums.end(), 0.0f);
  if (part.empty()) return;
  if (!first) return add_plain(sums, part);
  if (part.data() != sums.data()) std::memcpy(sums.data(), part.data(), part.size_bytes());
}

// A tensor without a gradient has the hash of zeros.
std::uint64_t GradientSums::Impl::hash_of(std::size_t tensor, std::span<const float> gradient,
                                          std::uint64_t seed) const {
  constexpr std::size_t kPart = 4096;
  const bool is_exact = options.exact && running[tensor] != kNoExponent;
  std::vector<std::int64_t> integers(kPart);
  std::vector<float> zeros(gradient.empty() ? kPart : 0), floats(is_exact ? 0 : kPart);
  for (std::size_t at = 0; at < sizes[tensor]; at += kPart) {
    const std::size_t count = std::min(kPart, sizes[tensor] - at);
    const std::span<const float> part =
        gradient.empty() ? std::span<const float>(zeros).first(count) : gradient.subspan(at, count);
    if (is_exact) {
      set_exact(std::span(integers).first(count), part, running[tensor]);
      seed = checksum(integers.data(), count * sizeof(std::int64_t), seed);
    } else {
      // -0 counts as 0: a gradient that was added to zeros has lost that sign.
      std::transform(part.begin(), part.end(), floats.begin(),
                     [](float each) { return each == 0 ? 0.0F : each; });
      seed = checksum(floats.data(), part.size_bytes(), seed);
    }
  }
  return seed;
}

// For ranks that have more shards, or none that could be combined with those of others.
void GradientSums::Impl::expand_kept() {
  if (!keeps || shards > 1) return;
  for (const SumPiece& piece : layout.pieces) {
    const std::span sums(integers(piece.bucket) + piece.at, piece.count);
    expand_exact(sums, kept(piece.bucket) + piece.at, {}, running[piece.tensor]);
  }
}

std::span<const SumPiece> GradientSums::Impl::pieces_of(std::size_t bucket) const {
  const auto range =
      std::equal_range(layout.pieces.begin(), layout.pieces.end(), SumPiece{.bucket = bucket},
                       [](const SumPiece& a, const SumPiece& b) { return a.bucket < b.bucket; });
  return {range.first, range.second};
}

const SumPiece* GradientSums::Impl::first_piece_of(std::size_t tensor) const {
  require(tensor < sizes.size(), "there is no such tensor");
  const auto piece =
      std::partition_point(layout.pieces.begin(), layout.pieces.end(),
                           [tensor](const SumPiece& each) { return each.tensor < tensor; });
  return sizes[tensor] == 0 ? nullptr : &*piece;
}

}  // namespace ddprun
