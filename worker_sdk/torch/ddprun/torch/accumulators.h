#pragma once
// Gradient accumulators of autograd and hooks on them, as each release of libtorch has them. Used
// by averager.h.

#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/torch.h>

#include <memory>
#include <type_traits>
#include <utility>

namespace ddprun::torch::detail {

// A shared_ptr<Node>, or in later releases an intrusive one.
using Accumulator =
    decltype(::torch::autograd::impl::grad_accumulator(std::declval<const at::Tensor&>()));

template <class F>
std::unique_ptr<::torch::autograd::FunctionPostHook> make_hook(F fired) {
  using Hook = ::torch::autograd::utils::LambdaPostHook;
  if constexpr (std::is_constructible_v<Hook, F>) {
    return std::make_unique<Hook>(std::move(fired));
  } else {  // Some releases of 2.x also require what compiled autograd is to do.
    return std::make_unique<Hook>(std::move(fired), [](auto&) {});
  }
}

}  // namespace ddprun::torch::detail
