#include "worker_sdk/reducer.h"

#include <algorithm>
#include <utility>

#include "common/assert.h"

namespace ddprun::worker_sdk {
namespace {

constexpr std::size_t kNamesInMessage = 10;

Failure misuse(std::string text) {
  return {boost::system::errc::make_error_code(boost::system::errc::invalid_argument),
          std::move(text)};
}

}  // namespace

Reducer::Reducer(const std::vector<std::vector<std::size_t>>& buckets,
                 std::vector<std::string> names)
    : names_(std::move(names)), bucket_of_(names_.size()), ready_(names_.size(), false) {
  std::size_t parameters = 0;
  for (std::size_t b = 0; b < buckets.size(); ++b) {
    sizes_.push_back(buckets[b].size());
    parameters += buckets[b].size();
    for (const std::size_t p : buckets[b]) bucket_of_.at(p) = b;
  }
  DDPRUN_ASSERT(parameters == names_.size());
  pending_ = sizes_;
}

Result<void> Reducer::begin() {
  if (collecting_) {
    return misuse(
        "begin_backward() was called twice without finish_backward() between; not yet ready: " +
        list(missing()));
  }
  collecting_ = true;
  released_ = 0;
  pending_ = sizes_;
  std::fill(ready_.begin(), ready_.end(), false);
  return {};
}

Result<Reducer::Released> Reducer::mark_ready(std::size_t parameter) {
  if (parameter >= names_.size()) {
    return misuse("there is no parameter " + std::to_string(parameter) + ", only " +
                  std::to_string(names_.size()));
  }
  if (!collecting_) {
    return misuse("parameter " + names_[parameter] +
                  " was marked ready outside begin_backward() and finish_backward()");
  }
  if (ready_[parameter]) {
    return misuse(
        "parameter " + names_[parameter] +
        " was marked ready twice in one backward pass: is it used by two backward passes, or "
        "is a layer run again by checkpointing? Wrap all but the last pass in no_sync()");
  }
  ready_[parameter] = true;
  --pending_[bucket_of_[parameter]];
  const std::size_t first = released_;
  while (released_ < pending_.size() && pending_[released_] == 0) ++released_;
  return Released{first, released_};
}

Result<void> Reducer::finish() {
  if (!collecting_) return misuse("finish_backward() was called without begin_backward()");
  collecting_ = false;
  const auto absent = missing();
  if (absent.empty()) return {};
  return misuse(std::to_string(absent.size()) + " of " + std::to_string(names_.size()) +
                " parameters got no gradient in this backward pass: " + list(absent) +
                ". Every parameter must take part in the loss on every rank");
}

std::vector<std::size_t> Reducer::missing() const {
  std::vector<std::size_t> result;
  for (std::size_t p = 0; p < ready_.size(); ++p) {
    if (!ready_[p]) result.push_back(p);
  }
  return result;
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
