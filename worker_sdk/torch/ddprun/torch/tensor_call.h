#pragma once
// One collective of tensors: what it refuses, and the memory and type that the group uses. Included
// through ddprun/torch.h; collectives.h and tensor_lists.h use it.

#include <torch/torch.h>

#include <string>
#include <vector>

#include "ddprun/process_group.h"
#include "ddprun/torch/device.h"
#include "ddprun/torch/tensor.h"

namespace ddprun::torch::detail {

// The numbers that are reduced for a tensor, and how.
struct Reducible {
  at::Tensor numbers;
  ReduceOp op = ReduceOp::sum;
};

// NCCL lacks bool, i16, u16 and complex numbers: bool is reduced as bytes of 0 and 1, small
// integers as i32, complex numbers as pairs if they are added up. What else there is the group
// refuses.
inline Reducible as_nccl_has_it(const at::Tensor& values, ReduceOp op) {
  const bool adds = op == ReduceOp::sum || op == ReduceOp::avg;
  const bool any = op == ReduceOp::sum || op == ReduceOp::max;
  const bool all = op == ReduceOp::prod || op == ReduceOp::min;
  const auto type = known_type(values.scalar_type());
  if (type == DataType::boolean && (any || all)) {
    return {values.view(at::kByte), any ? ReduceOp::max : ReduceOp::min};
  }
  if ((type == DataType::i16 || type == DataType::u16) && (any || all)) {
    return {values.to(at::kInt), op};
  }
  if (values.is_complex() && adds) return {at::view_as_real(values), op};
  return {values, op};
}

// The way back from Reducible::numbers.
inline at::Tensor in_type(const at::Tensor& numbers, at::ScalarType type) {
  if (numbers.scalar_type() == type) return numbers;
  if (c10::isComplexType(type)) return at::view_as_complex(numbers);
  return type == at::kBool ? numbers.view(type) : numbers.to(type);
}

// One operation: refuses tensors that it cannot use, and prepares the group's stream.
class TensorCall {
 public:
  TensorCall(ProcessGroup& group, const char* operation, const CallOptions& options)
      : group_(group), operation_(operation), on_host_(options.on_host) {
    use_current_stream(group);
  }

  /// The values in one piece, detached; the tensor's own memory if it is one.
  at::Tensor read(const at::Tensor& tensor) const {
    if (!tensor.defined()) refuse(ErrorKind::bad_argument, "the tensor is undefined");
    if (tensor.layout() != at::kStrided || tensor.is_quantized()) {
      refuse(ErrorKind::unsupported, std::string("tensors of type ") +
                                         c10::toString(tensor.scalar_type()) +
                                         " that are sparse or quantized cannot be communicated");
    }
    const std::string wrong = on_host_ && tensor.is_cpu() ? "" : objection(group_, tensor);
    if (!wrong.empty()) refuse(ErrorKind::bad_argument, "a tensor " + wrong);
    return tensor.detach().resolve_conj().resolve_neg().contiguous();
  }

  at::Tensor read_writable(const at::Tensor& tensor) const {
    const at::Tensor whole = read(tensor);
    for (std::int64_t d = 0; d < tensor.dim(); ++d) {
      if (tensor.size(d) > 1 && tensor.stride(d) == 0) {
        refuse(ErrorKind::bad_argument,
               "several elements of the tensor share memory, as expand() makes them");
      }
    }
    return whole;
  }

  /// The array that the group reduces for a result of read(). Complex numbers of two halves, which
  /// the library lacks, are pairs.
  Reducible reducible(const at::Tensor& values, ReduceOp op) const {
    const auto type = known_type(values.scalar_type());
    const bool adds = op == ReduceOp::sum || op == ReduceOp::avg;
    if (values.scalar_type() == at::kComplexHalf && adds) return {at::view_as_real(values), op};
    if (!type || !is_defined(*type, op)) {
      refuse(ErrorKind::unsupported, std::string("tensors of type ") +
                                         c10::toString(values.scalar_type()) +
                                         " cannot be reduced by " + name_of(op));
    }
    return values.is_cpu() ? Reducible{values, op} : as_nccl_has_it(values, op);
  }

  void require_each(const std::vector<at::Tensor>& tensors) const {
    if (tensors.size() == static_cast<std::size_t>(group_.world_size())) return;
    refuse(ErrorKind::bad_argument, "there are " + std::to_string(tensors.size()) +
                                        " tensors for " + std::to_string(group_.world_size()) +
                                        " ranks");
  }

  /// The size of the first dimension for each rank.
  std::int64_t share(const at::Tensor& values) const {
    const std::int64_t size = values.dim() == 0 ? 0 : values.size(0);
    if (values.dim() == 0 || size % group_.world_size() != 0) {
      refuse(ErrorKind::bad_argument, "the first dimension (" + std::to_string(size) +
                                          ") is not a multiple of the world size, " +
                                          std::to_string(group_.world_size()));
    }
    return size / group_.world_size();
  }

 private:
  [[noreturn]] void refuse(ErrorKind kind, const std::string& text) const {
    throw Error(kind, {.rank = group_.rank(), .operation = operation_}, text);
  }

  const ProcessGroup& group_;
  const char* operation_;
  const bool on_host_;
};

// The buffer of a contiguous tensor, for operations that compute nothing: bytes if the type has no
// name.
inline Buffer contents(const at::Tensor& whole) {
  const auto type = known_type(whole.scalar_type());
  if (!type) return {whole.data_ptr(), whole.nbytes(), DataType::u8};
  return {whole.data_ptr(), static_cast<std::size_t>(whole.numel()), *type};
}

inline void write_back(const at::Tensor& values, const at::Tensor& to) {
  if (values.data_ptr() != to.data_ptr()) to.detach().copy_(values);
}

inline at::Tensor rows_like(const at::Tensor& values, std::int64_t rows, bool new_dimension) {
  std::vector<std::int64_t> sizes = values.sizes().vec();
  if (new_dimension) {
    sizes.insert(sizes.begin(), rows);
  } else {
    sizes.front() = rows;
  }
  return at::empty(sizes, values.options());
}

}  // namespace ddprun::torch::detail
