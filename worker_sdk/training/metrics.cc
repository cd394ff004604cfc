// Metrics travel as text-free records: length of the name, name, sum, weight, min, max. They are
// added up in the order of ranks, so that all ranks get the same bits.

#include "ddprun/metrics.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "ddprun/objects.h"

namespace ddprun {
namespace {

using Table = std::map<std::string, Metric, std::less<>>;

void merge(Table& table, std::string_view name, const Metric& other) {
  const auto found = table.find(name);
  if (found == table.end()) {
    table.emplace(name, other);
    return;
  }
  Metric& m = found->second;
  m.sum += other.sum;
  m.weight += other.weight;
  m.min = std::min(m.min, other.min);
  m.max = std::max(m.max, other.max);
}

template <class T>
void put(std::string& out, const T& value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

template <class T>
T take(std::string_view& in) {
  T value{};
  std::memcpy(&value, in.data(), sizeof value);
  in.remove_prefix(sizeof value);
  return value;
}

std::string encode(const Table& table) {
  std::string out;
  for (const auto& [name, metric] : table) {
    put(out, static_cast<std::uint32_t>(name.size()));
    out += name;
    put(out, metric);
  }
  return out;
}

void decode_into(Table& table, std::string_view in) {
  while (in.size() >= sizeof(std::uint32_t)) {
    const auto length = take<std::uint32_t>(in);
    if (in.size() < length + sizeof(Metric)) {
      throw Error(ErrorKind::mismatch, {.operation = "Metrics::reduce"},
                  "a rank runs another version of ddprun");
    }
    const std::string_view name = in.substr(0, length);
    in.remove_prefix(length);
    merge(table, name, take<Metric>(in));
  }
}

}  // namespace

void Metrics::add(std::string_view name, double value, double weight) {
  if (!(weight >= 0)) {
    throw Error(ErrorKind::bad_argument, {.operation = "Metrics::add"},
                std::string(name) + " cannot have a weight of " + std::to_string(weight));
  }
  merge(local_, name, {value, value * weight, weight, value, value});
  Metric& m = local_.find(name)->second;
  m.average = m.sum / m.weight;
}

std::map<std::string, Metric, std::less<>> Metrics::reduce(ProcessGroup& group) {
  Table all;
  for (const std::string& bytes : all_gather_bytes(group, encode(local_))) decode_into(all, bytes);
  for (auto& [name, m] : all) m.average = m.sum / m.weight;
  local_.clear();
  return all;
}

double average_over_ranks(ProcessGroup& group, double value) {
  group.all_reduce(buffer(&value, 1), ReduceOp::avg, {.on_host = true});
  return value;
}

}  // namespace ddprun
