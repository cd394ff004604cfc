#include "worker_sdk/timer/device_phases.h"

#include <algorithm>
#include <utility>

namespace ddprun::worker_sdk {

void DevicePhases::enter(std::chrono::nanoseconds StepTimes::*phase, std::optional<Stream> stream) {
  auto mark = stream ? device_.mark(*stream) : nullptr;
  if (!mark) {
    gap_ = true;
    return;
  }
  borders_.push_back({std::move(mark), phase});
}

void DevicePhases::end_step(std::optional<Stream> stream, StepTimes host,
                            std::vector<BucketMarks> buckets) {
  std::shared_ptr<const DeviceMark> end;
  if (stream) end = device_.mark(*stream);
  if (stream && !end) return leave_out(std::move(host));
  Step step{.host = std::move(host), .borders = {}, .buckets = std::move(buckets)};
  step.by_device = !gap_ && end && !borders_.empty();
  // If a stream was used for a part of the step only, neither clock has its times.
  step.host.known = step.by_device || (borders_.empty() && !end);
  step.borders = std::exchange(borders_, {});
  if (end) {
    step.borders.push_back({end, nullptr});
    borders_.push_back({end, &StepTimes::outside});
  }
  gap_ = false;
  steps_.push_back(std::move(step));
}

bool DevicePhases::is_due(const Step& oldest) const {
  if (ended_) return true;
  if (when_ == When::kLater) return oldest.captured || steps_.size() > kLag;
  return is_full() || !oldest.by_device || oldest.borders.back().mark->passed();
}

std::optional<StepTimes> DevicePhases::next() {
  if (steps_.empty() || !is_due(steps_.front())) return std::nullopt;
  StepTimes done = read(steps_.front());
  steps_.pop_front();
  return done;
}

// A step captured for a graph was not carried out, so its events must not be queried.
void DevicePhases::leave_out(StepTimes host) {
  host.known = false;
  borders_.clear();
  gap_ = false;
  // There is nothing to wait for, so it may be read at once. But if the device decides when a step
  // is read, only the order of steps is common to all ranks, so it is kept.
  const auto place = when_ == When::kLater ? steps_.begin() : steps_.end();
  steps_.insert(place,
                Step{.host = std::move(host), .captured = true, .borders = {}, .buckets = {}});
}

StepTimes DevicePhases::read(const Step& step) {
  StepTimes times = step.host;
  if (!step.by_device) return times;
  const auto passed = [](const BucketMarks& bucket) {
    return std::all_of(bucket.works.begin(), bucket.works.end(),
                       [](const auto& work) { return work->end_mark().passed(); });
  };
  times.outside = times.forward = times.backward = times.exposed = std::chrono::nanoseconds(0);
  times.data = times.optimizer = std::chrono::nanoseconds(0);
  times.known = step.borders.back().mark->passed() &&
                std::all_of(step.buckets.begin(), step.buckets.end(), passed);
  for (BucketTimes& bucket : times.buckets) bucket.comm = std::chrono::nanoseconds(0);
  if (!times.known) return times;
  for (std::size_t i = 0; i + 1 < step.borders.size(); ++i) {
    times.*(step.borders[i].phase) += step.borders[i].mark->until(*step.borders[i + 1].mark);
  }
  // The host's clock is only used for the place of this step in a trace.
  const DeviceMark& begin = *step.borders.front().mark;
  for (std::size_t b = 0; b < step.buckets.size(); ++b) {
    BucketTimes& bucket = times.buckets[b];
    const BucketMarks& marks = step.buckets[b];
    if (marks.ready) bucket.launched = times.begin + begin.until(*marks.ready);
    bucket.started = bucket.launched;
    for (const auto& work : marks.works) bucket.comm += work->begin_mark().until(work->end_mark());
    if (!marks.works.empty()) {
      bucket.started = times.begin + begin.until(marks.works.front()->begin_mark());
    }
  }
  return times;
}

}  // namespace ddprun::worker_sdk
