#include "worker_sdk/timer/run_summary.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>

#include "common/sync_counts.h"
#include "common/text/figures.h"
#include "ddprun/sync_report.h"

namespace ddprun::worker_sdk {
namespace {

std::string seconds(const char* name, std::chrono::nanoseconds value) {
  char text[96];
  std::snprintf(text, sizeof text, ", \"%s_s\": %.6f", name,
                std::chrono::duration<double>(value).count());
  return text;
}

std::string quoted(const std::string& value) {
  std::string text = "\"";
  for (const char c : value) {
    if (c == '"' || c == '\\') text += '\\';
    text += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return text + '"';
}

std::string late_json(const std::vector<LateRank>& late) {
  std::string text;
  for (const LateRank& rank : late) {
    text += std::string(text.empty() ? "" : ", ") + "{\"rank\": " + std::to_string(rank.rank) +
            ", \"steps\": " + std::to_string(rank.counts["steps"]) + seconds("late", rank.time()) +
            ", \"phase\": \"" + worst_phase(rank.counts) + "\"}";
  }
  return ", \"late\": [" + text + "]";
}

}  // namespace

std::string to_json(const RunSummary& summary, const Identity& identity, const std::string& host) {
  const SyncReport& steps = summary.steps;
  return "{\"rank\": " + std::to_string(identity.rank) +
         ", \"world_size\": " + std::to_string(identity.world_size) +
         ", \"restart_count\": " + std::to_string(identity.restart_count) +
         ", \"host\": " + quoted(host) + ", \"steps\": " + std::to_string(steps.steps) +
         seconds("startup", summary.startup) + seconds("data", steps.data) +
         seconds("optimizer", steps.optimizer) + seconds("outside", steps.outside) +
         seconds("forward", steps.forward) + seconds("backward", steps.backward) +
         seconds("waiting", steps.waited) +
         seconds("transfer", steps.exposed - steps.waited - steps.unknown) +
         seconds("unknown", steps.unknown) + seconds("rest", summary.rest) +
         ", \"window_steps\": " + std::to_string(summary.window_steps) + late_json(summary.late) +
         "}\n";
}

bool write_whole(const std::string& path, const std::string& text) {
  const std::string aside = path + "." + std::to_string(::getpid());
  {
    std::ofstream file(aside, std::ios::trunc);
    file << text << std::flush;
    if (!file) return ::unlink(aside.c_str()), false;
  }
  return std::rename(aside.c_str(), path.c_str()) == 0;
}

}  // namespace ddprun::worker_sdk

namespace ddprun {
namespace {

// Text and JSON of ddprun/sync_report.h.

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
