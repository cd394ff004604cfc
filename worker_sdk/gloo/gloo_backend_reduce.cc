// GlooBackend's reductions: a reduce-scatter and an all-gather by direct messages, window by
// window, so that the next window travels while this one is reduced.

#include <complex>

#include "worker_sdk/gloo/gloo_backend.h"
#include "worker_sdk/gloo/gloo_tags.h"
#include "worker_sdk/gloo/gloo_transfers.h"
#include "worker_sdk/transport/reduce.h"

namespace ddprun::worker_sdk {
namespace {

// Where a rank would send no more than this, it sends the whole array to all others, and all reduce
// all of it: one step instead of two. Two ranks send the same number of bytes either way.
constexpr std::size_t kWholeBytes = 64 << 10;
constexpr std::size_t kWholeBytesOfTwo = 1 << 20;
// Of the array, that travels at once.
constexpr std::size_t kWindowBytes = 4 << 20;
constexpr std::size_t kGrain = 16;  // Elements: parts begin at cache lines.
constexpr std::size_t kWidestElement = sizeof(std::complex<double>);

std::byte* bytes_of(const Buffer& buffer) { return static_cast<std::byte*>(buffer.data); }

// Where this rank stands among those that reduce.
struct Circle {
  Circle(const std::vector<int>& all, int rank) : ranks(all) {
    while (ranks[me] != rank) ++me;
  }
  std::size_t size() const { return ranks.size(); }

  const std::vector<int>& ranks;
  std::size_t me = 0;
};

// The array of one all_reduce on its way. Window t is cut into a part for each rank.
class Windows {
 public:
  Windows(std::function<GlooTransfers()> start, const Circle& circle, Buffer array,
          std::byte* scratch)
      : start_(std::move(start)), circle_(circle), array_(array), scratch_(scratch) {}

  static std::size_t elements(DataType type) { return kWindowBytes / size_of(type); }
  // Of one rank's part of one window, so that each begins where any element may.
  static std::size_t source_bytes(std::size_t ranks) {
    constexpr std::size_t kAlignment = 64;
    const std::size_t bytes = kWindowBytes / ranks + kGrain * kWidestElement;
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }
  static std::size_t scratch_bytes(std::size_t ranks) { return 2 * ranks * source_bytes(ranks); }
  std::size_t number() const {
    return (array_.count + elements(array_.type) - 1) / elements(array_.type);
  }

  // Results are awaited from the beginning, so that who has one need not ask whether it may come:
  // rank k sends it when it has got what lies there now.
  void send_sources(std::size_t t) {
    GlooTransfers& sources = sources_[t % 3].emplace_back(start_());
    GlooTransfers& results = results_[t % 3].emplace_back(start_());
    for (std::size_t k = 0; k < circle_.size(); ++k) {
      if (k == circle_.me) continue;
      const Buffer mine = part(t, circle_.me), theirs = part(t, k);
      sources.recv(circle_.ranks[k], source(t, k), mine.bytes(), part_number(t, 0));
      results.recv(circle_.ranks[k], theirs.data, theirs.bytes(), part_number(t, 1));
      sources.send(circle_.ranks[k], theirs.data, theirs.bytes(), part_number(t, 0));
    }
  }

  void reduce_mine(std::size_t t, ReduceOp op) {
    sources_[t % 3].front().wait_received();
    const Buffer mine = part(t, circle_.me);
    std::vector<const void*> sources;
    for (std::size_t k = 0; k < circle_.size(); ++k) {
      sources.push_back(k == circle_.me ? mine.data : source(t, k));
    }
    reduce(mine.type, op, mine.data, {sources.data(), static_cast<int>(sources.size())},
           mine.count);
    for (std::size_t k = 0; k < circle_.size(); ++k) {
      if (k == circle_.me) continue;
      results_[t % 3].front().send(circle_.ranks[k], mine.data, mine.bytes(), part_number(t, 1));
    }
  }

  void finish(std::size_t t) {
    for (auto* under_way : {&results_[t % 3], &sources_[t % 3]}) {
      under_way->front().wait();
      under_way->clear();
    }
  }

 private:
  static std::uint32_t part_number(std::size_t t, std::uint32_t phase) {
    return static_cast<std::uint32_t>(2 * t) + phase;
  }
  Buffer part(std::size_t t, std::size_t k) const {
    const std::size_t begin = t * elements(array_.type);
    const std::size_t count = std::min(elements(array_.type), array_.count - begin);
    const std::size_t grains = (count + kGrain - 1) / kGrain;
    const auto edge = [&](std::size_t i) {
      return std::min(count, grains * i / circle_.size() * kGrain);
    };
    return {bytes_of(array_) + (begin + edge(k)) * size_of(array_.type), edge(k + 1) - edge(k),
            array_.type};
  }
  std::byte* source(std::size_t t, std::size_t k) const {
    return scratch_ + (t % 2 * circle_.size() + k) * source_bytes(circle_.size());
  }

