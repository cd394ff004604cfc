#pragma once
// The computations of power_sgd.cc between its collectives: on the host, or on the arrays' GPU.

#include <cstdint>
#include <memory>
#include <vector>

#include "ddprun/comm_hook.h"
#include "worker_sdk/training/power_sgd_math.h"

namespace ddprun::worker_sdk {

struct PowerSgdMatrix {
  Buffer gradient;
  LowRankShape shape;
  std::size_t p = 0;      // Start of its p in PowerSgdFactors::sent, in elements.
  std::size_t q = 0;      // Start of its q in PowerSgdFactors::q.
  std::size_t error = 0;  // Start of its error in PowerSgdFactors::error.
};

// The state that is kept for one bucket.
struct PowerSgdFactors {
  DataType type = DataType::f32;
  std::vector<PowerSgdMatrix> matrices = {};
  std::vector<Buffer> plain = {};  // Sent in full: after the ps.
  std::size_t p_count = 0, sent_count = 0, q_count = 0, error_count = 0;
  std::shared_ptr<void> sent = {}, q = {};
  std::shared_ptr<void> error = {};   // Null without error feedback.
  std::shared_ptr<void> tables = {};  // The device's: of matrices, then of plain pieces.
  bool warm = false;                  // q holds the last step's factors.
};

class PowerSgdSteps {
 public:
  virtual ~PowerSgdSteps() = default;
  virtual void plan(PowerSgdFactors& f) = 0;  // Takes the memory that is missing.
  // Adds the error of the last step, stores the sum, and fills f.sent. A cold q is drawn from
  // `seed`.
  virtual void send_p(PowerSgdFactors& f, std::uint64_t seed) = 0;
  virtual void send_q(PowerSgdFactors& f) = 0;  // f.sent holds the averages; fills f.q.
  virtual void take(PowerSgdFactors& f) = 0;    // f.q holds them, too; writes the gradients.
};

std::unique_ptr<PowerSgdSteps> power_sgd_on_host(const hooks::PowerSgdOptions& options);
// Throws Error(unsupported) if the GPU cannot.
std::unique_ptr<PowerSgdSteps> power_sgd_on_device(ProcessGroup& group,
                                                   const hooks::PowerSgdOptions& options);

}  // namespace ddprun::worker_sdk
