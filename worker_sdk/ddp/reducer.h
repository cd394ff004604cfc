#pragma once
// When a bucket may be reduced, and what the caller did wrong. Pure: no communication, no clock, no
// lock; distributed_data_parallel.cc carries its decisions out.
//
//            begin()                 mark_ready(i), for each i once              finish()
//   idle ──────────────► collecting ──────────────────────────────► collecting ──────────► idle
//
// Buckets are released strictly in order: bucket k waits for bucket k - 1 even if its own gradients
// arrived first. Otherwise ranks would not issue the same collectives in the same order.

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "common/error.h"

namespace ddprun::worker_sdk {

struct ReducerRules {
  // The first pass releases nothing before its last gradient: the buckets are rebuilt from its
  // order, which need not be the order of the buckets yet.
  bool hold_first = false;
  // A parameter that was not marked when the pass ends is unused in it; that is not an error.
  bool find_unused = false;
  // The first pass counts how often each parameter is marked, and releases at its end; later passes
  // are complete when each was marked as often. For layers that are run again by checkpointing.
  bool static_graph = false;
};

class Reducer {
 public:
  using Buckets = std::vector<std::vector<std::size_t>>;

  // `buckets` holds parameter numbers, each of 0 .. names.size() - 1 once; names are for messages.
  Reducer(const Buckets& buckets, std::vector<std::string> names, const ReducerRules& rules = {});

  // Buckets [first, last) may be reduced now.
  struct Released {
    std::size_t first = 0;
    std::size_t last = 0;
  };

  // Each fails with errc::invalid_argument, and then changes nothing, if the caller broke the order
  // of calls; the context explains that and names the parameters. Parameters in `unused` get no
  // gradient in this pass; only with find_unused.
  Result<void> check_begin(std::span<const std::size_t> unused) const;  // Would begin() fail?
  Result<Released> begin(std::span<const std::size_t> unused = {});
  Result<Released> mark_ready(std::size_t parameter);
  // Returns to idle in any case. Fails if a parameter was never marked: then left_over() are the
  // buckets that the other ranks wait for, and that cannot become complete any more.
  Result<Released> finish();
  Released left_over() const { return {released_, sizes_.size()}; }
  // Ends the current pass, releasing all buckets that are left. A static graph learns nothing from
  // it, and the order of arrival is what has arrived: all ranks must rebuild, with rank 0's.
  Released cancel();

  // Sets the buckets for the next pass; call it between passes only.
  void regroup(const Buckets& buckets);
  // Forgets the current pass, and what was learned from the first one.
  void reset(const Buckets& buckets);

  // True once a pass has ended.
  bool has_order() const noexcept { return !first_; }
  // Parameters in the order in which the first pass marked them; unused ones last.
  std::vector<std::size_t> arrival() const;
  // Was it marked in the current pass, or in the last one?
  bool marked(std::size_t parameter) const { return marked_[parameter]; }
  // The number of marks that complete it; 1 as long as a static graph is not known.
  std::size_t expected(std::size_t parameter) const { return expected_[parameter]; }

  // Aborts unless every invariant holds. Tests call it after each call.
  void check_invariants() const;

 private:
  bool counting() const noexcept { return rules_.static_graph && !counted_; }
  Result<void> check_mark(std::size_t parameter) const;
  void check_pass() const;
  void complete(std::size_t parameter);
  Released release();
  Failure incomplete() const;
  std::vector<std::size_t> waited_for() const;
  std::string list(const std::vector<std::size_t>& parameters) const;

  const ReducerRules rules_;
  std::vector<std::string> names_;
  std::vector<std::size_t> bucket_of_;
  std::vector<std::size_t> sizes_;
  std::vector<std::size_t> pending_;   // Gradients each bucket still waits for.
  std::vector<std::size_t> expected_;  // Marks that complete each parameter.
  std::vector<std::size_t> left_;      // Marks left in this pass. Counting: marks so far.
  std::vector<bool> marked_;
  std::vector<std::size_t> arrival_;
  std::size_t complete_ = 0;  // Parameters with all their marks.
  std::size_t released_ = 0;
  bool collecting_ = false;
  bool first_ = true;
  bool counted_ = false;  // It is known how often a static graph marks each.
};

}  // namespace ddprun::worker_sdk
