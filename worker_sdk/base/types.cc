#include "ddprun/types.h"

namespace ddprun {

// Each row of the table is at the number of its type.
static_assert([] {
  for (std::size_t i = 0; i < std::size(kDataTypes); ++i) {
    if (static_cast<std::size_t>(kDataTypes[i].type) != i) return false;
  }
  return true;
}());

const char* name_of(ReduceOp op) noexcept {
  switch (op) {
    case ReduceOp::sum: return "sum";
    case ReduceOp::avg: return "avg";
    case ReduceOp::min: return "min";
    case ReduceOp::max: return "max";
    case ReduceOp::prod: return "prod";
    case ReduceOp::band: return "band";
    case ReduceOp::bor: return "bor";
    case ReduceOp::bxor: return "bxor";
    case ReduceOp::premul_sum: return "premul_sum";
  }
  return "unknown reduction";
}

}  // namespace ddprun
