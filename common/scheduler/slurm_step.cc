#include "common/scheduler/slurm_step.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <optional>

#include "common/text/figures.h"

namespace ddprun::scheduler {
namespace {

constexpr int kPortsFirst = 29'400;
constexpr std::uint64_t kPorts = 3'200;
constexpr std::uint64_t kStepsApart = 16;
// Between the ports of a sequence. Prime, so that neighbours in one sequence are not neighbours in
// another.
constexpr std::uint64_t kPortStride = 577;

constexpr std::uint64_t kSpecialStepFirst = 4'294'967'290;

// "2(x3)": `tasks` on each of `nodes`.
struct Part {
  int tasks = 0;
  int nodes = 1;
};

std::optional<Part> part_of(std::string_view text) {
  const std::size_t bracket = text.find("(x");
  const auto tasks = as_number<int>(text.substr(0, bracket));
  if (!tasks || *tasks < 1) return std::nullopt;
  if (bracket == std::string_view::npos) return Part{*tasks};
  if (!text.ends_with(')')) return std::nullopt;
  const auto nodes = as_number<int>(text.substr(bracket + 2, text.size() - bracket - 3));
  if (!nodes || *nodes < 1) return std::nullopt;
  return Part{*tasks, *nodes};
}

std::optional<Part> take_part(std::string_view& text) {
  const std::size_t comma = text.find(',');
  const auto part = part_of(text.substr(0, comma));
  text.remove_prefix(comma == std::string_view::npos ? text.size() : comma + 1);
  return part;
}

}  // namespace

bool is_task_step(std::string_view step_id) {
  if (step_id.empty()) return false;
  const auto number = as_number<std::uint64_t>(step_id);
  return !number || *number < kSpecialStepFirst;
}

std::optional<int> tasks_on_node(std::string_view tasks_per_node, int node) {
  while (!tasks_per_node.empty()) {
    const auto part = take_part(tasks_per_node);
    if (!part) return std::nullopt;
    if (node < part->nodes) return part->tasks;
    node -= part->nodes;
  }
  return std::nullopt;
}

int most_tasks(std::string_view tasks_per_node) {
  int most = 0;
  while (!tasks_per_node.empty()) {
    if (const auto part = take_part(tasks_per_node)) most = std::max(most, part->tasks);
  }
  return most;
}

std::uint16_t meeting_port(std::uint64_t place, int i) {
  const std::uint64_t offset = place % kPorts + static_cast<std::uint64_t>(i) * kPortStride;
  return static_cast<std::uint16_t>(kPortsFirst + static_cast<int>(offset % kPorts));
}

std::uint64_t place_of_step(std::uint64_t job, std::uint64_t step) {
  return job * kStepsApart + step;
}

namespace {

using Names = std::vector<std::string>;

Failure wrong(std::string_view part, const std::string& what) {
  constexpr std::size_t kShownMax = 60;
  return {Errc::kBadOption, "'" + std::string(part.substr(0, kShownMax)) + "': " + what};
}

Failure too_many() {
  return {Errc::kBadOption, "it names more than " + std::to_string(kListedHostsMax) + " hosts"};
}

bool is_host_letter(char letter) {
  const bool word = (letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z');
  return word || (letter >= '0' && letter <= '9') || letter == '-' || letter == '.' ||
         letter == '_';
}

// Digits only: no sign, no space, and short enough not to overflow.
std::optional<std::uint32_t> number_of(std::string_view digits) {
  return digits.size() > 9 ? std::nullopt : as_number<std::uint32_t>(digits);
}

std::string padded(std::uint32_t value, std::size_t width) {
  std::string text = std::to_string(value);
  return text.size() < width ? std::string(width - text.size(), '0') + text : text;
}

// Adds the numbers of "01-03" or "7", each as wide as the first one was written.
Result<void> add_range(std::string_view range, Names& numbers) {
  const std::size_t dash = range.find('-');
  const auto first = number_of(range.substr(0, dash));
  const auto last = dash == std::string_view::npos
                        ? first
                        : number_of(range.substr(std::min(dash + 1, range.size())));
  if (!first || !last || *first > *last) return wrong(range, "is no range such as 1-4 or 07");
  const std::size_t width = std::min(dash, range.size());
  if (*last - *first >= static_cast<std::uint32_t>(kListedHostsMax) - numbers.size())
    return too_many();
  for (std::uint32_t value = *first; value <= *last; ++value)
    numbers.push_back(padded(value, width));
  return {};
}

// The inside of one pair of brackets.
Result<Names> numbers_of(std::string_view ranges) {
  Names numbers;
  for (;;) {
    const std::size_t comma = ranges.find(',');
    const Result<void> added = add_range(ranges.substr(0, comma), numbers);
    if (!added) return added.error();
    if (comma == std::string_view::npos) return numbers;
    ranges.remove_prefix(comma + 1);
  }
}

// Every name of `stems` with every one of `ends` behind it.
Result<Names> combined(const Names& stems, const Names& ends) {
  if (stems.size() * ends.size() > static_cast<std::size_t>(kListedHostsMax)) return too_many();
  Names names;
  names.reserve(stems.size() * ends.size());
  for (const std::string& stem : stems) {
    for (const std::string& end : ends) {
      names.push_back(stem + end);
      if (names.back().size() > kHostNameBytesMax) return wrong(names.back(), "is too long a name");
    }
  }
  return names;
}

// Takes one name with its brackets off the front of `text`.
Result<Names> take_item(std::string_view& text) {
  const std::string_view whole = text;
  Names names = {""};
  while (!text.empty() && text.front() != ',') {
    Result<Names> ends = Names();
    if (text.front() == '[') {
      const std::size_t close = text.find(']');
      if (close == std::string_view::npos) return wrong(text, "a bracket is not closed");
      ends = numbers_of(text.substr(1, close - 1));
      text.remove_prefix(close + 1);
    } else {
      const auto stop = std::find_if_not(text.begin(), text.end(), is_host_letter);
      const auto length = static_cast<std::size_t>(stop - text.begin());
      if (length == 0) return wrong(text, "is not a host name");
      ends = Names{std::string(text.substr(0, length))};
      text.remove_prefix(length);
    }
    if (!ends) return ends;
    Result<Names> longer = combined(names, *ends);
    if (!longer) return longer;
    names = std::move(*longer);
  }
  const bool is_name = !names.front().empty() && !names.front().starts_with('-');
  if (!is_name) return wrong(whole, "is not a host name");
  return names;
}

}  // namespace

Result<std::vector<std::string>> expand_host_list(std::string_view text) {
  if (text.size() > kHostListBytesMax) return wrong(text, "is too long a list");
  Names hosts;
  for (;;) {
    Result<Names> names = take_item(text);
    if (!names) return names;
    if (hosts.size() + names->size() > static_cast<std::size_t>(kListedHostsMax)) return too_many();
    hosts.insert(hosts.end(), std::make_move_iterator(names->begin()),
                 std::make_move_iterator(names->end()));
    if (text.empty()) return hosts;
    text.remove_prefix(1);
  }
}

}  // namespace ddprun::scheduler
