#include "ddprun/types.h"

namespace ddprun {

std::size_t size_of(DataType type) noexcept {
  switch (type) {
    case DataType::u8:
    case DataType::i8:
    case DataType::boolean: return 1;
    case DataType::f16:
    case DataType::bf16:
    case DataType::i16:
    case DataType::u16: return 2;
    case DataType::f32:
    case DataType::i32:
    case DataType::u32: return 4;
    case DataType::f64:
    case DataType::i64:
    case DataType::u64:
    case DataType::c64: return 8;
    case DataType::c128: return 16;
  }
  return 0;
}

const char* name_of(DataType type) noexcept {
  switch (type) {
    case DataType::f32: return "f32";
    case DataType::f64: return "f64";
    case DataType::f16: return "f16";
    case DataType::bf16: return "bf16";
    case DataType::i32: return "i32";
    case DataType::i64: return "i64";
    case DataType::u8: return "u8";
    case DataType::i8: return "i8";
    case DataType::i16: return "i16";
    case DataType::u16: return "u16";
    case DataType::u32: return "u32";
    case DataType::u64: return "u64";
    case DataType::boolean: return "bool";
    case DataType::c64: return "c64";
    case DataType::c128: return "c128";
  }
  return "unknown type";
}

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
