// PowerSGD's computations on a GPU: each is one kernel for all matrices of a bucket, behind what is
// in the program's stream.

#include <algorithm>
#include <string>

#include "ddprun/error.h"
#include "worker_sdk/gpu/gpu_kernels.h"
#include "worker_sdk/group/group_inside.h"
#include "worker_sdk/training/power_sgd_steps.h"

namespace ddprun::worker_sdk {
namespace {

using kernels::LowRank;
using kernels::Piece;

char* at(const std::shared_ptr<void>& memory, std::size_t bytes) {
  return static_cast<char*>(memory.get()) + bytes;
}

class DeviceSteps final : public PowerSgdSteps {
 public:
  DeviceSteps(ProcessGroup& group, const hooks::PowerSgdOptions& options)
      : group_(group), kernels_(GroupInside::device(group)->kernels()), options_(options) {}

  void plan(PowerSgdFactors& f) override {
    if (options_.use_error_feedback) f.error = group_.allocate(f.error_count * size_of(f.type));
    const std::vector<LowRank> matrices = matrices_of(f);
    const std::vector<Piece> pieces = pieces_of(f);
    const std::size_t bytes = matrices.size() * sizeof(LowRank);
    f.tables = group_.allocate(bytes + pieces.size() * sizeof(Piece));
    group_.copy(f.tables.get(), matrices.data(), bytes);
    group_.copy(at(f.tables, bytes), pieces.data(), pieces.size() * sizeof(Piece));
  }

  void send_p(PowerSgdFactors& f, std::uint64_t seed) override {
    if (!f.warm && f.q_count > 0) {
      const auto pairs = GpuKernels::grid_for((f.q_count + 1) / 2);
      launch(f, GpuKernel::draw_normal_f32, GpuKernel::draw_normal_f64, pairs, f.q.get(), f.q_count,
             seed);
    }
    orthogonalize(f, 1);
    const auto row = [](const PowerSgdMatrix& m) { return m.shape.rows * kernels::kThreads; };
    on_matrices(f, GpuKernel::multiply_f32, GpuKernel::multiply_f64, row);
    copy_plain(f, 0);
  }

  void send_q(PowerSgdFactors& f) override {
    copy_plain(f, 1);
    orthogonalize(f, 0);
    const auto columns = [](const PowerSgdMatrix& m) { return m.shape.columns * kernels::kSlices; };
    on_matrices(f, GpuKernel::multiply_transposed_f32, GpuKernel::multiply_transposed_f64, columns);
  }

  void take(PowerSgdFactors& f) override {
    const auto elements = [](const PowerSgdMatrix& m) { return m.gradient.count; };
    on_matrices(f, GpuKernel::expand_f32, GpuKernel::expand_f64, elements);
    GroupInside::settle(group_, "power_sgd");
  }

 private:
  std::vector<LowRank> matrices_of(const PowerSgdFactors& f) const {
    const std::size_t element = size_of(f.type);
    std::vector<LowRank> table;
    for (const PowerSgdMatrix& m : f.matrices) {
      table.push_back({.gradient = m.gradient.data,
                       .error = f.error ? at(f.error, m.error * element) : nullptr,
                       .p = at(f.sent, m.p * element),
                       .q = at(f.q, m.q * element),
                       .rows = m.shape.rows,
                       .columns = m.shape.columns,
                       .rank = static_cast<unsigned>(m.shape.rank)});
    }
    return table;
  }

  static std::vector<Piece> pieces_of(const PowerSgdFactors& f) {
    std::vector<Piece> table;
    std::size_t offset = f.p_count * size_of(f.type);
    for (const Buffer& b : f.plain) {
      table.push_back({b.data, at(f.sent, offset), b.count});
      offset += b.bytes();
    }
    return table;
  }

  template <class... Arguments>
  void launch(const PowerSgdFactors& f, GpuKernel f32, GpuKernel f64, GpuKernels::Grid grid,
              Arguments... arguments) const {
    kernels_.launch(f.type == DataType::f32 ? f32 : f64, grid,
                    GroupInside::stream(group_).value_or(nullptr), arguments...);
  }

  // `threads`: how many a matrix is worth.
  template <class Threads>
  void on_matrices(const PowerSgdFactors& f, GpuKernel f32, GpuKernel f64,
                   const Threads& threads) const {
    if (f.matrices.empty()) return;
    std::size_t most = 0;
    for (const PowerSgdMatrix& m : f.matrices) most = std::max(most, threads(m));
    launch(f, f32, f64, GpuKernels::grid_for(most, f.matrices.size()), f.tables.get(),
           static_cast<unsigned>(f.matrices.size()));
  }

  void orthogonalize(const PowerSgdFactors& f, int of_q) const {
    if (f.matrices.empty()) return;
    launch(f, GpuKernel::orthogonalize_f32, GpuKernel::orthogonalize_f64,
           GpuKernels::grid_for(1, f.matrices.size()), f.tables.get(),
           static_cast<unsigned>(f.matrices.size()), of_q, options_.orthogonalization_epsilon);
  }

  void copy_plain(const PowerSgdFactors& f, int back) const {
    if (f.plain.empty()) return;
    std::size_t most = 0;
    for (const Buffer& b : f.plain) most = std::max(most, b.count);
    void* const table = at(f.tables, f.matrices.size() * sizeof(LowRank));
    launch(f, GpuKernel::copy_pieces_f32, GpuKernel::copy_pieces_f64,
           GpuKernels::grid_for(most, f.plain.size()), table, static_cast<unsigned>(f.plain.size()),
           back);
  }

  ProcessGroup& group_;
  const GpuKernels& kernels_;
  const hooks::PowerSgdOptions options_;
};

}  // namespace

std::unique_ptr<PowerSgdSteps> power_sgd_on_device(ProcessGroup& group,
                                                   const hooks::PowerSgdOptions& options) {
  if (options.rank > static_cast<int>(kernels::kMaxRank)) {
    throw Error(ErrorKind::unsupported,
                {.rank = group.rank(),
                 .host = group.host_of(group.rank()),
                 .operation = "DistributedDataParallel"},
                "power_sgd of rank " + std::to_string(options.rank) + ": a GPU's kernels are for " +
                    std::to_string(kernels::kMaxRank) + " at most");
  }
  return std::make_unique<DeviceSteps>(group, options);
}

}  // namespace ddprun::worker_sdk
