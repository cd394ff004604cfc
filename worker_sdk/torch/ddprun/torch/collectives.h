#pragma once
// Collectives of tensors with any strides and any type. Included through ddprun/torch.h.
//
//   ddprun::torch::all_reduce(group, losses, ddprun::ReduceOp::avg);
//   const at::Tensor all = ddprun::torch::all_gather(group, embeddings);  // [world_size, ...]
//
// A tensor that is not contiguous, or of a type that ddprun::DataType lacks, travels as a copy.
// Asynchronous operations are those of the group, with ddprun::torch::buffer(group, tensor).

#include <torch/torch.h>

#include <string>
#include <vector>

#include "ddprun/process_group.h"
#include "ddprun/torch/device.h"
#include "ddprun/torch/tensor.h"

namespace ddprun::torch {
namespace detail {

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
               "several elements of the tensor share memory, as in the result of expand()");
      }
    }
    return whole;
  }

  /// The result of read() in a type that the group can reduce: pairs of numbers for complex ones;
  /// i32 for small integers and for bool, where a sum then is an "or".
  at::Tensor reducible(const at::Tensor& values, ReduceOp op) const {
    const at::ScalarType type = values.scalar_type();
    const bool small = type == at::kBool || type == at::kChar || type == at::kShort;
    const bool integral = at::isIntegralType(type, /*includeBool=*/true);
    const bool adds = op == ReduceOp::sum || op == ReduceOp::avg;
    const bool can = values.is_complex() ? adds
                                         : (small || known_type(type).has_value()) &&
                                               !(integral && op == ReduceOp::avg);
    if (!can) {
      refuse(ErrorKind::unsupported, std::string("tensors of type ") + c10::toString(type) +
                                         " cannot be reduced by " + name_of(op));
    }
    if (small) return values.to(at::kInt);
    return as_real(values);
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

// Of a contiguous tensor, for operations that compute nothing: bytes if the type has no name.
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

}  // namespace detail

/// Replaces `inout` by the reduction over all ranks: ProcessGroup::all_reduce(). Throws
/// Error(unsupported) that names the type if `op` cannot reduce it: avg of integers, and min, max
/// and prod of complex numbers.
inline void all_reduce(ProcessGroup& group, const at::Tensor& inout, ReduceOp op = ReduceOp::sum,
                       const CallOptions& options = {}) {
  const ::torch::NoGradGuard no_grad;
  const detail::TensorCall call(group, "all_reduce", options);
  const at::Tensor whole = call.read_writable(inout);
  const at::Tensor numbers = call.reducible(whole, op);
  group.all_reduce(detail::memory_of(numbers), op, options);
  detail::write_back(whole.is_complex() ? whole : numbers, inout);
}

/// Returns the reduction over all ranks of this rank's share of `in` along the first dimension.
inline at::Tensor reduce_scatter(ProcessGroup& group, const at::Tensor& in,
                                 ReduceOp op = ReduceOp::sum, const CallOptions& options = {}) {
  const ::torch::NoGradGuard no_grad;
  const detail::TensorCall call(group, "reduce_scatter", options);
  const at::Tensor whole = call.read(in);
  const std::int64_t rows = call.share(whole);
  const at::Tensor numbers = call.reducible(whole, op);
  const at::Tensor out = detail::rows_like(numbers, rows, false);
  group.reduce_scatter(detail::memory_of(numbers), detail::memory_of(out), op, options);
  return in.is_complex() ? at::view_as_complex(out) : out.to(in.scalar_type());
}

inline void broadcast(ProcessGroup& group, const at::Tensor& inout, int root,
                      const CallOptions& options = {}) {
  const ::torch::NoGradGuard no_grad;
  const detail::TensorCall call(group, "broadcast", options);
  const at::Tensor whole = call.read_writable(inout);
  group.broadcast(detail::contents(whole), root, options);
  detail::write_back(whole, inout);
}

/// Returns the ranks' tensors, stacked along a new first dimension. All have the same shape.
inline at::Tensor all_gather(ProcessGroup& group, const at::Tensor& in,
                             const CallOptions& options = {}) {
  const ::torch::NoGradGuard no_grad;
  const at::Tensor whole = detail::TensorCall(group, "all_gather", options).read(in);
  const at::Tensor out = detail::rows_like(whole, group.world_size(), true);
  group.all_gather(detail::contents(whole), detail::contents(out), options);
  return out;
}

/// Sends each rank its share of `in` along the first dimension; returns the shares received.
inline at::Tensor all_to_all(ProcessGroup& group, const at::Tensor& in,
                             const CallOptions& options = {}) {
  const ::torch::NoGradGuard no_grad;
  const detail::TensorCall call(group, "all_to_all", options);
  const at::Tensor whole = call.read(in);
  (void)call.share(whole);
  const at::Tensor out = at::empty(whole.sizes(), whole.options());
  group.all_to_all(detail::contents(whole), detail::contents(out), options);
  return out;
}

/// Like all_gather() on the root; returns an undefined tensor on the other ranks.
inline at::Tensor gather(ProcessGroup& group, const at::Tensor& in, int root,
                         const CallOptions& options = {}) {
  const ::torch::NoGradGuard no_grad;
  const at::Tensor whole = detail::TensorCall(group, "gather", options).read(in);
  const bool receives = group.rank() == root;
  const at::Tensor out =
      receives ? detail::rows_like(whole, group.world_size(), true) : at::Tensor();
  group.gather(detail::contents(whole), receives ? detail::contents(out) : Buffer(), root, options);
  return out;
}

/// Copies in[r] of the root to `out` of rank r; `in` of the other ranks is ignored.
inline void scatter(ProcessGroup& group, const at::Tensor& in, const at::Tensor& out, int root,
                    const CallOptions& options = {}) {
  const ::torch::NoGradGuard no_grad;
  const detail::TensorCall call(group, "scatter", options);
  const bool sends = group.rank() == root;
  const at::Tensor parts = sends ? call.read(in) : at::Tensor();
  const at::Tensor whole = call.read_writable(out);
  group.scatter(sends ? detail::contents(parts) : Buffer(), detail::contents(whole), root, options);
  detail::write_back(whole, out);
}

inline void send(ProcessGroup& group, const at::Tensor& in, int destination,
                 const CallOptions& options = {}) {
  const detail::TensorCall call(group, "send", options);
  group.send(detail::contents(call.read(in)), destination, options);
}

inline void recv(ProcessGroup& group, const at::Tensor& out, int source,
                 const CallOptions& options = {}) {
  const ::torch::NoGradGuard no_grad;
  const detail::TensorCall call(group, "recv", options);
  const at::Tensor whole = call.read_writable(out);
  group.recv(detail::contents(whole), source, options);
  detail::write_back(whole, out);
}

}  // namespace ddprun::torch
