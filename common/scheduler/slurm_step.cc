#include "common/scheduler/slurm_step.h"

#include <algorithm>
#include <charconv>

namespace ddprun::scheduler {
namespace {

constexpr int kPortsFirst = 29'400;
constexpr std::uint64_t kPorts = 3'200;
constexpr std::uint64_t kStepsApart = 16;
// Between the ports of a sequence. Prime, so that neighbours in one sequence are not neighbours in
// another.
constexpr std::uint64_t kPortStride = 577;

constexpr std::uint64_t kSpecialStepFirst = 4'294'967'290;

template <class Number>
std::optional<Number> number_of(std::string_view text) {
  Number value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// "2(x3)": `tasks` on each of `nodes`.
struct Part {
  int tasks = 0;
  int nodes = 1;
};

std::optional<Part> part_of(std::string_view text) {
  const std::size_t bracket = text.find("(x");
  const auto tasks = number_of<int>(text.substr(0, bracket));
  if (!tasks || *tasks < 1) return std::nullopt;
  if (bracket == std::string_view::npos) return Part{*tasks};
  if (!text.ends_with(')')) return std::nullopt;
  const auto nodes = number_of<int>(text.substr(bracket + 2, text.size() - bracket - 3));
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
  const auto number = number_of<std::uint64_t>(step_id);
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

}  // namespace ddprun::scheduler
