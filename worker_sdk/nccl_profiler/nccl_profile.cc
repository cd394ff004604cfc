#include "worker_sdk/nccl_profiler/nccl_profile.h"

#include <algorithm>
#include <utility>

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
  if ((event & kChannelMask) != 0) return;  // Its end was told by stop_channel().
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

}  // namespace ddprun::worker_sdk
