#include "worker_sdk/nccl_profiler/nccl_profile.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "common/text/figures.h"

namespace ddprun::worker_sdk {
namespace {

// The call's number above, then 0 for the call itself or 1 + the channel. NCCL has 64 channels.
constexpr int kChannelBits = 8;
constexpr NcclProfile::Event kChannelMask = (1U << kChannelBits) - 1;

template <class T>
void keep_last(std::deque<T>& list, T value, std::size_t most) {
  if (list.size() == most) list.pop_front();
  list.push_back(std::move(value));
}

std::uint64_t size_of(const std::string& datatype) {
  if (datatype.ends_with("64")) return 8;
  if (datatype.ends_with("32")) return 4;
  if (datatype.ends_with("16")) return 2;
  return datatype == "int8" || datatype == "uint8" || datatype.starts_with("float8") ? 1 : 0;
}

// A call's `count` is what one rank gives, or gets.
bool counts_a_part(const std::string& function) {
  return function == "AllGather" || function == "ReduceScatter" || function == "AlltoAll";
}

}  // namespace

std::size_t NcclProfile::open(Communicator communicator) {
  communicators_.push_back(std::move(communicator));
  return communicators_.size() - 1;
}

NcclProfile::Event NcclProfile::start(std::size_t communicator, const NcclCall& call,
                                      std::uint64_t sequence) {
  const auto key = std::pair(communicator, call);
  auto row = row_of_.find(key);
  if (row == row_of_.end()) {
    if (rows_.size() == kRows) return ++not_listed_, 0;
    row = row_of_.emplace(key, rows_.size()).first;
    rows_.push_back({.communicator = communicator, .call = call});
  }
  ++rows_[row->second].calls;
  Open& place = open_[++calls_ % kOpen];
  if (place.number != 0) settle(place);
  place = {.number = calls_, .row = row->second, .sequence = sequence};
  return calls_ << kChannelBits;
}

NcclProfile::Open* NcclProfile::find(Event event) {
  const std::uint64_t number = event >> kChannelBits;
  Open& place = open_[number % kOpen];
  return number != 0 && place.number == number ? &place : nullptr;
}

void NcclProfile::stop(Event event) {
  if ((event & kChannelMask) != 0) return;  // stop_channel() has recorded its end.
  Open* open = find(event);
  if (!open) return;
  open->enqueued = true;
  if (open->ended > 0 && open->ended >= rows_[open->row].call.channels) settle(*open);
}

NcclProfile::Event NcclProfile::start_channel(Event call, int channel, std::uint64_t gpu_ns) {
  Open* open = find(call);
  if (!open || channel < 0 || static_cast<Event>(channel) >= kChannelMask) return 0;
  open->first_ns = open->begun == 0 ? gpu_ns : std::min(open->first_ns, gpu_ns);
  ++open->begun;
  return (call & ~kChannelMask) | (static_cast<Event>(channel) + 1);
}

void NcclProfile::stop_channel(Event channel, std::uint64_t gpu_ns, std::int64_t host_ns) {
  Open* open = find(channel);
  if (!open || open->ended == open->begun) return;
  open->last_ns = std::max(open->last_ns, gpu_ns);
  ++open->ended;
  lead_ns_ = std::min(lead_ns_, host_ns - static_cast<std::int64_t>(gpu_ns));
  const bool all = open->ended == open->begun && open->ended >= rows_[open->row].call.channels;
  if (all && open->enqueued) settle(*open);
}

void NcclProfile::settle(Open& open) {
  Row& row = rows_[open.row];
  if (open.ended < open.begun) {
    ++row.unfinished;
  } else if (open.ended > 0 && open.last_ns >= open.first_ns) {
    ++row.timed;
    row.total_ns += open.last_ns - open.first_ns;
    keep_last(row.times_ns, open.last_ns - open.first_ns, kTimes);
    keep_last(spans_, Span{open.row, open.sequence, open.first_ns, open.last_ns}, kSpans);
  }
  open = {};
}

void NcclProfile::close(std::size_t communicator) {
  for (Open& open : open_) {
    if (open.number != 0 && rows_[open.row].communicator == communicator) settle(open);
  }
}

NcclTimes times_of(const NcclProfile::Row& row) {
  if (row.times_ns.empty()) return {};
  std::vector<std::uint64_t> sorted(row.times_ns.begin(), row.times_ns.end());
  std::sort(sorted.begin(), sorted.end());
  const auto at = [&](std::size_t percent) { return sorted[(sorted.size() - 1) * percent / 100]; };
  return {.least_ns = sorted.front(), .p50_ns = at(50), .p95_ns = at(95)};
}

std::uint64_t bytes_of(const NcclCall& call, int ranks) {
  const auto parts = static_cast<std::uint64_t>(counts_a_part(call.function) ? ranks : 1);
  return call.count * size_of(call.datatype) * parts;
}

double busbw(const NcclCall& call, int ranks, std::uint64_t took_ns) {
  if (took_ns == 0 || ranks < 1) return 0;
  const double others = static_cast<double>(ranks - 1) / ranks;
  const double part = call.function == "AllReduce"   ? 2 * others
                      : counts_a_part(call.function) ? others
                                                     : 1;
  return static_cast<double>(bytes_of(call, ranks)) / static_cast<double>(took_ns) * part;
}

namespace {

constexpr std::size_t kRowsShown = 20;  // Per communicator, in the table.
constexpr int kFirstLane = 100;         // In a trace, after those of the sync timer.

using Json = nlohmann::ordered_json;

std::string size_text(std::uint64_t bytes) {
  if (bytes < 1024) return std::to_string(bytes) + " B";
  const char* const units[] = {"KiB", "MiB", "GiB", "TiB"};
  double size = static_cast<double>(bytes) / 1024;
  std::size_t unit = 0;
  for (; size >= 1024 && unit + 1 < std::size(units); ++unit) size /= 1024;
  return format("%.4g %s", size, units[unit]);
}

std::string time_text(std::uint64_t ns) {
  const double us = static_cast<double>(ns) / 1e3;
  return us < 10'000 ? format("%.1f us", us) : format("%.1f ms", us / 1e3);
}

std::vector<const NcclProfile::Row*> rows_of(const NcclProfile& profile, std::size_t communicator) {
  std::vector<const NcclProfile::Row*> rows;
  for (const NcclProfile::Row& row : profile.rows()) {
    if (row.communicator == communicator) rows.push_back(&row);
  }
  std::stable_sort(rows.begin(), rows.end(),
                   [](const auto* a, const auto* b) { return a->total_ns > b->total_ns; });
  return rows;
}

std::string name_of(const NcclProfile::Communicator& communicator) {
  return communicator.name.empty()
             ? format("%016llx", static_cast<unsigned long long>(communicator.id))
             : communicator.name;
}

std::string headline(const NcclProfile::Communicator& c, const ProfiledRank& identity) {
  return format(
      "ddprun: nccl: rank %d on %s, communicator %s: %d ranks on %d node%s; kernels by the GPU's "
      "clock\n",
      identity.rank, identity.host.c_str(), name_of(c).c_str(), c.ranks, c.nodes,
      c.nodes == 1 ? "" : "s");
}

const char* or_dash(const std::string& text) { return text.empty() ? "-" : text.c_str(); }

std::string line_of(const NcclProfile::Row& row, int ranks) {
  std::string line =
      format("%8lld  %-14s %10s  %-8s  %-10s %-7s %3d", static_cast<long long>(row.calls),
             row.call.function.c_str(), size_text(bytes_of(row.call, ranks)).c_str(),
             row.call.datatype.c_str(), or_dash(row.call.algorithm), or_dash(row.call.protocol),
             row.call.channels);
  if (row.timed > 0) {
    const NcclTimes times = times_of(row);
    line += format("  %10s %10s %10s  %8.2f", time_text(times.least_ns).c_str(),
                   time_text(times.p50_ns).c_str(), time_text(times.p95_ns).c_str(),
                   busbw(row.call, ranks, times.p50_ns));
  }
  if (const auto untimed = row.calls - row.timed - row.unfinished; untimed > 0) {
    line += format("  %lld without times", static_cast<long long>(untimed));
  }
  if (row.unfinished > 0) {
    line += format("  %lld did not end", static_cast<long long>(row.unfinished));
  }
  return line + "\n";
}

std::string table_of(const NcclProfile& profile, std::size_t communicator) {
  const int ranks = profile.communicators()[communicator].ranks;
  const auto rows = rows_of(profile, communicator);
  std::string text =
      format("%8s  %-14s %10s  %-8s  %-10s %-7s %3s  %10s %10s %10s  %8s\n", "calls", "function",
             "size", "type", "algorithm", "proto", "ch", "min", "median", "p95", "GB/s bus");
  for (std::size_t i = 0; i < std::min(rows.size(), kRowsShown); ++i) {
    text += line_of(*rows[i], ranks);
  }
  if (rows.size() > kRowsShown) {
    text += format("%8s  and %zu more kinds of calls\n", "", rows.size() - kRowsShown);
  }
  return text;
}

Json row_json(const NcclProfile::Row& row, int ranks) {
  const NcclTimes times = times_of(row);
  Json json = {{"function", row.call.function},
               {"datatype", row.call.datatype},
               {"algorithm", row.call.algorithm},
               {"protocol", row.call.protocol},
               {"bytes", bytes_of(row.call, ranks)},
               {"channels", row.call.channels},
               {"calls", row.calls},
               {"timed", row.timed},
               {"unfinished", row.unfinished},
               {"total_us", row.total_ns / 1e3}};
  if (row.timed > 0) {
    json.update({{"min_us", times.least_ns / 1e3},
                 {"p50_us", times.p50_ns / 1e3},
                 {"p95_us", times.p95_ns / 1e3},
                 {"busbw_gbs", busbw(row.call, ranks, times.p50_ns)}});
  }
  return json;
}

Json communicators_json(const NcclProfile& profile) {
  Json list = Json::array();
  for (std::size_t i = 0; i < profile.communicators().size(); ++i) {
    const NcclProfile::Communicator& c = profile.communicators()[i];
    Json rows = Json::array();
    for (const auto* row : rows_of(profile, i)) rows.push_back(row_json(*row, c.ranks));
    list.push_back({{"name", name_of(c)},
                    {"nodes", c.nodes},
                    {"ranks", c.ranks},
                    {"rank", c.rank},
                    {"calls", std::move(rows)}});
  }
  return list;
}

Json named(const char* what, int rank, int lane, const std::string& name) {
  return {{"ph", "M"}, {"name", what}, {"pid", rank}, {"tid", lane}, {"args", {{"name", name}}}};
}

Json events_json(const NcclProfile& profile, const ProfiledRank& identity) {
  Json events = Json::array();
  events.push_back(named("process_name", identity.rank, 0,
                         "rank " + std::to_string(identity.rank) + " (" + identity.host + ")"));
  for (std::size_t i = 0; i < profile.communicators().size(); ++i) {
    events.push_back(named("thread_name", identity.rank, kFirstLane + static_cast<int>(i),
                           "NCCL " + name_of(profile.communicators()[i])));
  }
  for (const NcclProfile::Span& span : profile.spans()) {
    const NcclProfile::Row& row = profile.rows()[span.row];
    const int ranks = profile.communicators()[row.communicator].ranks;
    events.push_back({{"ph", "X"},
                      {"name", row.call.function},
                      {"ts", static_cast<double>(profile.host_ns(span.begin_ns)) / 1e3},
                      {"dur", static_cast<double>(span.end_ns - span.begin_ns) / 1e3},
                      {"pid", identity.rank},
                      {"tid", kFirstLane + static_cast<int>(row.communicator)},
                      {"args",
                       {{"sequence", span.sequence},
                        {"bytes", bytes_of(row.call, ranks)},
                        {"datatype", row.call.datatype},
                        {"algorithm", row.call.algorithm},
                        {"protocol", row.call.protocol},
                        {"channels", row.call.channels}}}});
  }
  return events;
}

}  // namespace

std::string profile_table(const NcclProfile& profile, const ProfiledRank& identity) {
  std::string text;
  for (std::size_t i = 0; i < profile.communicators().size(); ++i) {
    if (rows_of(profile, i).empty()) continue;
    text += headline(profile.communicators()[i], identity) + table_of(profile, i);
  }
  if (profile.not_listed() > 0) {
    text += format("%8lld  calls of further kinds\n", static_cast<long long>(profile.not_listed()));
  }
  return text;
}

std::string profile_json(const NcclProfile& profile, const ProfiledRank& identity) {
  const Json json = {{"rank", identity.rank},
                     {"host", identity.host},
                     {"communicators", communicators_json(profile)},
                     {"calls_not_listed", profile.not_listed()},
                     {"traceEvents", events_json(profile, identity)}};
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace ddprun::worker_sdk
