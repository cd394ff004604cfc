#pragma once
// The fields of what runs leave, in the records of their launchers and in a daemon's status. See
// common/archive/archive.h. Pure.

#include <string>

#include "common/archive/archive.h"
#include "common/history/run_record.h"

namespace ddprun {

void fields(auto& a, archive::Is<RunTail> auto& m) {
  a("rank", m.rank), a("stream", m.stream), a("text", m.text), a("end", m.end);
}
template <class A>
void fields(A& a, archive::Is<RunEventText> auto& m) {
  std::string level = m.is_trouble ? "warning" : "info";
  a("at_s", m.at_s), a("level", level), a("text", m.text);
  if constexpr (A::kReads) m.is_trouble = level == "warning";
}

}  // namespace ddprun
