// hooks::power_sgd(). Phase 1 averages p of every compressed matrix, together with all that is not
// compressed; phase 2 averages q. Buckets of half types are averaged in full.

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "ddprun/comm_hook.h"
#include "worker_sdk/power_sgd_math.h"

namespace ddprun::hooks {
namespace {

using worker_sdk::LowRankShape;

struct Matrix {
  Buffer gradient;
  LowRankShape shape;
  std::size_t p = 0;  // Where its p starts in Factors::sent, in elements.
  std::size_t q = 0;  // Where its q starts in Factors::q.
};

// What is kept for one bucket.
struct Factors {
  std::vector<Matrix> matrices;
  std::vector<Buffer> plain;  // Sent in full: after the ps.
  std::size_t p_count = 0, sent_count = 0, q_count = 0;
  std::shared_ptr<void> sent, q;
  std::vector<std::byte> error;  // Of the matrices, one after the other.
  bool warm = false;             // q holds the last step's factors.
};

LowRankShape shape_of(const GradientBucket::Piece& piece, int rank) {
  const std::size_t rows = piece.shape.empty() ? 1 : static_cast<std::size_t>(piece.shape[0]);
  const std::size_t columns = rows == 0 ? 0 : piece.gradient.count / rows;
  return {rows, columns, std::min({rows, columns, static_cast<std::size_t>(rank)})};
}

class PowerSgd final : public CommHook {
 public:
  explicit PowerSgd(const PowerSgdOptions& options) : options_(options) {}

  std::string name() const override {
    return "power_sgd rank " + std::to_string(options_.rank) + " from step " +
           std::to_string(options_.start_step) + " rate " +
           std::to_string(options_.min_compression_rate) +
           (options_.use_error_feedback ? " feedback" : "") + (options_.warm_start ? " warm" : "") +
           " epsilon " + std::to_string(options_.orthogonalization_epsilon) + " seed " +
           std::to_string(options_.seed);
  }
  bool computes_on_host() const override { return true; }
  int phases() const override { return 2; }
  void forget() override { factors_.clear(); }

  std::optional<Work> start(ProcessGroup& group, const GradientBucket& bucket) override {
    if (bucket.index == 0) step_ += 1;
    if (!compresses(bucket)) return group.all_reduce_async(bucket.flat, ReduceOp::avg);
    auto [it, is_new] = factors_.try_emplace(bucket.index);
    if (is_new) it->second = plan(group, bucket);
    if (bucket.flat.type == DataType::f32) {
      send_p<float>(it->second, bucket.index);
    } else {
      send_p<double>(it->second, bucket.index);
    }
    return group.all_reduce_async({it->second.sent.get(), it->second.sent_count, bucket.flat.type},
                                  ReduceOp::avg);
  }

  std::optional<Work> proceed(ProcessGroup& group, const GradientBucket& bucket, int) override {
    if (!compresses(bucket)) return {};
    Factors& f = factors_.at(bucket.index);
    if (bucket.flat.type == DataType::f32) {
      send_q<float>(f);
    } else {
      send_q<double>(f);
    }
    if (f.q_count == 0) return {};
    return group.all_reduce_async({f.q.get(), f.q_count, bucket.flat.type}, ReduceOp::avg);
  }

  void end(ProcessGroup&, const GradientBucket& bucket) override {
    if (!compresses(bucket)) return;
    Factors& f = factors_.at(bucket.index);
    if (bucket.flat.type == DataType::f32) return take<float>(f);
    take<double>(f);
  }

 private:
  bool compresses(const GradientBucket& bucket) const {
    const bool wide = bucket.flat.type == DataType::f32 || bucket.flat.type == DataType::f64;
    return wide && step_ > options_.start_step;
  }

