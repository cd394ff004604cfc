#pragma once
// Numbers for the log, aggregated over all ranks: loss, accuracy, samples seen.
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
  double average = 0;  ///< Weighted by the weights of add().
  double sum = 0;      ///< Of value * weight.
  double weight = 0;   ///< Sum of weights.
  double min = 0;      ///< Of the values.
  double max = 0;
};

/// Not thread-safe. Names are short strings and may differ between ranks.
class Metrics {
 public:
  /// `weight`: the number of samples of which `value` is the average; at least 0. Throws
  /// Error(bad_argument).
  void add(std::string_view name, double value, double weight = 1);

  /// The metrics that this rank has added since the last reduce().
  const std::map<std::string, Metric, std::less<>>& local() const noexcept { return local_; }

  /// The metrics of all ranks by name, bit-identical on all ranks; clears local(). A name that only
  /// some ranks have is averaged over those ranks. Collective; throws Error as collectives do and
  /// then keeps local().
  std::map<std::string, Metric, std::less<>> reduce(ProcessGroup& group);

 private:
  std::map<std::string, Metric, std::less<>> local_;
};

/// The unweighted average of `value` over all ranks. Collective.
double average_over_ranks(ProcessGroup& group, double value);

}  // namespace ddprun
