// Text and JSON of ddprun/sync_report.h. Pure.

#include "ddprun/sync_report.h"
#include "worker_sdk/base/half.h"

namespace ddprun {
namespace {

using worker_sdk::format;

double us(std::chrono::nanoseconds d) { return static_cast<double>(d.count()) / 1e3; }
double ms(std::chrono::nanoseconds d) { return static_cast<double>(d.count()) / 1e6; }

std::string rank_json(const SyncWindow::Rank& r) {
  return format(R"({"outside_us": %.1f, "data_us": %.1f, "optimizer_us": %.1f, )"
                R"("forward_us": %.1f, "backward_us": %.1f, )"
                R"("exposed_us": %.1f, "comm_us": %.1f, "waited_us": %.1f, "blamed": %d})",
                us(r.outside), us(r.data), us(r.optimizer), us(r.forward), us(r.backward),
                us(r.exposed), us(r.comm), us(r.waited), r.blamed);
}

std::string bucket_json(const SyncWindow::Bucket& b) {
  return format(R"({"bytes": %zu, "transfer_us": %.1f, "algbw_gbs": %.3f, "busbw_gbs": %.3f})",
                b.bytes, us(b.transfer), b.algbw, b.busbw);
}

std::string straggler_json(const Straggler& s) {
  return format(R"({"rank": %d, "steps": %d, "late_us": %.1f, "phase": "%s", )"
                R"("step": %lld, "worst_us": %.1f})",
                s.rank, s.steps, us(s.late), name_of(s.phase), static_cast<long long>(s.step),
                us(s.worst));
}

}  // namespace

const char* name_of(StepPhase phase) noexcept {
  switch (phase) {
    case StepPhase::outside: return "outside";
    case StepPhase::forward: return "forward";
    case StepPhase::backward: return "backward";
    case StepPhase::data: return "data";
    case StepPhase::optimizer: return "optimizer";
  }
  return "?";
}

std::string to_string(const SyncWindow& w) {
  const auto last = w.first_step + w.steps - 1;
  std::string text = format(
      "steps %lld to %lld: %.2f ms a step; gradients took %.2f ms and made it %.2f ms longer: "
      "%.2f ms waiting for the last rank, %.2f ms transfer",
      static_cast<long long>(w.first_step), static_cast<long long>(last), ms(w.step), ms(w.comm),
      ms(w.lost), ms(w.lost_waiting), ms(w.lost - w.lost_waiting));
  if (w.hidden >= std::chrono::microseconds(10)) {
    text += format("; %.2f ms more of waiting hidden by backward", ms(w.hidden));
  }
  double bytes = 0;
  double took = 0;
  for (const auto& b : w.buckets) {
    bytes += static_cast<double>(b.bytes);
    took += us(b.transfer);
  }
  if (took > 0) text += format("; %.2f GB/s", bytes / took / 1e3);
  if (w.straggler) {
    const Straggler& s = *w.straggler;
    text += format("; rank %d was last in %d of %d steps, %.1f ms each, in %s", s.rank, s.steps,
                   w.steps, ms(s.late), name_of(s.phase));
    if (s.steps > 1) {
      text += format(" (%.1f ms in step %lld)", ms(s.worst), static_cast<long long>(s.step));
    }
  }
  return text;
}

std::string to_json(const SyncWindow& w) {
  std::string text = format(
      R"({"first_step": %lld, "steps": %d, "step_us": %.1f, "comm_us": %.1f, "exposed_us": %.1f, )"
      R"("overlapped_us": %.1f, "waited_us": %.1f, "lost_us": %.1f, "lost_waiting_us": %.1f, )"
      R"("hidden_us": %.1f, "exposed_p50_us": %.1f, )"
      R"("exposed_p95_us": %.1f, "exposed_max_us": %.1f, "ranks": [)",
      static_cast<long long>(w.first_step), w.steps, us(w.step), us(w.comm), us(w.exposed),
      us(w.overlapped), us(w.waited), us(w.lost), us(w.lost_waiting), us(w.hidden),
      us(w.exposed_p50), us(w.exposed_p95), us(w.exposed_max));
  for (std::size_t r = 0; r < w.ranks.size(); ++r) text += (r ? ", " : "") + rank_json(w.ranks[r]);
  text += "], \"buckets\": [";
  for (std::size_t b = 0; b < w.buckets.size(); ++b) {
    text += (b ? ", " : "") + bucket_json(w.buckets[b]);
  }
  text += "]";
  if (w.straggler) text += ", \"straggler\": " + straggler_json(*w.straggler);
  return text + "}";
}

}  // namespace ddprun
