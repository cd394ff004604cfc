#include "agent/health/flight_record.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "common/assert.h"
#include "common/text/figures.h"

namespace ddprun::agent {
namespace {

using nlohmann::json;

constexpr std::size_t kGroupsMax = 64;
constexpr std::size_t kCallsMax = 64;
constexpr std::size_t kTextMax = 160;
constexpr std::size_t kRanksNamedMax = 4;
constexpr const char* kWholeJob = "0";

// Ranks may have other sizes in all others, such as all_gather of uneven parts.
constexpr std::array<std::string_view, 3> kOfEqualSizes = {"all_reduce", "broadcast", "reduce"};

// Calls of one group, by rank.
using Calls = std::map<int, const std::vector<FlightCall>*>;

Failure bad(const std::string& what) { return {Errc::kBadMessage, "a flight record: " + what}; }

// It ends up in log lines.
std::string plain_text(const json& object, const char* name) {
  const auto found = object.find(name);
  if (found == object.end() || !found->is_string()) return {};
  std::string text = found->get<std::string>().substr(0, kTextMax);
  std::replace_if(
      text.begin(), text.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return text;
}

Result<FlightCall> decode_call(const json& object) {
  if (!object.is_object()) return bad("a call is no object");
  const auto number = object.find("number"), open = object.find("open");
  if (number == object.end() || !number->is_number_unsigned()) return bad("a call has no number");
  return FlightCall{.number = number->get<std::uint64_t>(),
                    .op = plain_text(object, "op"),
                    .of = plain_text(object, "of"),
                    .open = open != object.end() && *open == true};
}

Result<FlightGroup> decode_group(const json& object) {
  if (!object.is_object()) return bad("a group is no object");
  FlightGroup group{.name = plain_text(object, "name"), .calls = {}};
  const auto calls = object.find("calls");
  if (calls == object.end() || !calls->is_array()) return bad("a group has no calls");
  if (calls->size() > kCallsMax) return bad("a group has too many calls");
  for (const json& one : *calls) {
    auto call = decode_call(one);
    if (!call) return call.error();
    if (!group.calls.empty() && call->number <= group.calls.back().number) {
      return bad("calls are in no order");
    }
    group.calls.push_back(std::move(*call));
  }
  return group;
}

std::string name_of(const FlightCall& call) { return call.op + " #" + std::to_string(call.number); }

std::string described(const FlightCall& call, const std::string& group) {
  const std::string of = call.of.empty() ? "" : " of " + call.of;
  return name_of(call) + of + (group == kWholeJob ? "" : " in group " + group);
}

std::string ranks_text(const std::vector<int>& ranks) {
  return (ranks.size() == 1 ? "rank " : "ranks ") + ranges_text(ranks);
}

std::string at(const FlightRecord& record) {
  return record.where.empty() ? "" : " at " + record.where;
}

const FlightCall* call_with(const std::vector<FlightCall>& calls, std::uint64_t number) {
  const auto found = std::find_if(calls.begin(), calls.end(),
                                  [&](const FlightCall& call) { return call.number == number; });
  return found == calls.end() ? nullptr : &*found;
}

bool agree(const FlightCall& a, const FlightCall& b) {
  if (a.op != b.op) return false;
  const bool equal =
      std::find(kOfEqualSizes.begin(), kOfEqualSizes.end(), a.op) != kOfEqualSizes.end();
  return !equal || a.of == b.of;
}

std::map<std::string, Calls> by_group(const FlightRecords& records) {
  std::map<std::string, Calls> groups;
  for (const auto& [rank, record] : records) {
    if (!record) continue;
    for (const FlightGroup& group : record->groups) {
      groups[group.name][rank] = &group.calls;
    }
  }
  return groups;
}

// The lowest number under which two ranks have called different things.
std::string disagreement(const std::string& group, const Calls& calls) {
  std::set<std::uint64_t> numbers;
  for (const auto& [rank, own] : calls) {
    for (const FlightCall& call : *own) numbers.insert(call.number);
  }
  for (const std::uint64_t number : numbers) {
    std::optional<std::pair<int, const FlightCall*>> first;
    for (const auto& [rank, own] : calls) {
      const FlightCall* call = call_with(*own, number);
      if (!call) continue;
      if (!first) first = {rank, call};
      if (agree(*first->second, *call)) continue;
      return "rank " + std::to_string(first->first) + " has called " +
             described(*first->second, group) + ", and rank " + std::to_string(rank) + " " +
             described(*call, group) + ": they disagree";
    }
  }
  return {};
}

std::uint64_t last_number(const std::vector<FlightCall>& calls) {
  return calls.empty() ? 0 : calls.back().number;
}

// "; rank 1 has not reached it: its last is all_reduce #20, and it is at train.py:27"
std::string missing_text(int rank, const FlightRecord& record,
                         const std::vector<FlightCall>& calls) {
  const char* is = record.ended ? ", and it ended" : ", and it is";
  return "; rank " + std::to_string(rank) + " has not reached it: " +
         (calls.empty() ? "it has called nothing yet" : "its last is " + name_of(calls.back())) +
         (record.where.empty() ? "" : is + at(record));
}

// The call in which ranks of a group wait, and the ranks that have not come to it.
struct Waiting {
  std::vector<int> inside;
  std::vector<int> missing;
  const FlightCall* call = nullptr;  // Null: no rank waits.
};

// A call without a rank in it may have been that of the rank that has ended.
Waiting waiting_in(const FlightRecords& records, const Calls& calls) {
  Waiting found;
  for (const auto& [rank, own] : calls) {
    if (own->empty()) continue;
    const FlightCall& last = own->back();
    const bool waits = last.open || records.at(rank)->ended;
    if (waits && (!found.call || last.number > found.call->number)) found.call = &last;
  }
  if (!found.call) return found;
  for (const auto& [rank, own] : calls) {
    const std::uint64_t last = last_number(*own);
    if (last == found.call->number) found.inside.push_back(rank);
    if (last < found.call->number) found.missing.push_back(rank);
  }
  return found;
}

std::string inside_text(const FlightRecords& records, const std::string& group,
                        const Waiting& waiting) {
  const bool several = waiting.inside.size() > 1;
  const FlightRecord& first = *records.at(waiting.inside.front());
  const std::string verb = first.ended && !several ? " ended in "
                           : several               ? " are in "
                                                   : " is in ";
  return ranks_text(waiting.inside) + verb + described(*waiting.call, group) + at(first);
}

std::string absence(const FlightRecords& records, const std::string& group, const Calls& calls) {
  const Waiting waiting = waiting_in(records, calls);
  if (!waiting.call || waiting.inside.empty() || waiting.missing.empty()) return {};
  std::string text = inside_text(records, group, waiting);
  for (std::size_t i = 0; i < std::min(waiting.missing.size(), kRanksNamedMax); ++i) {
    const int rank = waiting.missing[i];
    text += missing_text(rank, *records.at(rank), *calls.at(rank));
  }
  if (waiting.missing.size() > kRanksNamedMax) text += "; and others";
  return text;
}

std::string agreement(const FlightRecords& records, const std::string& group, const Calls& calls) {
  const Waiting waiting = waiting_in(records, calls);
  if (!waiting.call || waiting.inside.empty() || !waiting.missing.empty()) return {};
  return inside_text(records, group, waiting);
}

// If torch has no recorder.
std::string places(const FlightRecords& records) {
  std::string text;
  std::size_t named = 0;
  for (const auto& [rank, record] : records) {
    if (!record || record->where.empty() || ++named > kRanksNamedMax) continue;
    text += (text.empty() ? "rank " : "; rank ") + std::to_string(rank) +
            (record->ended ? " ended" : " is") + at(*record);
  }
  return text;
}

std::string silent_text(const FlightRecords& records) {
  std::vector<int> silent;
  for (const auto& [rank, record] : records) {
    if (!record) silent.push_back(rank);
  }
  if (silent.empty()) return {};
  const bool several = silent.size() > 1;
  return ranks_text(silent) + (several ? " do" : " does") +
         " not answer: stopped, or in a call that holds Python's lock";
}

}  // namespace

Result<FlightRecord> decode_flight_record(std::string_view text) {
  if (text.size() > kFlightBytesMax) return bad("it is too long");
  const json object = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) return bad("it is not a JSON object");
  FlightRecord record{.where = plain_text(object, "where"), .groups = {}};
  const auto groups = object.find("groups");
  if (groups == object.end() || !groups->is_array()) return bad("it has no groups");
  if (groups->size() > kGroupsMax) return bad("it has too many groups");
  for (const json& one : *groups) {
    auto group = decode_group(one);
    if (!group) return group.error();
    record.groups.push_back(std::move(*group));
  }
  return record;
}

std::string flight_text(const FlightRecords& records) {
  const auto groups = by_group(records);
  std::string text;
  for (const auto& [name, calls] : groups) {
    if (text.empty()) text = disagreement(name, calls);
  }
  for (const auto& [name, calls] : groups) {
    if (text.empty()) text = absence(records, name, calls);
  }
  for (const auto& [name, calls] : groups) {
    if (text.empty()) text = agreement(records, name, calls);
  }
  if (!text.empty()) text = "PyTorch's flight recorder: " + text;
  if (text.empty()) text = places(records);
  const std::string silent = silent_text(records);
  return text + (text.empty() || silent.empty() ? "" : "; ") + silent;
}

}  // namespace ddprun::agent
