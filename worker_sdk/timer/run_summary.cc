#include "worker_sdk/timer/run_summary.h"

#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "common/sync_counts.h"
#include "common/text/figures.h"
#include "ddprun/sync_report.h"

namespace ddprun::worker_sdk {
namespace {

using nlohmann::ordered_json;

// To whole multiples of 1 / `parts`.
double rounded(double value, double parts) { return std::round(value * parts) / parts; }
double seconds(std::chrono::nanoseconds d) {
  return rounded(std::chrono::duration<double>(d).count(), 1e6);
}

// A host's name need not be UTF-8.
std::string text_of(const ordered_json& json) {
  return json.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

}  // namespace

std::string to_json(const RunSummary& summary, const Identity& identity, const std::string& host) {
  const SyncReport& steps = summary.steps;
  ordered_json late = ordered_json::array();
  for (const LateRank& rank : summary.late) {
    late.push_back({{"rank", rank.rank},
                    {"steps", rank.counts["steps"]},
                    {"late_s", seconds(rank.time())},
                    {"phase", worst_phase(rank.counts)}});
  }
  const ordered_json json = {{"rank", identity.rank},
                             {"world_size", identity.world_size},
                             {"restart_count", identity.restart_count},
                             {"host", host},
                             {"steps", steps.steps},
                             {"startup_s", seconds(summary.startup)},
                             {"data_s", seconds(steps.data)},
                             {"optimizer_s", seconds(steps.optimizer)},
                             {"outside_s", seconds(steps.outside)},
                             {"forward_s", seconds(steps.forward)},
                             {"backward_s", seconds(steps.backward)},
                             {"waiting_s", seconds(steps.waited)},
                             {"transfer_s", seconds(steps.exposed - steps.waited - steps.unknown)},
                             {"unknown_s", seconds(steps.unknown)},
                             {"rest_s", seconds(summary.rest)},
                             {"window_steps", summary.window_steps},
                             {"late", std::move(late)}};
  return text_of(json) + "\n";
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

using nlohmann::ordered_json;
using worker_sdk::rounded;

double tenths_us(std::chrono::nanoseconds d) { return rounded(us(d), 10); }

ordered_json json_of(const SyncWindow::Rank& r) {
  return {{"outside_us", tenths_us(r.outside)},
          {"data_us", tenths_us(r.data)},
          {"optimizer_us", tenths_us(r.optimizer)},
          {"forward_us", tenths_us(r.forward)},
          {"backward_us", tenths_us(r.backward)},
          {"exposed_us", tenths_us(r.exposed)},
          {"comm_us", tenths_us(r.comm)},
          {"waited_us", tenths_us(r.waited)},
          {"blamed", r.blamed}};
}

ordered_json json_of(const SyncWindow::Bucket& b) {
  return {{"bytes", b.bytes},
          {"transfer_us", tenths_us(b.transfer)},
          {"algbw_gbs", rounded(b.algbw, 1000)},
          {"busbw_gbs", rounded(b.busbw, 1000)}};
}

ordered_json json_of(const Straggler& s) {
  return {{"rank", s.rank},
          {"steps", s.steps},
          {"late_us", tenths_us(s.late)},
          {"phase", name_of(s.phase)},
          {"step", s.step},
          {"worst_us", tenths_us(s.worst)}};
}

template <typename Things>
ordered_json list_of(const Things& things) {
  ordered_json list = ordered_json::array();
  for (const auto& thing : things) list.push_back(json_of(thing));
  return list;
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
  ordered_json json = {{"first_step", w.first_step},
                       {"steps", w.steps},
                       {"step_us", tenths_us(w.step)},
                       {"comm_us", tenths_us(w.comm)},
                       {"exposed_us", tenths_us(w.exposed)},
                       {"overlapped_us", tenths_us(w.overlapped)},
                       {"waited_us", tenths_us(w.waited)},
                       {"lost_us", tenths_us(w.lost)},
                       {"lost_waiting_us", tenths_us(w.lost_waiting)},
                       {"hidden_us", tenths_us(w.hidden)},
                       {"exposed_p50_us", tenths_us(w.exposed_p50)},
                       {"exposed_p95_us", tenths_us(w.exposed_p95)},
                       {"exposed_max_us", tenths_us(w.exposed_max)},
                       {"ranks", list_of(w.ranks)},
                       {"buckets", list_of(w.buckets)}};
  if (w.straggler) json["straggler"] = json_of(*w.straggler);
  return json.dump();
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
            std::chrono::nanoseconds duration, const ordered_json& arguments) {
    const std::chrono::nanoseconds at = start.time_since_epoch() + identity_.wall_clock;
    add({{"ph", "X"},
         {"name", label},
         {"ts", static_cast<double>(at.count()) / 1e3},
         {"dur", static_cast<double>(duration.count()) / 1e3},
         {"pid", identity_.rank},
         {"tid", lane},
         {"args", arguments}});
  }

  std::string text() const { return "{\"traceEvents\": [\n" + events_ + "\n]}\n"; }

 private:
  void name(const char* what, int lane, const std::string& value) {
    add({{"ph", "M"},
         {"name", what},
         {"pid", identity_.rank},
         {"tid", lane},
         {"args", {{"name", value}}}});
  }
  // Each on a line of its own, for those who read it with other tools.
  void add(const ordered_json& event) {
    events_ += (events_.empty() ? "" : ",\n") + text_of(event);
  }

  const TraceRank& identity_;
  std::string events_;
};

void write_step(Writer& out, const StepTimes& step) {
  const ordered_json number = {{"step", step.step}};
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
             {{"step", step.step}, {"bytes", bucket.bytes}});
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
