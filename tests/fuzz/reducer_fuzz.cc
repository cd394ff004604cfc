// The reducer under any calls in any order: buckets come once a pass and strictly in order, never
// before their gradients are there (nor, in a held first pass, before all are), every pass that
// ends well has released all of them, and a refused call changes nothing.
//
// Bytes: rules, number of parameters, one a parameter for the buckets; then one a call.

#include "tests/fuzz/reducer_fuzz.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "common/assert.h"
#include "worker_sdk/ddp/reducer.h"

namespace ddprun::fuzz {
namespace {

using worker_sdk::Reducer;
using worker_sdk::ReducerRules;

class Bytes {
 public:
  Bytes(const std::uint8_t* data, std::size_t size) : at_(data), end_(data + size) {}
  bool empty() const { return at_ == end_; }
  std::uint8_t next() { return empty() ? 0 : *at_++; }

 private:
  const std::uint8_t* at_;
  const std::uint8_t* end_;
};

ReducerRules rules_in(std::uint8_t bits) {
  return {.hold_first = (bits & 1) != 0,
          .find_unused = (bits & 2) != 0,
          .static_graph = (bits & 4) != 0};
}

Reducer::Buckets buckets_in(Bytes& in, std::size_t parameters) {
  Reducer::Buckets buckets(1);
  for (std::size_t p = 0; p < parameters; ++p) {
    if (!buckets.back().empty() && in.next() % 3 == 0) buckets.emplace_back();
    buckets.back().push_back(p);
  }
  return buckets;
}

class Play {
 public:
  explicit Play(Bytes& in)
      : in_(in),
        rules_(rules_in(in.next())),
        parameters_(1 + in.next() % 12),
        buckets_(buckets_in(in, parameters_)),
        reducer_(buckets_, std::vector<std::string>(parameters_, "p"), rules_),
        needed_(parameters_, 1),
        marks_(parameters_, 0) {}

  void run() {
    while (!in_.empty()) {
      const std::uint8_t call = in_.next();
      if (call < 40) {
        begin();
      } else if (call < 60) {
        finish();
      } else if (call < 64) {
        collecting_ ? cancel() : regroup();
      } else {
        mark(call % parameters_);
      }
      reducer_.check_invariants();
    }
  }

 private:
  bool counting() const { return rules_.static_graph && !counted_; }

  void begin() {
    std::vector<std::size_t> unused;
    if (rules_.find_unused && !rules_.static_graph) {
      for (std::size_t p = 0; p < parameters_; ++p) {
        if (in_.next() % 5 == 0) unused.push_back(p);
      }
    }
    const auto released = reducer_.begin(unused);
    DDPRUN_ASSERT(released.has_error() == collecting_);
    if (collecting_) return;
    collecting_ = true;
    next_ = 0;
    marks_.assign(parameters_, 0);
    pass_needs_ = needed_;
    for (const std::size_t p : unused) pass_needs_[p] = 0;
    take(*released);
  }

  void mark(std::size_t p) {
    const auto released = reducer_.mark_ready(p);
    const bool allowed = collecting_ && (counting() || marks_[p] < pass_needs_[p]);
    DDPRUN_ASSERT(released.has_value() == allowed);
    if (!allowed) return;
    ++marks_[p];
    take(*released);
  }

  void finish() {
    const auto rest = reducer_.finish();
    const bool may_miss = counting() || rules_.find_unused;
    DDPRUN_ASSERT(rest.has_value() == (collecting_ && (may_miss || all_complete())));
    const bool was_collecting = std::exchange(collecting_, false);
    if (was_collecting) first_ = false;  // Of a pass that lacks a gradient, too.
    if (rest.has_error()) return;
    if (counting()) needed_ = marks_;
    counted_ = true;
    pass_needs_ = marks_;  // Nothing is waited for any more.
    take(*rest);
    DDPRUN_ASSERT(next_ == buckets_.size());
    DDPRUN_ASSERT(reducer_.has_order() && reducer_.arrival().size() == parameters_);
  }

  void cancel() {
    const Reducer::Released rest = reducer_.cancel();
    DDPRUN_ASSERT(rest.first == next_ && rest.last == buckets_.size());
    DDPRUN_ASSERT(reducer_.has_order());
    collecting_ = first_ = false;
  }

  void regroup() {
    buckets_ = buckets_in(in_, parameters_);
    reducer_.regroup(buckets_);
  }

  bool complete(std::size_t p) const { return marks_[p] >= pass_needs_[p]; }
  bool all_complete() const {
    for (std::size_t p = 0; p < parameters_; ++p) {
      if (!complete(p)) return false;
    }
    return true;
  }

  // Exactly the buckets that may go: no more, no fewer.
  void take(Reducer::Released released) {
    DDPRUN_ASSERT(released.first == next_ || released.first == released.last);
    std::size_t expected = next_;
    const bool held =
        collecting_ && (counting() || (first_ && rules_.hold_first && !all_complete()));
    while (!held && expected < buckets_.size() && whole(expected)) ++expected;
    if (released.first != released.last) next_ = released.last;
    DDPRUN_ASSERT(next_ == expected);
  }
  bool whole(std::size_t bucket) const {
    return std::all_of(buckets_[bucket].begin(), buckets_[bucket].end(),
                       [&](std::size_t p) { return complete(p); });
  }

  Bytes& in_;
  const ReducerRules rules_;
  const std::size_t parameters_;
  Reducer::Buckets buckets_;
  Reducer reducer_;
  std::vector<std::size_t> needed_, pass_needs_, marks_;
  std::size_t next_ = 0;
  bool collecting_ = false;
  bool first_ = true;
  bool counted_ = false;  // A pass has come to its end: a static graph is known.
};

}  // namespace

void fuzz_reducer(const std::uint8_t* data, std::size_t size) {
  Bytes in(data, size);
  Play(in).run();
}

}  // namespace ddprun::fuzz

#ifdef DDPRUN_LIBFUZZER
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  ddprun::fuzz::fuzz_reducer(data, size);
  return 0;
}
#endif
