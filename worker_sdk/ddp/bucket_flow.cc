#include "worker_sdk/ddp/bucket_flow.h"

#include <utility>

#include "common/assert.h"
#include "worker_sdk/group/group_inside.h"

namespace ddprun::worker_sdk {

void BucketFlow::use(ProcessGroup& group, const BucketSet& buckets) {
  works_.clear();
  hook_->forget();
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
  works_[b] = hook_->start(*group_, buckets_->bucket(b));
}

// The collective that bucket `b` is in, if it is in any.
void BucketFlow::await(std::size_t b) {
  if (!works_[b]) return;
  works_[b]->wait();
  BucketTimes& times = times_[b];
  if (auto pending = GroupInside::pending(*works_[b])) marks_[b].works.push_back(pending);
  // In a GPU's stream it may still be under way: then nothing is known of it here.
  const bool known = works_[b]->done();
  if (times.comm.count() == 0) times.started = known ? works_[b]->started() : times.launched;
  if (known) times.comm += works_[b]->duration();
  works_[b].reset();
}

void BucketFlow::end(std::size_t b) {
  DDPRUN_ASSERT(b == ended_);
  hook_->end(*group_, buckets_->bucket(b));
  ++ended_;
  if (reduced_) reduced_(buckets_->bucket(b));
}

// Only where ending a bucket starts no collective: when that is done must not depend on the clock.
void BucketFlow::poll() {
  if (!reduced_ || hook_->phases() > 1) return;
  while (ended_ < started_ && (!works_[ended_] || works_[ended_]->done())) {
    await(ended_);
    end(ended_);
  }
}

void BucketFlow::complete_all() {
  for (int phase = 2; phase <= hook_->phases(); ++phase) {
    for (std::size_t b = ended_; b < started_; ++b) {
      await(b);
      works_[b] = hook_->proceed(*group_, buckets_->bucket(b), phase);
    }
  }
  while (ended_ < started_) {
    await(ended_);
    end(ended_);
  }
}

std::exception_ptr BucketFlow::complete() {
  std::exception_ptr error;
  try {
    complete_all();
  } catch (...) {
    error = std::current_exception();
  }
  for (auto& work : works_) work.reset();  // Waits for those that an error left.
  return error;
}

std::vector<BucketMarks> BucketFlow::take_marks() { return std::exchange(marks_, {}); }
std::vector<BucketTimes> BucketFlow::take_times() { return std::exchange(times_, {}); }

}  // namespace ddprun::worker_sdk
