// Where the gradients of shards go until they are reduced.

#include <algorithm>
#include <cstring>

#include "worker_sdk/elastic/gradient_sums_impl.h"

namespace ddprun {

using namespace worker_sdk;

void GradientSums::Impl::lay_out(bool keeping) {
  keeps = keeping;
  const std::size_t head = options.exact ? exact_head_size(sizes.size()) : plain_head_size();
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
