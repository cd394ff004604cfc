#pragma once
// Collectives of tensors with any strides and any type. Included through ddprun/torch.h.
//
//   ddprun::torch::all_reduce(group, losses, ddprun::ReduceOp::avg);
//   const at::Tensor all = ddprun::torch::all_gather(group, embeddings);  // [world_size, ...]
//
// A tensor that is not contiguous travels as a copy. Types that ddprun::DataType lacks, such as
// float8, are moved, but not reduced. Asynchronous
// operations are those of the group, with ddprun::torch::buffer(group, tensor).

#include <torch/torch.h>

#include <string>
#include <vector>

#include "ddprun/process_group.h"
#include "ddprun/torch/tensor.h"

namespace ddprun::torch::detail {

// One collective of tensors: what it refuses, and the memory and type that the group uses.

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

namespace ddprun::torch {

/// Replaces `inout` by the reduction over all ranks: ProcessGroup::all_reduce(). Throws
/// Error(unsupported) that names the type if `op` cannot reduce it (ddprun::is_defined()), such as
/// avg of integers and max of complex numbers; on nccl also if NCCL has no such reduction: band,
/// bor, bxor and premul_sum, and prod of complex numbers.
inline void all_reduce(ProcessGroup& group, const at::Tensor& inout, ReduceOp op = ReduceOp::sum,
                       const CallOptions& options = {}) {
  const ::torch::NoGradGuard no_grad;
  const detail::TensorCall call(group, "all_reduce", options);
  const at::Tensor whole = call.read_writable(inout);
  const detail::Reducible all = call.reducible(whole, op);
  group.all_reduce(detail::memory_of(all.numbers), all.op, options);
  detail::write_back(detail::in_type(all.numbers, inout.scalar_type()), inout);
}

/// Returns on the root the reduction over all ranks; an undefined tensor on the other ranks.
/// Refuses what all_reduce() refuses.
inline at::Tensor reduce(ProcessGroup& group, const at::Tensor& in, int root,
                         ReduceOp op = ReduceOp::sum, const CallOptions& options = {}) {
  const ::torch::NoGradGuard no_grad;
  const detail::TensorCall call(group, "reduce", options);
  const detail::Reducible mine = call.reducible(call.read(in), op);
  const bool receives = group.rank() == root;
  const at::Tensor out = receives ? at::empty_like(mine.numbers) : at::Tensor();
  group.reduce(detail::memory_of(mine.numbers), receives ? detail::memory_of(out) : Buffer(), root,
               mine.op, options);
  return receives ? detail::in_type(out, in.scalar_type()) : out;
}

/// Returns the reduction over all ranks of this rank's share of `in` along the first dimension.
/// Refuses what all_reduce() refuses.
inline at::Tensor reduce_scatter(ProcessGroup& group, const at::Tensor& in,
                                 ReduceOp op = ReduceOp::sum, const CallOptions& options = {}) {
  const ::torch::NoGradGuard no_grad;
  const detail::TensorCall call(group, "reduce_scatter", options);
  const at::Tensor whole = call.read(in);
  const std::int64_t rows = call.share(whole);
  const detail::Reducible all = call.reducible(whole, op);
  const at::Tensor out = detail::rows_like(all.numbers, rows, false);
  group.reduce_scatter(detail::memory_of(all.numbers), detail::memory_of(out), all.op, options);
  return detail::in_type(out, in.scalar_type());
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

// Collectives with a tensor for each rank, anywhere and of any shape, as PyTorch's lists of
// tensors.
//
//   std::vector<at::Tensor> all;
//   for (const std::int64_t rows : rows_of_each_rank) all.push_back(at::empty({rows, 8}));
//   ddprun::torch::all_gather(group, mine, all);
//
// Shapes are not sent. Counts of elements may differ between ranks, but for gather and scatter, as
// process_group.h lists. On nccl the tensors of a reduce_scatter are copied into one and must be
// equal in size.

namespace detail {

// A tensor for each rank, and the memory by which the group sees them.
class TensorList {
 public:
  static TensorList of_input(const TensorCall& call, const std::vector<at::Tensor>& tensors) {
    TensorList list;
    for (const at::Tensor& tensor : tensors) list.wholes_.push_back(call.read(tensor));
    return list;
  }
  static TensorList of_output(const TensorCall& call, const std::vector<at::Tensor>& tensors) {
    TensorList list;
    for (const at::Tensor& tensor : tensors) list.wholes_.push_back(call.read_writable(tensor));
    return list;
  }

  const std::vector<at::Tensor>& wholes() const { return wholes_; }
  PartsBuffer parts() const {
    std::vector<Buffer> each;
    for (const at::Tensor& whole : wholes_) each.push_back(contents(whole));
    return each;
  }
  void write_back_to(const std::vector<at::Tensor>& tensors) const {
    for (std::size_t i = 0; i < tensors.size(); ++i) write_back(wholes_[i], tensors[i]);
  }

 private:
  std::vector<at::Tensor> wholes_;
};

}  // namespace detail

/// Fills outs[r] of every rank with `in` of rank r.
inline void all_gather(ProcessGroup& group, const at::Tensor& in,
                       const std::vector<at::Tensor>& outs, const CallOptions& options = {}) {
  const ::torch::NoGradGuard no_grad;
  const detail::TensorCall call(group, "all_gather", options);
  call.require_each(outs);
  const at::Tensor whole = call.read(in);
  const auto list = detail::TensorList::of_output(call, outs);
  group.all_gather(detail::contents(whole), list.parts(), options);
  list.write_back_to(outs);
}

/// Like all_gather(), on the root alone; `outs` of the other ranks is ignored.
inline void gather(ProcessGroup& group, const at::Tensor& in, const std::vector<at::Tensor>& outs,
                   int root, const CallOptions& options = {}) {
  const ::torch::NoGradGuard no_grad;
  const detail::TensorCall call(group, "gather", options);
  const at::Tensor whole = call.read(in);
  if (group.rank() != root) return group.gather(detail::contents(whole), Buffer(), root, options);
  call.require_each(outs);
  const auto list = detail::TensorList::of_output(call, outs);
  group.gather(detail::contents(whole), list.parts(), root, options);
  list.write_back_to(outs);
}

/// Copies ins[r] of the root to `out` of rank r; `ins` of the other ranks is ignored.
inline void scatter(ProcessGroup& group, const std::vector<at::Tensor>& ins, const at::Tensor& out,
                    int root, const CallOptions& options = {}) {
  const ::torch::NoGradGuard no_grad;
  const detail::TensorCall call(group, "scatter", options);
  const at::Tensor whole = call.read_writable(out);
  const bool sends = group.rank() == root;
  if (sends) call.require_each(ins);
  const auto list = detail::TensorList::of_input(call, sends ? ins : std::vector<at::Tensor>());
  group.scatter(sends ? list.parts() : PartsBuffer(), detail::contents(whole), root, options);
  detail::write_back(whole, out);
}

/// Replaces `out` by the reduction over all ranks of their ins[rank].
inline void reduce_scatter(ProcessGroup& group, const std::vector<at::Tensor>& ins,
                           const at::Tensor& out, ReduceOp op = ReduceOp::sum,
                           const CallOptions& options = {}) {
  const ::torch::NoGradGuard no_grad;
  const detail::TensorCall call(group, "reduce_scatter", options);
  call.require_each(ins);
  const detail::Reducible mine = call.reducible(call.read_writable(out), op);
  std::vector<at::Tensor> numbers;
  for (const at::Tensor& in : ins) numbers.push_back(call.reducible(call.read(in), op).numbers);
  if (out.is_cpu()) {
    std::vector<Buffer> parts;
    for (const at::Tensor& each : numbers) parts.push_back(detail::memory_of(each));
    group.reduce_scatter(parts, detail::memory_of(mine.numbers), mine.op, options);
  } else {
    for (at::Tensor& each : numbers) each = each.flatten();
    const at::Tensor one = at::cat(numbers);
    group.reduce_scatter(detail::memory_of(one), detail::memory_of(mine.numbers), mine.op, options);
  }
  detail::write_back(detail::in_type(mine.numbers, out.scalar_type()), out);
}

/// Sends ins[r] to rank r, and fills outs[r] with what rank r sends. They may not share memory.
inline void all_to_all(ProcessGroup& group, const std::vector<at::Tensor>& ins,
                       const std::vector<at::Tensor>& outs, const CallOptions& options = {}) {
  const ::torch::NoGradGuard no_grad;
  const detail::TensorCall call(group, "all_to_all", options);
  call.require_each(ins);
  call.require_each(outs);
  const auto from = detail::TensorList::of_input(call, ins);
  const auto to = detail::TensorList::of_output(call, outs);
  group.all_to_all(from.parts(), to.parts(), options);
  to.write_back_to(outs);
}

}  // namespace ddprun::torch
