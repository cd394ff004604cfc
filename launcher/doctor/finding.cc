#include "launcher/doctor/finding.h"

#include <array>

namespace ddprun::doctor {
namespace {

struct Named {
  std::string_view name;
  int exit_code;
};

// By Status.
constexpr std::array<Named, 5> kStatuses = {
    {{"ok", 0}, {"skipped", 0}, {"warn", 1}, {"unknown", 3}, {"fail", 2}}};

}  // namespace

std::string_view to_string(Status status) {
  return kStatuses[static_cast<std::size_t>(status)].name;
}

int exit_code_of(Status status) { return kStatuses[static_cast<std::size_t>(status)].exit_code; }

}  // namespace ddprun::doctor
