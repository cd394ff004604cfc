#include "rendezvous/daemon/metrics_text.h"

#include <charconv>
#include <cmath>

#include "common/assert.h"

namespace ddprun::rendezvous {
namespace {

constexpr double kWholeNumbersMax = 9007199254740992;  // Beyond 2^53 a double skips some.

const char* name_of(MetricsText::Type type) {
  switch (type) {
    case MetricsText::Type::kGauge: return "gauge";
    case MetricsText::Type::kCounter: return "counter";
    case MetricsText::Type::kHistogram: return "histogram";
  }
  return "untyped";
}

template <class Number>
std::string digits(Number number) {
  char text[32];
  const auto end = std::to_chars(std::begin(text), std::end(text), number);
  DDPRUN_ASSERT(end.ec == std::errc());
  return {text, end.ptr};
}

// The shortest text that is read back as the same number; whole numbers without an exponent.
std::string number_text(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  if (std::fabs(value) <= kWholeNumbersMax && value == std::trunc(value)) {
    return digits(static_cast<std::int64_t>(value));
  }
  return digits(value);
}

std::string escaped(const std::string& text, bool quotes_too) {
  std::string result;
  for (const char c : text) {
    if (c == '\\' || (c == '"' && quotes_too)) result += '\\';
    if (c == '\n') {
      result += "\\n";
    } else {
      result += c;
    }
  }
  return result;
}

std::string sample(const std::string& name, const Labels& labels, double value) {
  std::string line = name;
  char before = '{';
  for (const auto& [label, content] : labels) {
    line += before + label + "=\"" + escaped(content, /*quotes_too=*/true) + "\"";
    before = ',';
  }
  return line + (labels.empty() ? " " : "} ") + number_text(value) + "\n";
}

}  // namespace

std::string& MetricsText::samples_of(const Family& family) {
  const auto [place, is_new] = places_.try_emplace(family.name, families_.size());
  if (is_new) {
    families_.emplace_back("# HELP " + family.name + " " +
                               escaped(family.help, /*quotes_too=*/false) + "\n# TYPE " +
                               family.name + " " + name_of(family.type) + "\n",
                           "");
  }
  return families_[place->second].second;
}

void MetricsText::add(const Family& family, const Labels& labels, double value) {
  DDPRUN_ASSERT(family.type != Type::kHistogram);
  samples_of(family) += sample(family.name, labels, value);
}

void MetricsText::add_histogram(const Family& family, std::span<const double> bounds,
                                std::span<const std::uint64_t> counts, double sum) {
  DDPRUN_ASSERT(family.type == Type::kHistogram);
  DDPRUN_ASSERT(counts.size() == bounds.size() + 1);
  std::string& samples = samples_of(family);
  std::uint64_t seen = 0;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    seen += counts[i];
    const std::string bound = i < bounds.size() ? number_text(bounds[i]) : "+Inf";
    samples += sample(family.name + "_bucket", {{"le", bound}}, static_cast<double>(seen));
  }
  samples += sample(family.name + "_sum", {}, sum);
  samples += sample(family.name + "_count", {}, static_cast<double>(seen));
}

std::string MetricsText::text() const {
  std::string all;
  for (const auto& [heading, samples] : families_) all += heading + samples;
  return all;
}

}  // namespace ddprun::rendezvous
