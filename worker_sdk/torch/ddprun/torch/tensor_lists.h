#pragma once
// Collectives with a tensor for each rank, anywhere and of any shape, as PyTorch's lists of
// tensors. Included through ddprun/torch.h.
//
//   std::vector<at::Tensor> all;
//   for (const std::int64_t rows : rows_of_each_rank) all.push_back(at::empty({rows, 8}));
//   ddprun::torch::all_gather(group, mine, all);
//
// Shapes are not sent. Counts of elements may differ between ranks, but for gather and scatter, as
// process_group.h says. On nccl the tensors of a reduce_scatter are copied into one and must be
// equal in size.

#include <torch/torch.h>

#include <vector>

#include "ddprun/process_group.h"
#include "ddprun/torch/tensor_call.h"

namespace ddprun::torch {
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
