#pragma once
// Prometheus' text format, version 0.0.4: families of samples, each with its help and its type.
// Decides nothing about which numbers there are; that is metrics_page.cc, its only caller.

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace ddprun::rendezvous {

using Labels = std::map<std::string, std::string>;

// Collects the samples of one answer. A family stands where its first sample was added.
class MetricsText {
 public:
  enum class Type {
    kGauge,      // Goes up and down.
    kCounter,    // Only goes up.
    kHistogram,  // Counts of what is at most so large, and their sum.
  };

  struct Family {
    std::string name;
    std::string help;
    Type type = Type::kGauge;
  };

  void add(const Family& family, const Labels& labels, double value);
  // counts[i] were at most bounds[i]; the last of `counts`, beyond the bounds, were larger still.
  void add_histogram(const Family& family, std::span<const double> bounds,
                     std::span<const std::uint64_t> counts, double sum);

  std::string text() const;

 private:
  std::string& samples_of(const Family& family);

  std::map<std::string, std::size_t> places_;                  // By family.
  std::vector<std::pair<std::string, std::string>> families_;  // What precedes samples; samples.
};

}  // namespace ddprun::rendezvous
