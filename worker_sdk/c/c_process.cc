// ddprun/c/c_process.h: crash reports, spawn, seeds, metrics.

#include <unistd.h>

#include <cstdio>

#include "ddprun/crash_report.h"
#include "ddprun/expect_steps.h"
#include "ddprun/metrics.h"
#include "ddprun/seeds.h"
#include "ddprun/spawn.h"
#include "worker_sdk/c/c_handles.h"

using namespace ddprun;
using namespace ddprun::worker_sdk;

struct ddprun_metrics {
  Metrics metrics = {};
  std::map<std::string, Metric, std::less<>> reduced = {};
};

extern "C" {

void ddprun_install_crash_report(void) { install_crash_report(); }
void ddprun_install_crash_report_before(void) { install_crash_report(true); }

ddprun_status ddprun_spawn(int ranks, ddprun_rank_body body, void* user, int64_t grace_ms,
                           int* exit_code) {
  return guarded([&] {
    require_argument(body, "the function is null");
    if (exit_code) *exit_code = 0;
    SpawnOptions options;
    options.grace = or_default(grace_ms, options.grace);
    try {
      spawn(
          ranks,
          [&](int rank) {
            const int code = body(rank, user);
            if (code == 0) return;
            std::fflush(nullptr);
            const bool whole = (code & 0xff) != 0;  // Of 256 the kernel would keep a 0.
            ::_exit(whole ? code : 1);
          },
          options);
    } catch (const SpawnError& error) {
      if (exit_code) *exit_code = error.exit_code();
      throw;
    }
  });
}

ddprun_status ddprun_shared_seed(ddprun_group* group, uint64_t* seed) {
  return guarded([&] {
    require_argument(seed, "a pointer is null");
    *seed = shared_seed(live(group).group);
  });
}

ddprun_status ddprun_expect_steps(ddprun_group* group, int64_t more) {
  return guarded([&] { expect_steps(live(group).group, more); });
}

ddprun_status ddprun_metrics_create(ddprun_metrics** metrics) {
  return guarded([&] {
    require_argument(metrics, "the pointer for the handle is null");
    *metrics = nullptr;
    *metrics = new ddprun_metrics;
  });
}

void ddprun_metrics_destroy(ddprun_metrics* metrics) { delete metrics; }

ddprun_status ddprun_metrics_add(ddprun_metrics* metrics, const char* name, double value,
                                 double weight) {
  return guarded([&] {
    require_argument(name, "the name is null");
    live(metrics).metrics.add(name, value, weight);
  });
}

ddprun_status ddprun_metrics_reduce(ddprun_metrics* metrics, ddprun_group* group, size_t* count) {
  return guarded([&] {
    require_argument(metrics && count, "a pointer is null");
    metrics->reduced = metrics->metrics.reduce(live(group).group);
    *count = metrics->reduced.size();
  });
}

ddprun_status ddprun_metrics_get(const ddprun_metrics* metrics, size_t i, ddprun_metric* metric) {
  return guarded([&] {
    require_argument(i < live(metrics).reduced.size(), "there is no such metric");
    const auto& [name, m] = *std::next(metrics->reduced.begin(), static_cast<std::ptrdiff_t>(i));
    fill(metric, {0, name.c_str(), m.average, m.sum, m.weight, m.min, m.max});
  });
}

ddprun_status ddprun_average(ddprun_group* group, double value, double* average) {
  return guarded([&] {
    require_argument(average, "a pointer is null");
    *average = average_over_ranks(live(group).group, value);
  });
}

}  // extern "C"
