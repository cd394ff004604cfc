#pragma once
// The phases of a step and its buckets by a GPU's clock, without ever waiting for it: marks are put
// into the program's stream, and read some steps later. Whose marks have not come to pass by then
// is counted as dropped; nothing is held up. Used by timer_shell.cc on the backend nccl and for
// programs that another library synchronises on GPUs; of their buckets there are no marks.
//
//   outside  begin_forward  forward  begin_backward  backward  begin_wait  exposed  end_step
//      ──────────►─────────────────────►──────────────────────────►──────────────────►  in the
//      stream
//                                         ready ► begin ══ comm ══ end      of each bucket
//
// `exposed` is what the stream stood still for: its last mark passes only behind all buckets.

#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "worker_sdk/timer/sync_window.h"
#include "worker_sdk/transport/backend.h"

namespace ddprun::worker_sdk {

// Where a bucket was in a GPU's streams: what BucketFlow collects and DevicePhases reads.
struct BucketMarks {
  std::shared_ptr<const DeviceMark> ready;      // Its last gradient was there.
  std::vector<std::shared_ptr<Pending>> works;  // Its collectives.
};

class DevicePhases {
 public:
  // When a step is read. A host that is further ahead of its GPU gets no times.
  enum class When {
    kLater,  // When kLag later ones have ended: on all ranks after the same step.
    kDone,   // When the device has done it, or kMost later ones have ended.
  };
  static constexpr std::size_t kLag = 8, kMost = 128;

  DevicePhases(StreamMarks& device, When when) : device_(device), when_(when) {}

  // The stream goes from one phase into `phase`. Nothing: the host waits, its own times are true.
  void enter(std::chrono::nanoseconds StepTimes::*phase, std::optional<Stream> stream);
  // `host`: the step by the host's clock. It is unknown if the stream is captured.
  void end_step(std::optional<Stream> stream, StepTimes host, std::vector<BucketMarks> buckets);
  std::optional<StepTimes> next();  // The oldest step, if it is to be read.
  bool is_full() const { return steps_.size() > kMost; }
  void end() { ended_ = true; }  // All steps are to be read, whether they are done or not.

 private:
  struct Border {
    std::shared_ptr<const DeviceMark> mark;
    std::chrono::nanoseconds StepTimes::*phase = nullptr;  // After it.
  };
  struct Step {
    StepTimes host;
    bool by_device = false;
    bool captured = false;  // For a graph.
    std::vector<Border> borders;
    std::vector<BucketMarks> buckets;
  };
  static StepTimes read(const Step& step);
  bool is_due(const Step& oldest) const;
  void leave_out(StepTimes host);

  StreamMarks& device_;
  const When when_;
  bool ended_ = false;
  std::vector<Border> borders_;  // Of the step that is under way; the first is the last one's end.
  bool gap_ = false;             // Some of them are missing.
  std::deque<Step> steps_;
};

}  // namespace ddprun::worker_sdk
