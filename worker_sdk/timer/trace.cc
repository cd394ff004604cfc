#include "worker_sdk/timer/trace.h"

#include <cstdio>

namespace ddprun::worker_sdk {
namespace {

constexpr int kTrainingLane = 0;
constexpr int kBucketLane = 1;
constexpr int kWaitingLane = 2;  // Buckets that are full and wait for those before them.

class Writer {
 public:
  explicit Writer(const TraceRank& identity) : identity_(identity) {
    name("process_name", 0, "rank " + std::to_string(identity.rank) + " (" + identity.host + ")");
    name("thread_name", kTrainingLane, "training");
    name("thread_name", kBucketLane, "gradient buckets");
    name("thread_name", kWaitingLane, "buckets in the queue");
  }

  void span(int lane, const std::string& label, StepClock::time_point start,
            std::chrono::nanoseconds duration, const std::string& arguments = "{}") {
    char times[96];
    const std::chrono::nanoseconds at = start.time_since_epoch() + identity_.wall_clock;
    std::snprintf(times, sizeof times, "\"ts\": %.3f, \"dur\": %.3f",
                  static_cast<double>(at.count()) / 1e3,
                  static_cast<double>(duration.count()) / 1e3);
    add("{\"ph\": \"X\", \"name\": \"" + label + "\", " + times + ids(lane) +
        ", \"args\": " + arguments + "}");
  }

  std::string text() const { return "{\"traceEvents\": [\n" + events_ + "\n]}\n"; }

 private:
  std::string ids(int lane) const {
    return ", \"pid\": " + std::to_string(identity_.rank) + ", \"tid\": " + std::to_string(lane);
  }
  void name(const char* what, int lane, const std::string& value) {
    std::string quoted;
    for (const char c : value) {
      if (c == '"' || c == '\\') quoted += '\\';
      quoted += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
    add(std::string("{\"ph\": \"M\", \"name\": \"") + what + "\"" + ids(lane) +
        ", \"args\": {\"name\": \"" + quoted + "\"}}");
  }
  void add(const std::string& event) { events_ += (events_.empty() ? "" : ",\n") + event; }

  const TraceRank& identity_;
  std::string events_;
};

void write_step(Writer& out, const StepTimes& step) {
  const std::string number = "{\"step\": " + std::to_string(step.step) + "}";
  auto at = step.begin;
  const std::pair<const char*, std::chrono::nanoseconds> phases[] = {
      {"outside", step.outside},
      {"optimizer", step.optimizer},
      {"data", step.data},
      {"forward", step.forward},
      {"backward", step.backward + step.contended},  // When it was, not what it cost.
      {"waiting for gradients", step.exposed - step.contended}};
  for (const auto& [label, duration] : phases) {
    if (duration.count() > 0) out.span(kTrainingLane, label, at, duration, number);
    at += duration;
  }
  for (std::size_t b = 0; b < step.buckets.size(); ++b) {
    const BucketTimes& bucket = step.buckets[b];
    if (bucket.comm.count() == 0) continue;
    const std::string label = "bucket " + std::to_string(b);
    out.span(kBucketLane, label, bucket.started, bucket.comm,
             "{\"step\": " + std::to_string(step.step) +
                 ", \"bytes\": " + std::to_string(bucket.bytes) + "}");
    if (bucket.started > bucket.launched) {
      out.span(kWaitingLane, label, bucket.launched, bucket.started - bucket.launched, number);
    }
  }
}

}  // namespace

std::string chrome_trace(const TraceRank& identity, const std::deque<StepTimes>& steps) {
  Writer out(identity);
  for (const StepTimes& step : steps) write_step(out, step);
  return out.text();
}

}  // namespace ddprun::worker_sdk
