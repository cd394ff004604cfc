#include "examples/train/report.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <utility>

namespace examples {
namespace {

double ms(std::chrono::nanoseconds d) {
  return std::chrono::duration<double, std::milli>(d).count();
}

double per_step(std::chrono::nanoseconds d, int steps) { return ms(d) / std::max(steps, 1); }

[[gnu::format(printf, 1, 2)]] std::string format(const char* pattern, ...) {
  char text[512];
  va_list arguments;
  va_start(arguments, pattern);
  std::vsnprintf(text, sizeof text, pattern, arguments);
  va_end(arguments);
  return text;
}

}  // namespace

double EpochReport::samples_per_s() const {
  const double seconds = ms(training) / 1000;
  return seconds > 0 ? static_cast<double>(samples) / seconds : 0;
}
double EpochReport::step_ms() const { return per_step(training, static_cast<int>(steps)); }
double EpochReport::sync_exposed_ms() const { return per_step(sync.exposed, sync.steps); }
double EpochReport::sync_comm_ms() const { return per_step(sync.comm, sync.steps); }
double EpochReport::sync_share() const { return step_ms() > 0 ? sync_exposed_ms() / step_ms() : 0; }

std::string to_json(const EpochReport& r, int world_size, int restart_count) {
  // Infinity and NaN have no form in JSON.
  const std::string loss = std::isfinite(r.train_loss) ? format("%.6f", r.train_loss) : "null";
  return format(
      R"({"epoch": %lld, "train_loss": %s, "test_accuracy": %.4f, "samples_per_s": %.1f, )"
      R"("sync_exposed_ms": %.4f, "sync_comm_ms": %.4f, "sync_share": %.4f, "step_ms": %.3f, )"
      R"("steps": %lld, "learning_rate": %.9g, "sync_bytes": %zu, "world_size": %d, )"
      R"("restart_count": %d})",
      static_cast<long long>(r.epoch), loss.c_str(), r.test_accuracy, r.samples_per_s(),
      r.sync_exposed_ms(), r.sync_comm_ms(), r.sync_share(), r.step_ms(),
      static_cast<long long>(r.steps), r.learning_rate, r.sync.bytes, world_size, restart_count);
}

std::string to_line(const EpochReport& r, std::int64_t epochs) {
  return format(
      "epoch %lld/%lld  loss %.4f  test accuracy %.2f %%  %.0f samples/s  sync %.2f ms a step",
      static_cast<long long>(r.epoch), static_cast<long long>(epochs), r.train_loss,
      100 * r.test_accuracy, r.samples_per_s(), r.sync_exposed_ms());
}

std::string summary(const EpochReport& last, const EpochReport& all, int world_size,
                    const std::string& backend) {
  return format("test accuracy   %.2f %%\n", 100 * last.test_accuracy) +
         format("speed           %.0f samples/s, %d worker%s over %s\n", all.samples_per_s(),
                world_size, world_size == 1 ? "" : "s", backend.c_str()) +
         format(
             "gradient sync   %.2f ms a step waited for, %.2f ms communicating: %.1f %% of a step "
             "of %.1f ms",
             all.sync_exposed_ms(), all.sync_comm_ms(), 100 * all.sync_share(), all.step_ms());
}

MetricsFile::MetricsFile(std::string path, bool append)
    : path_(std::move(path)), file_(path_, append ? std::ios::app : std::ios::trunc) {
  if (!file_) throw std::runtime_error("cannot write " + path_ + ": " + std::strerror(errno));
}

void MetricsFile::write(const std::string& line) {
  errno = 0;
  file_ << line << '\n' << std::flush;  // Readers see whole epochs.
  if (!file_) throw std::runtime_error("cannot write " + path_ + ": " + std::strerror(errno));
}

}  // namespace examples
