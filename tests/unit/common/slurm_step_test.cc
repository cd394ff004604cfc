#include "common/scheduler/slurm_step.h"

#include <catch2/catch.hpp>
#include <set>

namespace ddprun::scheduler {
namespace {

TEST_CASE("Slurm step: only steps of srun have tasks", "[allocation]") {
  CHECK(is_task_step("0"));
  CHECK(is_task_step("4294967289"));
  for (const char* none : {"", "4294967290", "4294967291", "4294967292", "4294967294"}) {
    INFO(none);
    CHECK_FALSE(is_task_step(none));
  }
}

TEST_CASE("Slurm step: the tasks of a node, and the most of any", "[allocation]") {
  CHECK(tasks_on_node("2(x3),1", 0) == 2);
  CHECK(tasks_on_node("2(x3),1", 2) == 2);
  CHECK(tasks_on_node("2(x3),1", 3) == 1);
  CHECK(tasks_on_node("2(x3),1", 4) == std::nullopt);
  CHECK(tasks_on_node("4", 0) == 4);
  CHECK(most_tasks("2(x3),1") == 2);
  CHECK(most_tasks("1,3,2") == 3);
}

TEST_CASE("Slurm step: damaged numbers of tasks are none", "[allocation]") {
  for (const char* text : {"", "x", "0", "-1", "2(", "2(x", "2(x)", "2(x0)", "2(x3", "2(x-3)",
                           "2(x99999999999)", ",", "2 (x3)"}) {
    INFO(text);
    CHECK(tasks_on_node(text, 0) == std::nullopt);
    CHECK(most_tasks(text) == 0);
  }
  CHECK(tasks_on_node("1,2(x", 1) == std::nullopt);
}

TEST_CASE("Slurm step: a job has several ports, and its neighbours have others", "[allocation]") {
  std::set<int> seen;
  for (std::uint64_t job = 1; job <= 40; ++job) {
    for (int i = 0; i < kMeetingPorts; ++i) {
      const int port = meeting_port(place_of_step(job, 0), i);
      CHECK(port >= 29'400);
      CHECK(port < 32'600);
      seen.insert(port);
    }
  }
  CHECK(seen.size() == 40 * kMeetingPorts);
  CHECK(meeting_port(place_of_step(7, 1), 0) == 29'400 + 7 * 16 + 1);
  CHECK(meeting_port(~std::uint64_t{0}, 3) < 32'600);
}

}  // namespace
}  // namespace ddprun::scheduler