  Factors plan(ProcessGroup& group, const GradientBucket& bucket) const {
    Factors f;
    for (const auto& piece : bucket.pieces) {
      const LowRankShape shape = shape_of(piece, options_.rank);
      if (!worker_sdk::worth_compressing(shape, options_.min_compression_rate)) {
        f.plain.push_back(piece.gradient);
        continue;
      }
      f.matrices.push_back({piece.gradient, shape, f.p_count, f.q_count});
      f.p_count += shape.rows * shape.rank;
      f.q_count += shape.columns * shape.rank;
    }
    if (bucket.tail.count > 0) f.plain.push_back(bucket.tail);
    f.sent_count = f.p_count;
    for (const Buffer& b : f.plain) f.sent_count += b.count;
    const std::size_t element = size_of(bucket.flat.type);
    f.sent = group.allocate(f.sent_count * element);
    f.q = group.allocate(f.q_count * element);
    if (options_.use_error_feedback) {
      std::size_t bytes = 0;
      for (const Matrix& m : f.matrices) bytes += m.gradient.bytes();
      f.error.resize(bytes);
    }
    return f;
  }

  // Adds what the last step lost, remembers the sum, and fills f.sent.
  template <class T>
  void send_p(Factors& f, std::size_t bucket) {
    auto* error = reinterpret_cast<T*>(f.error.data());
    auto* q = static_cast<T*>(f.q.get());
    auto* sent = static_cast<T*>(f.sent.get());
    if (!f.warm && f.q_count > 0) {
      const auto stream = static_cast<std::uint64_t>(step_) << 20 ^ bucket;
      worker_sdk::draw_normal(options_.seed ^ stream, q, f.q_count);
    }
    for (const Matrix& m : f.matrices) {
      auto* gradient = static_cast<T*>(m.gradient.data);
      for (std::size_t i = 0; !f.error.empty() && i < m.gradient.count; ++i) {
        *error = gradient[i] += *error;
        ++error;
      }
      worker_sdk::orthogonalize(q + m.q, m.shape.columns, m.shape.rank,
                                options_.orthogonalization_epsilon);
      worker_sdk::multiply(m.shape, gradient, q + m.q, sent + m.p);
    }
    sent += f.p_count;
    for (const Buffer& b : f.plain) {
      if (b.count > 0) std::memcpy(sent, b.data, b.bytes());
      sent += b.count;
    }
  }

  template <class T>
  void send_q(Factors& f) {
    auto* p = static_cast<T*>(f.sent.get());
    const T* plain = p + f.p_count;
    for (const Buffer& b : f.plain) {
      if (b.count > 0) std::memcpy(b.data, plain, b.bytes());
      plain += b.count;
    }
    for (const Matrix& m : f.matrices) {
      worker_sdk::orthogonalize(p + m.p, m.shape.rows, m.shape.rank,
                                options_.orthogonalization_epsilon);
      worker_sdk::multiply_transposed(m.shape, static_cast<const T*>(m.gradient.data), p + m.p,
                                      static_cast<T*>(f.q.get()) + m.q);
    }
  }

  template <class T>
  void take(Factors& f) {
    auto* error = reinterpret_cast<T*>(f.error.data());
    const auto* p = static_cast<const T*>(f.sent.get());
    for (const Matrix& m : f.matrices) {
      auto* gradient = static_cast<T*>(m.gradient.data);
      worker_sdk::expand(m.shape, p + m.p, static_cast<const T*>(f.q.get()) + m.q, gradient);
      for (std::size_t i = 0; !f.error.empty() && i < m.gradient.count; ++i) {
        *error++ -= gradient[i];
      }
    }
    f.warm = options_.warm_start;
  }

  const PowerSgdOptions options_;
  std::map<std::size_t, Factors> factors_;  // By bucket.
  int step_ = 0;                            // Counts from 1, as PyTorch's iterations from 0.
};

}  // namespace

std::shared_ptr<CommHook> power_sgd(const PowerSgdOptions& options) {
  if (options.rank < 1 || options.start_step < 0) {
    throw Error(ErrorKind::bad_argument, {.operation = "hooks::power_sgd"},
                "rank must be at least 1, and start_step not negative");
  }
  return std::make_shared<PowerSgd>(options);
}

}  // namespace ddprun::hooks