  const std::function<GlooTransfers()> start_;
  const Circle& circle_;
  const Buffer array_;
  std::byte* const scratch_;
  std::vector<GlooTransfers> sources_[3], results_[3];  // Of a window: one or none.
};

}  // namespace

std::byte* GlooBackend::scratch(std::size_t bytes) {
  if (scratch_bytes_ < bytes) {
    scratch_ = std::make_unique_for_overwrite<std::byte[]>(bytes);
    scratch_bytes_ = bytes;
  }
  return scratch_.get();
}

void GlooBackend::all_reduce(const Call& call, const Arrays& arrays) {
  reduce_for_all(call, everybody_, arrays.out, call.what.op);
}

void GlooBackend::reduce_for_all(const Call& call, const std::vector<int>& ranks, Buffer inout,
                                 ReduceOp op) {
  if (inout.count == 0 || ranks.size() == 1) return;
  const bool small = ranks.size() == 2 ? inout.bytes() <= kWholeBytesOfTwo
                                       : inout.bytes() * (ranks.size() - 1) <= kWholeBytes;
  if (small) return reduce_whole(call, ranks, inout, op);
  reduce_in_windows(call, ranks, inout, op);
}

void GlooBackend::reduce_whole(const Call& call, const std::vector<int>& ranks, Buffer inout,
                               ReduceOp op) {
  const Circle circle(ranks, roster_->rank);
  std::byte* memory = scratch(circle.size() * inout.bytes());
  GlooTransfers messages = transfers(collective_slot(call), call);
  std::vector<const void*> sources;
  for (std::size_t k = 0; k < circle.size(); ++k) {
    sources.push_back(k == circle.me ? inout.data : memory + k * inout.bytes());
    if (k == circle.me) continue;
    messages.recv(ranks[k], memory + k * inout.bytes(), inout.bytes());
    messages.send(ranks[k], inout.data, inout.bytes());
  }
  messages.wait();
  worker_sdk::reduce(inout.type, op, inout.data, {sources.data(), static_cast<int>(sources.size())},
                     inout.count);
}

void GlooBackend::reduce_in_windows(const Call& call, const std::vector<int>& ranks, Buffer inout,
                                    ReduceOp op) {
  const Circle circle(ranks, roster_->rank);
  Windows windows([&] { return transfers(collective_slot(call), call); }, circle, inout,
                  scratch(Windows::scratch_bytes(circle.size())));
  const std::size_t n = windows.number();
  for (std::size_t t = 0; t < n + 2; ++t) {
    if (t < n) windows.send_sources(t);
    if (t >= 1 && t <= n) windows.reduce_mine(t - 1, op);
    if (t >= 2) windows.finish(t - 2);
  }
}

// Window by window, the root gets all sources; nobody else has any use for them.
void GlooBackend::reduce(const Call& call, const Arrays& arrays) {
  const Buffer in = arrays.in, out = arrays.out;
  const int root = call.what.rank;
  const std::size_t step = kWindowBytes / size_of(in.type);
  const std::size_t bytes = std::min(step, in.count) * size_of(in.type);
  std::byte* memory = root == roster_->rank ? scratch(everybody_.size() * bytes) : nullptr;
  std::uint32_t part = 0;
  for (std::size_t begin = 0; begin < in.count; begin += step, ++part) {
    const std::size_t count = std::min(step, in.count - begin), at = begin * size_of(in.type);
    GlooTransfers messages = transfers(collective_slot(call), call);
    if (root != roster_->rank)
      messages.send(root, bytes_of(in) + at, count * size_of(in.type), part);
    std::vector<const void*> sources;
    for (std::size_t r = 0; memory && r < everybody_.size(); ++r) {
      const bool mine = everybody_[r] == root;
      sources.push_back(mine ? bytes_of(in) + at : memory + r * bytes);
      if (!mine) messages.recv(everybody_[r], memory + r * bytes, count * size_of(in.type), part);
    }
    messages.wait();
    if (!memory) continue;
    worker_sdk::reduce(in.type, call.what.op, bytes_of(out) + at,
                       {sources.data(), static_cast<int>(sources.size())}, count);
  }
}

// The parts are those of `in`, which may be unequal; this rank's is as long as `out`.
void GlooBackend::reduce_scatter(const Call& call, const Arrays& arrays) {
  const Buffer out = arrays.out;
  const Circle circle(everybody_, roster_->rank);
  const std::size_t step = kWindowBytes / circle.size() / size_of(out.type) + kGrain;
  const std::size_t bytes = step * size_of(out.type);
  std::byte* memory = scratch(circle.size() * bytes);
  const auto part = [&](std::size_t k) {
    return arrays.in_part(static_cast<int>(k), call.what.count);
  };
  std::size_t longest = out.count;
  for (std::size_t k = 0; k < circle.size(); ++k) longest = std::max(longest, part(k).count);
  const auto window = [&](const Buffer& whole, std::size_t begin) {
    const std::size_t at = std::min(begin, whole.count);
    return Buffer{bytes_of(whole) + at * size_of(whole.type), std::min(step, whole.count - at),
                  whole.type};
  };
  std::uint32_t turn = 0;
  for (std::size_t begin = 0; begin < longest; begin += step, ++turn) {
    const Buffer mine = window(out, begin);
    GlooTransfers messages = transfers(collective_slot(call), call);
    std::vector<const void*> sources;
    for (std::size_t k = 0; k < circle.size(); ++k) {
      const Buffer from = window(part(k), begin);
      sources.push_back(k == circle.me ? from.data : memory + k * bytes);
      if (k == circle.me) continue;
      messages.recv(everybody_[k], memory + k * bytes, mine.bytes(), turn);
      messages.send(everybody_[k], from.data, from.bytes(), turn);
    }
    messages.wait();
    worker_sdk::reduce(out.type, call.what.op, mine.data,
                       {sources.data(), static_cast<int>(sources.size())}, mine.count);
  }
}

}  // namespace ddprun::worker_sdk
