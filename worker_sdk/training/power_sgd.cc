// PowerSGD's computations on the host.

#include "worker_sdk/training/power_sgd.h"

#include <algorithm>
#include <any>
#include <cstddef>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "ddprun/comm_hook.h"
#include "ddprun/error.h"
#include "worker_sdk/gpu/gpu_kernels.h"
#include "worker_sdk/group/group_inside.h"

namespace ddprun::worker_sdk {
namespace {

class HostSteps final : public PowerSgdSteps {
 public:
  explicit HostSteps(const hooks::PowerSgdOptions& options) : options_(options) {}

  void plan(PowerSgdFactors& f) override {
    if (!options_.use_error_feedback) return;
    auto zeros = std::make_shared<std::vector<std::byte>>(f.error_count * size_of(f.type));
    f.error = std::shared_ptr<void>(zeros, zeros->data());
  }
  void send_p(PowerSgdFactors& f, std::uint64_t seed) override {
    f.type == DataType::f32 ? send_p_of<float>(f, seed) : send_p_of<double>(f, seed);
  }
  void send_q(PowerSgdFactors& f) override {
    f.type == DataType::f32 ? send_q_of<float>(f) : send_q_of<double>(f);
  }
  void take(PowerSgdFactors& f) override {
    f.type == DataType::f32 ? take_of<float>(f) : take_of<double>(f);
  }

 private:
  template <class T>
  void send_p_of(PowerSgdFactors& f, std::uint64_t seed) {
    auto* q = static_cast<T*>(f.q.get());
    auto* sent = static_cast<T*>(f.sent.get());
    if (!f.warm && f.q_count > 0) draw_normal(seed, q, f.q_count);
    for (const PowerSgdMatrix& m : f.matrices) {
      auto* gradient = static_cast<T*>(m.gradient.data);
      T* error = f.error ? static_cast<T*>(f.error.get()) + m.error : nullptr;
      for (std::size_t i = 0; error && i < m.gradient.count; ++i) {
        error[i] = gradient[i] += error[i];
      }
      orthogonalize(q + m.q, m.shape.columns, m.shape.rank, options_.orthogonalization_epsilon);
      multiply(m.shape, gradient, q + m.q, sent + m.p);
    }
    sent += f.p_count;
    for (const Buffer& b : f.plain) {
      if (b.count > 0) std::memcpy(sent, b.data, b.bytes());
      sent += b.count;
    }
  }

  template <class T>
  void send_q_of(PowerSgdFactors& f) {
    auto* p = static_cast<T*>(f.sent.get());
    const T* plain = p + f.p_count;
    for (const Buffer& b : f.plain) {
      if (b.count > 0) std::memcpy(b.data, plain, b.bytes());
      plain += b.count;
    }
    for (const PowerSgdMatrix& m : f.matrices) {
      orthogonalize(p + m.p, m.shape.rows, m.shape.rank, options_.orthogonalization_epsilon);
      multiply_transposed(m.shape, static_cast<const T*>(m.gradient.data), p + m.p,
                          static_cast<T*>(f.q.get()) + m.q);
    }
  }

  template <class T>
  void take_of(PowerSgdFactors& f) {
    const auto* p = static_cast<const T*>(f.sent.get());
    for (const PowerSgdMatrix& m : f.matrices) {
      auto* gradient = static_cast<T*>(m.gradient.data);
      T* error = f.error ? static_cast<T*>(f.error.get()) + m.error : nullptr;
      expand(m.shape, p + m.p, static_cast<const T*>(f.q.get()) + m.q, gradient);
      for (std::size_t i = 0; error && i < m.gradient.count; ++i) error[i] -= gradient[i];
    }
  }

