#include "worker_sdk/nccl/nccl_siblings.h"

#include <utility>

#include "worker_sdk/nccl/nccl_watch.h"

namespace ddprun::worker_sdk {

bool NcclSiblings::add(NcclWatch& watch) {
  const std::lock_guard lock(mutex_);
  watches_.push_back(&watch);
  return first_.has_value();
}

void NcclSiblings::remove(NcclWatch& watch) {
  const std::lock_guard lock(mutex_);
  std::erase(watches_, &watch);
}

void NcclSiblings::fail(const NcclWatch& watch, First first) {
  const std::lock_guard lock(mutex_);
  if (first_) return;
  first_ = std::move(first);
  for (NcclWatch* other : watches_) {
    if (other != &watch) other->doom();
  }
}

std::optional<AgentsWord> NcclSiblings::agents_word() const {
  auto word = progress_->agents_word();
  if (word && gone_.contains(word->rank)) return std::nullopt;
  return word;
}

std::optional<NcclSiblings::First> NcclSiblings::first() const {
  const std::lock_guard lock(mutex_);
  return first_;
}

}  // namespace ddprun::worker_sdk
