#include "worker_sdk/ddp/reducer.h"

#include <algorithm>
#include <utility>

#include "common/assert.h"

namespace ddprun::worker_sdk {
namespace {

constexpr std::size_t kNamesInMessage = 10;

Failure misuse(std::string text) {
  return {std::make_error_code(std::errc::invalid_argument),
          std::move(text)};
}

}  // namespace

Reducer::Reducer(const Buckets& buckets, std::vector<std::string> names, const ReducerRules& rules)
    : rules_(rules), names_(std::move(names)) {
  reset(buckets);
}

void Reducer::reset(const Buckets& buckets) {
  collecting_ = false;
  first_ = true;
  counted_ = false;
  expected_.assign(names_.size(), 1);
  marked_.assign(names_.size(), false);
  arrival_.clear();
  regroup(buckets);
}

void Reducer::regroup(const Buckets& buckets) {
  DDPRUN_ASSERT(!collecting_);
  bucket_of_.assign(names_.size(), buckets.size());
  sizes_.clear();
  std::size_t parameters = 0;
  for (std::size_t b = 0; b < buckets.size(); ++b) {
    sizes_.push_back(buckets[b].size());
    parameters += buckets[b].size();
    for (const std::size_t p : buckets[b]) {
      DDPRUN_ASSERT(bucket_of_.at(p) == buckets.size());
      bucket_of_[p] = b;
    }
  }
  DDPRUN_ASSERT(parameters == names_.size());
}

Result<Reducer::Released> Reducer::begin(std::span<const std::size_t> unused) {
  if (const auto allowed = check_begin(unused); allowed.has_error()) return allowed.error();
  DDPRUN_ASSERT(!collecting_);
  collecting_ = true;
  released_ = complete_ = 0;
  pending_ = sizes_;
  std::fill(marked_.begin(), marked_.end(), false);
  if (first_) arrival_.clear();
  left_ = counting() ? std::vector<std::size_t>(names_.size(), 0) : expected_;
  if (counting()) return Released{};
  for (std::size_t p = 0; p < left_.size(); ++p) {
    if (left_[p] == 0) complete(p);  // Unused in the first pass of a static graph.
  }
  for (const std::size_t p : unused) {
    if (std::exchange(left_[p], 0) > 0) complete(p);
  }
  return release();
}

Result<void> Reducer::check_begin(std::span<const std::size_t> unused) const {
  if (collecting_) {
    const auto absent = waited_for();
    return misuse("begin_backward() was called twice without finish_backward() between; " +
                  (absent.empty() ? std::string("all gradients are ready")
                                  : "not yet ready: " + list(absent)));
  }
  if (!unused.empty() && !rules_.find_unused) {
    return misuse("unused parameters were named, but DdpOptions::find_unused is off");
  }
  for (const std::size_t p : unused) {
    if (p >= names_.size()) return misuse("there is no parameter " + std::to_string(p));
  }
  return {};
}

Result<Reducer::Released> Reducer::mark_ready(std::size_t parameter) {
  if (const auto allowed = check_mark(parameter); allowed.has_error()) return allowed.error();
  DDPRUN_ASSERT(collecting_ && (counting() || left_[parameter] > 0));
  if (first_ && !marked_[parameter]) arrival_.push_back(parameter);
  marked_[parameter] = true;
  if (counting()) {
    ++left_[parameter];
    return Released{};
  }
  if (--left_[parameter] > 0) return Released{released_, released_};
  complete(parameter);
  return release();
}

Result<void> Reducer::check_mark(std::size_t parameter) const {
  if (parameter >= names_.size()) {
    return misuse("there is no parameter " + std::to_string(parameter) + ", only " +
                  std::to_string(names_.size()));
  }
  const std::string& name = names_[parameter];
  if (!collecting_) {
    return misuse("parameter " + name +
                  " was marked ready outside begin_backward() and finish_backward()");
  }
  if (counting() || left_[parameter] > 0) return {};
  if (rules_.static_graph) {
    return misuse("parameter " + name + " was marked ready more often than in the first pass (" +
                  std::to_string(expected_[parameter]) + " times): the graph is not static");
  }
  if (!marked_[parameter]) {
    return misuse("parameter " + name + " was named as unused, and then marked ready");
  }
  return misuse(
      "parameter " + name +
      " was marked ready twice in one backward pass: is it used by two backward passes, "
      "or is a layer run again by checkpointing? Wrap all but the last pass in no_sync(), "
      "or set static_graph");
}

void Reducer::complete(std::size_t parameter) {
  DDPRUN_ASSERT(!counting() && left_[parameter] == 0);
  DDPRUN_ASSERT(complete_ < names_.size() && pending_[bucket_of_[parameter]] > 0);
  ++complete_;
  --pending_[bucket_of_[parameter]];
}

Reducer::Released Reducer::release() {
  DDPRUN_ASSERT(!counting() && released_ <= pending_.size());
  const std::size_t first = released_;
  if (first_ && rules_.hold_first && complete_ < names_.size()) return {first, first};
  while (released_ < pending_.size() && pending_[released_] == 0) ++released_;
  return {first, released_};
}

Result<Reducer::Released> Reducer::finish() {
  if (!collecting_) return misuse("finish_backward() was called without begin_backward()");
  collecting_ = false;
  if (counting()) {
    DDPRUN_ASSERT(released_ == 0);
    expected_ = left_;
    counted_ = true;
    first_ = false;
    return Released{0, sizes_.size()};
  }
  if (complete_ < names_.size() && !rules_.find_unused) {
    first_ = false;  // As on the other ranks: all rebuild with the next pass.
    return incomplete();
  }
  for (const std::size_t p : waited_for()) {
    left_[p] = 0;
    complete(p);
  }
  const Released rest = release();
  DDPRUN_ASSERT(complete_ == names_.size() && rest.last == sizes_.size());
  first_ = false;
  return rest;
}

Reducer::Released Reducer::cancel() {
  DDPRUN_ASSERT(collecting_ && released_ <= sizes_.size());
  collecting_ = false;
  first_ = false;
  return {released_, sizes_.size()};
}

Failure Reducer::incomplete() const {
  const auto absent = waited_for();
  const std::string some =
      std::to_string(absent.size()) + " of " + std::to_string(names_.size()) + " parameters ";
  if (rules_.static_graph) {
    return misuse(some + "got fewer gradients than in the first backward pass: " + list(absent) +
                  ". The graph is not static");
  }
  return misuse(some + "got no gradient in this backward pass: " + list(absent) +
                ". Every parameter must take part in the loss on every rank, unless find_unused "
                "is set");
}

std::vector<std::size_t> Reducer::arrival() const {
  DDPRUN_ASSERT(arrival_.size() <= names_.size());
  std::vector<std::size_t> order = arrival_;
  std::vector<bool> seen(names_.size(), false);
  for (const std::size_t p : order) seen[p] = true;
  for (std::size_t p = names_.size(); p-- > 0;) {
    if (!seen[p]) order.push_back(p);
  }
  return order;
}

std::vector<std::size_t> Reducer::waited_for() const {
  std::vector<std::size_t> result;
  for (std::size_t p = 0; p < left_.size(); ++p) {
    if (counting() ? !marked_[p] : left_[p] > 0) result.push_back(p);
  }
  return result;
}

void Reducer::check_invariants() const {
  DDPRUN_ASSERT(bucket_of_.size() == names_.size() && expected_.size() == names_.size());
  std::vector<std::size_t> sizes(sizes_.size(), 0);
  for (const std::size_t bucket : bucket_of_) ++sizes.at(bucket);
  DDPRUN_ASSERT(sizes == sizes_);
  if (counted_) DDPRUN_ASSERT(rules_.static_graph && !first_);
  if (!counted_) {
    for (const std::size_t marks : expected_) DDPRUN_ASSERT(marks == 1);
  }
  std::vector<bool> arrived(names_.size(), false);
  for (const std::size_t p : arrival_) {
    DDPRUN_ASSERT(!arrived.at(p));  // Each once.
    arrived[p] = true;
  }
  if (first_) DDPRUN_ASSERT(arrived == marked_);
  if (collecting_) check_pass();
}

// Buckets wait for the marks that are left; released buckets wait for none.
void Reducer::check_pass() const {
  DDPRUN_ASSERT(left_.size() == names_.size() && released_ <= sizes_.size());
  if (counting()) {
    DDPRUN_ASSERT(complete_ == 0 && released_ == 0 && pending_ == sizes_);
    return;
  }
  std::vector<std::size_t> pending(sizes_.size(), 0);
  std::size_t complete = 0;
  for (std::size_t p = 0; p < left_.size(); ++p) {
    DDPRUN_ASSERT(left_[p] <= expected_[p]);
    if (left_[p] < expected_[p] && left_[p] > 0) DDPRUN_ASSERT(marked_[p]);
    left_[p] == 0 ? ++complete : ++pending[bucket_of_[p]];
  }
  DDPRUN_ASSERT(complete == complete_ && pending == pending_);
  std::size_t whole = 0;
  while (whole < pending.size() && pending[whole] == 0) ++whole;
  const bool held = first_ && rules_.hold_first && complete < names_.size();
  DDPRUN_ASSERT(released_ == (held ? 0 : whole));
}

std::string Reducer::list(const std::vector<std::size_t>& parameters) const {
  std::string text;
  for (std::size_t k = 0; k < std::min(parameters.size(), kNamesInMessage); ++k) {
    text += (k == 0 ? "" : ", ") + names_[parameters[k]];
  }
  if (parameters.size() > kNamesInMessage) {
    text += " and " + std::to_string(parameters.size() - kNamesInMessage) + " more";
  }
  return text;
}

}  // namespace ddprun::worker_sdk
