#pragma once
// Numbers for the log, over all ranks: loss, accuracy, samples seen.
//
//   ddprun::Metrics metrics;
//   for (batch) metrics.add("loss", loss, batch_size);           // Local, costs nothing.
//   const auto all = metrics.reduce(group);                       // Collective.
//   if (group.rank() == 0) std::printf("loss %.4f\n", all.at("loss").average);

#include <map>
#include <string>
#include <string_view>

#include "ddprun/process_group.h"

namespace ddprun {

struct Metric {
  double average = 0;  ///< Each value weighs as much as it was added with.
  double sum = 0;      ///< Of value * weight.
  double weight = 0;   ///< In all.
  double min = 0;      ///< Of the values.
  double max = 0;
};

/// Not thread-safe. Names are short texts; any rank may have any.
class Metrics {
 public:
  /// `weight`: of how many samples `value` is the average; at least 0. Throws Error(bad_argument).
  void add(std::string_view name, double value, double weight = 1);

  /// What this rank has added since the last reduce().
  const std::map<std::string, Metric, std::less<>>& local() const noexcept { return local_; }

  /// Everybody's, by name, the same bits on all ranks; forgets what was added, then. A name that
  /// only some ranks have is averaged over these. Collective; throws Error as collectives do, and
  /// then nothing is forgotten.
  std::map<std::string, Metric, std::less<>> reduce(ProcessGroup& group);

 private:
  std::map<std::string, Metric, std::less<>> local_;
};

/// One number, averaged over all ranks, each of which counts as much. Collective.
double average_over_ranks(ProcessGroup& group, double value);

}  // namespace ddprun
