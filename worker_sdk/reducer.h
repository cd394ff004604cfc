#pragma once
// When a bucket may be reduced, and what the caller did wrong. Pure: no communication, no clock, no
// lock; distributed_data_parallel.cc carries its answers out.
//
//            begin()                 mark_ready(i), for each i once              finish()
//   idle ──────────────► collecting ──────────────────────────────► collecting ──────────► idle
//
// Buckets are released strictly in order: bucket k waits for bucket k - 1 even if its own gradients
// came first. Only so do all ranks issue the same collectives in the same order.

#include <cstddef>
#include <string>
#include <vector>

#include "common/error.h"

namespace ddprun::worker_sdk {

class Reducer {
 public:
  // `buckets` holds parameter numbers, each of 0 .. names.size() - 1 once; names are for messages.
  Reducer(const std::vector<std::vector<std::size_t>>& buckets, std::vector<std::string> names);

  // Buckets [first, last) may be reduced now.
  struct Released {
    std::size_t first = 0;
    std::size_t last = 0;
  };

  // Each fails with errc::invalid_argument, and then changes nothing, where the caller broke the
  // order of calls; the context says how and names the parameters.
  Result<void> begin();
  Result<Released> mark_ready(std::size_t parameter);
  // Back to idle in any case; fails if a parameter was never marked.
  Result<void> finish();

  bool collecting() const noexcept { return collecting_; }
  const std::string& name(std::size_t parameter) const { return names_[parameter]; }

 private:
  std::vector<std::size_t> missing() const;
  std::string list(const std::vector<std::size_t>& parameters) const;

  std::vector<std::string> names_;
  std::vector<std::size_t> bucket_of_;
  std::vector<std::size_t> sizes_;
  std::vector<std::size_t> pending_;  // Gradients each bucket still waits for.
  std::vector<bool> ready_;           // Parameters marked in this pass.
  std::size_t released_ = 0;
  bool collecting_ = false;
};

}  // namespace ddprun::worker_sdk
