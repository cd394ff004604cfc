#pragma once
// The phases of a step and its buckets by a GPU's clock, without ever waiting for it: marks are put
// into the program's stream, and read some steps later. A step whose marks have not passed by then
// is counted as dropped; nothing is held up. Used by timer_shell.cc on the backend nccl and for
// programs that another library synchronises on GPUs; of their buckets there are no marks.
//
//   outside  begin_forward  forward  begin_backward  backward  begin_wait  exposed  end_step
//      ──────────►─────────────────────►──────────────────────────►──────────────────►  in the
//      stream
//                                         ready ► begin ══ comm ══ end      of each bucket
//
// `exposed` is how long the stream stood still: its last mark passes only behind all buckets.

#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "worker_sdk/timer/sync_window.h"
#include "worker_sdk/transport/backend.h"

namespace ddprun::worker_sdk {

// The marks of a bucket in a GPU's streams: BucketFlow collects them, DevicePhases reads them.
struct BucketMarks {
  std::shared_ptr<const DeviceMark> ready;      // When its last gradient was there.
  std::vector<std::shared_ptr<Pending>> works;  // Its collectives.
};

class DevicePhases {
 public:
  // When a step is read. If the host is further ahead of its GPU, the step has no times.
  enum class When {
    kLater,  // When kLag later ones have ended: on all ranks after the same step.
    kDone,   // When the device has done it, or kMost later ones have ended.
  };
  static constexpr std::size_t kLag = 8, kMost = 128;

  DevicePhases(StreamMarks& device, When when) : device_(device), when_(when) {}

  // The stream changes into `phase`. Without a stream the host waits, so its own times are right.
  void enter(std::chrono::nanoseconds StepTimes::*phase, std::optional<Stream> stream);
  // `host`: the step by the host's clock; not known if the stream is captured.
  void end_step(std::optional<Stream> stream, StepTimes host, std::vector<BucketMarks> buckets);
  std::optional<StepTimes> next();  // The oldest step, if it is to be read.
  bool is_full() const { return steps_.size() > kMost; }
  void end() { ended_ = true; }  // All steps may be read from now on, done or not.

 private:
  struct Border {
    std::shared_ptr<const DeviceMark> mark;
    std::chrono::nanoseconds StepTimes::*phase = nullptr;  // After it.
  };
  struct Step {
    StepTimes host;
    bool by_device = false;
    bool captured = false;  // Part of a graph.
    std::vector<Border> borders;
    std::vector<BucketMarks> buckets;
  };
  static StepTimes read(const Step& step);
  bool is_due(const Step& oldest) const;
  void leave_out(StepTimes host);

  StreamMarks& device_;
  const When when_;
  bool ended_ = false;
  std::vector<Border> borders_;  // Of the current step; the first is the end of the last step.
  bool gap_ = false;             // Some of them are missing.
  std::deque<Step> steps_;
};

}  // namespace ddprun::worker_sdk
