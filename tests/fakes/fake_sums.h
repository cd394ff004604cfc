#pragma once
// NCCL's types and operations in our words, and how it averages. Used by fake_nccl.cc.

#include <cstddef>

#include "tests/fakes/fake_wire.h"
#include "worker_sdk/gpu/gpu_abi.h"
#include "worker_sdk/transport/reduce.h"

namespace ddprun::test {

inline std::size_t bytes_of(int type) {
  static constexpr std::size_t kBytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
  return kBytes[type];
}

inline DataType ours(int type) {
  switch (type) {
    case worker_sdk::kNcclUint8: return DataType::u8;
    case worker_sdk::kNcclInt32: return DataType::i32;
    case worker_sdk::kNcclInt64: return DataType::i64;
    case worker_sdk::kNcclFloat16: return DataType::f16;
    case worker_sdk::kNcclFloat64: return DataType::f64;
    case worker_sdk::kNcclBfloat16: return DataType::bf16;
    default: return DataType::f32;
  }
}

inline ReduceOp op_of(int op) {
  static constexpr ReduceOp kOps[] = {ReduceOp::sum, ReduceOp::prod, ReduceOp::max, ReduceOp::min,
                                      ReduceOp::avg};
  return kOps[op];
}

// As NCCL's kernels average what is no integer: each rank multiplies its own by 1 / n, and then
// they are summed, so that an average of three equal numbers may differ from each. Seen with
// NCCL 2.28.9.
inline bool is_premultiplied(const FakeSignature& what) {
  const DataType type = ours(what.type);
  const bool whole = type == DataType::i8 || type == DataType::u8 || type == DataType::i32 ||
                     type == DataType::i64;
  return op_of(what.op) == ReduceOp::avg && !whole;
}

// What a rank puts in then. The factor is of the elements' type, but not of halves'.
inline void premultiply(DataType type, void* data, std::size_t count, int ranks) {
  const double factor =
      type == DataType::f64 ? 1.0 / ranks : static_cast<double>(1.0F / static_cast<float>(ranks));
  worker_sdk::multiply(type, data, count, factor);
}

}  // namespace ddprun::test