  const hooks::PowerSgdOptions options_;
};

}  // namespace

std::unique_ptr<PowerSgdSteps> power_sgd_on_host(const hooks::PowerSgdOptions& options) {
  return std::make_unique<HostSteps>(options);
}

// PowerSGD's computations on a GPU: each is one kernel for all matrices of a bucket, behind what is
// in the program's stream.

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

namespace ddprun::hooks {

// hooks::power_sgd(). Step 0 averages p of every compressed matrix, together with all that is not
// compressed; step 1 averages q. Factors are the state of their bucket. Buckets of half types are
// averaged in full. What is computed in between is above, for the host and for a device.

namespace {

using worker_sdk::LowRankShape;
using worker_sdk::PowerSgdFactors;

LowRankShape shape_of(const GradientBucket::Piece& piece, int rank) {
  const std::size_t rows = piece.shape.empty() ? 1 : static_cast<std::size_t>(piece.shape[0]);
  const std::size_t columns = rows == 0 ? 0 : piece.gradient.count / rows;
  return {rows, columns, std::min({rows, columns, static_cast<std::size_t>(rank)})};
}

std::string name_of(const PowerSgdOptions& options) {
  return "power_sgd rank " + std::to_string(options.rank) + " from step " +
         std::to_string(options.start_step) + " rate " +
         std::to_string(options.min_compression_rate) +
         (options.use_error_feedback ? " feedback" : "") + (options.warm_start ? " warm" : "") +
         " epsilon " + std::to_string(options.orthogonalization_epsilon) + " seed " +
         std::to_string(options.seed);
}

class PowerSgd final : public CommHook {
 public:
  PowerSgd(ProcessGroup& group, const PowerSgdOptions& options)
      : CommHook({.name = name_of(options), .collectives = 2}),
        options_(options),
        steps_(worker_sdk::GroupInside::device(group)
                   ? worker_sdk::power_sgd_on_device(group, options)
                   : worker_sdk::power_sgd_on_host(options)) {}

  std::optional<Work> next(ProcessGroup& group, GradientBucket& bucket, int step) override {
    if (step == 0 && bucket.index == 0) passes_ += 1;
    if (!compresses(bucket)) {
      if (step > 0) return {};
      return group.all_reduce_async(bucket.flat, ReduceOp::avg);
    }
    if (!bucket.state.has_value()) bucket.state = plan(group, bucket);
    auto& f = std::any_cast<PowerSgdFactors&>(bucket.state);
    if (step == 0) {
      const auto stream = static_cast<std::uint64_t>(passes_) << 20 ^ bucket.index;
      steps_->send_p(f, options_.seed ^ stream);
      return group.all_reduce_async({f.sent.get(), f.sent_count, f.type}, ReduceOp::avg);
    }
    if (step == 1) {
      steps_->send_q(f);
      if (f.q_count > 0) {
        return group.all_reduce_async({f.q.get(), f.q_count, f.type}, ReduceOp::avg);
      }
    }
    steps_->take(f);
    f.warm = options_.warm_start;
    return {};
  }

 private:
  bool compresses(const GradientBucket& bucket) const {
    return is_of(bucket.flat.type, TypeClass::floating) && passes_ > options_.start_step;
  }

  PowerSgdFactors plan(ProcessGroup& group, const GradientBucket& bucket) {
    PowerSgdFactors f{.type = bucket.flat.type};
    for (const auto& piece : bucket.pieces) {
      const LowRankShape shape = shape_of(piece, options_.rank);
      if (!worker_sdk::worth_compressing(shape, options_.min_compression_rate)) {
        f.plain.push_back(piece.gradient);
        continue;
      }
      f.matrices.push_back({piece.gradient, shape, f.p_count, f.q_count, f.error_count});
      f.p_count += shape.rows * shape.rank;
      f.q_count += shape.columns * shape.rank;
      f.error_count += piece.gradient.count;
    }
    if (bucket.tail.count > 0) f.plain.push_back(bucket.tail);
    f.sent_count = f.p_count;
    for (const Buffer& b : f.plain) f.sent_count += b.count;
    f.sent = group.allocate(f.sent_count * size_of(f.type));
    f.q = group.allocate(f.q_count * size_of(f.type));
    steps_->plan(f);
    return f;
  }

  const PowerSgdOptions options_;
  const std::unique_ptr<worker_sdk::PowerSgdSteps> steps_;
  int passes_ = 0;  // Counts from 1, as PyTorch's iterations from 0.
};

}  // namespace

CommHookFactory power_sgd(const PowerSgdOptions& options) {
  if (options.rank < 1 || options.start_step < 0) {
    throw Error(ErrorKind::bad_argument, {.operation = "hooks::power_sgd"},
                "rank must be at least 1, and start_step not negative");
  }
  return [options](ProcessGroup& group) { return std::make_unique<PowerSgd>(group, options); };
}

}  // namespace ddprun::hooks
