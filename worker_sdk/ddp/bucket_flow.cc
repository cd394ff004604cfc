#include "worker_sdk/ddp/bucket_flow.h"

#include <utility>

#include "common/assert.h"
#include "worker_sdk/group/group_inside.h"

namespace ddprun::worker_sdk {

void BucketFlow::use(ProcessGroup& group, BucketSet& buckets) {
  works_.clear();
  group_ = &group;
  buckets_ = &buckets;
  works_.resize(buckets.size());
  begin();
}

void BucketFlow::begin() {
  started_ = ended_ = 0;
  times_.assign(buckets_->size(), {});
  marks_.assign(buckets_->size(), {});
}

void BucketFlow::start(std::size_t b) {
  DDPRUN_ASSERT(b == started_ && b < works_.size());
  ++started_;
  times_[b].launched = StepClock::now();
  times_[b].bytes = buckets_->bucket(b).flat.bytes();
  const auto stream = GroupInside::stream(*group_);
  DeviceSide* device = GroupInside::device(*group_);
  if (device && stream) marks_[b].ready = device->mark(*stream);
  next(b, 0);
}

// The collective that bucket `b` is in.
void BucketFlow::await(std::size_t b) {
  DDPRUN_ASSERT(works_[b]);
  works_[b]->wait();
  BucketTimes& times = times_[b];
  if (auto pending = GroupInside::pending(*works_[b])) marks_[b].works.push_back(pending);
  // In a GPU's stream the collective may still be in progress: then its times are not known here.
  const bool known = works_[b]->done();
  if (times.comm.count() == 0) times.started = known ? works_[b]->started() : times.launched;
  if (known) times.comm += works_[b]->duration();
  works_[b].reset();
}

void BucketFlow::next(std::size_t b, int step) {
  DDPRUN_ASSERT(!works_[b] && b >= ended_ && b < started_);
  works_[b] = hook_->next(*group_, buckets_->bucket(b), step);
  if (works_[b] && step >= hook_->traits().collectives) {
    throw Error(ErrorKind::bad_argument, {.operation = "CommHook"},
                "the hook " + hook_->traits().name + " starts more than the " +
                    std::to_string(hook_->traits().collectives) + " collectives of its traits");
  }
}

// Hands buckets on in their order, whichever is done first.
void BucketFlow::hand_on() {
  while (ended_ < started_ && !works_[ended_]) {
    const std::size_t b = ended_++;
    if (reduced_) reduced_(buckets_->bucket(b));
  }
}

// Only if the next step starts no collective: the order of collectives must not depend on the
// clock.
void BucketFlow::poll() {
  if (!reduced_ || hook_->traits().collectives > 1) return;
  for (hand_on(); ended_ < started_ && works_[ended_]->done(); hand_on()) {
    await(ended_);
    next(ended_, 1);
  }
}

void BucketFlow::complete_all() {
  hand_on();
  for (int step = 1; ended_ < started_; ++step) {
    for (std::size_t b = ended_; b < started_; ++b) {
      if (!works_[b]) continue;
      await(b);
      next(b, step);
      hand_on();
    }
  }
}

std::exception_ptr BucketFlow::complete() {
  std::exception_ptr error;
  try {
    complete_all();
  } catch (...) {
    error = std::current_exception();
  }
  for (auto& work : works_) work.reset();  // Waits for works that an error has left.
  return error;
}

std::vector<BucketMarks> BucketFlow::take_marks() { return std::exchange(marks_, {}); }
std::vector<BucketTimes> BucketFlow::take_times() { return std::exchange(times_, {}); }

}  // namespace ddprun::worker_sdk
