#pragma once
// What a check says of a node, and how bad that is. Pure.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/doctor/node_facts.h"

namespace ddprun::doctor {

// Amounts as the screens show them: "1,048,576", "64 KiB", "24.1 GB/s". Pure.
inline constexpr std::int64_t kMega = 1'000'000;

std::string count_text(std::int64_t count);  // "1,048,576"
std::string bytes_text(std::int64_t bytes);  // "310 MB"; powers of ten
std::string limit_text(std::int64_t bytes);  // "64 KiB", "unlimited" below 0
std::string number_text(double number);      // Three digits at most: "24.1", "0.2", "850"
std::string ms_text(double milliseconds);    // "0.2 ms", "4.1 s"

// From good to bad: the worst of all findings is the exit code.
enum class Status {
  kOk,
  kSkipped,  // Nothing to judge here, or nothing that matters.
  kWarn,     // A run works, but not as it could.
  kUnknown,  // Something that matters could not be measured.
  kFail,     // A run fails here, or may give wrong results.
};

std::string_view to_string(Status status);  // As in the JSON: "ok", "skipped", "warn", ...
int exit_code_of(Status status);            // 0, 0, 1, 3, 2.

enum class Group { kMachine, kGpu, kNetwork };

struct Finding {
  std::string name = {};  // Empty: that of its check.
  Status status = Status::kOk;
  std::string value = {};  // What was found: "64 KiB".
  std::string note = {};   // Why that matters: "NCCL over InfiniBand needs more".
  std::string cure = {};   // Something to type: "ulimit -l unlimited".
  bool operator==(const Finding&) const = default;
};

// What a run wants of each node.
struct Need {
  int workers = 1;           // On each node.
  bool several = false;      // There are other nodes.
  std::string program = {};  // That is to be started; empty: none was given.
};

// One line of the screen; some give a line of its own to each thing that is wrong.
struct Check {
  std::string_view name;
  Group group;
  std::string_view probe;  // Whose reason for failing stands for this check's facts.
  std::vector<Finding> (*judge)(const Facts& facts, const Need& need);
};

}  // namespace ddprun::doctor
