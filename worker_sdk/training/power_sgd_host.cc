// PowerSGD's computations on the host.

#include <cstddef>
#include <cstring>

#include "worker_sdk/training/power_sgd_steps.h"

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

}  // namespace ddprun::worker_sdk
