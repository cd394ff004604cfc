#pragma once
// Finds the parameters that can get a gradient from a forward pass's result, by walking the
// autograd graph from there, as PyTorch's find_unused_parameters does. Used by
// distributed_data_parallel.h.

#include <torch/csrc/autograd/function.h>
#include <torch/torch.h>

#include <memory>
#include <tuple>
#include <type_traits>
#include <unordered_set>
#include <vector>

namespace ddprun::torch::detail {

using Node = ::torch::autograd::Node;

// Adds the tensors of a result; false: it holds something with tensors that cannot be found.
inline bool collect(const at::Tensor& tensor, std::vector<at::Tensor>& found) {
  found.push_back(tensor);
  return true;
}
template <class T>
bool collect(const std::vector<T>& items, std::vector<at::Tensor>& found) {
  for (const T& item : items) {
    if (!collect(item, found)) return false;
  }
  return true;
}
template <class... T>
bool collect(const std::tuple<T...>& items, std::vector<at::Tensor>& found) {
  return std::apply([&](const auto&... item) { return (collect(item, found) && ...); }, items);
}
template <class T>
requires(!std::is_convertible_v<const T&, const at::Tensor&>) bool collect(
    const T&, std::vector<at::Tensor>&) {
  return false;
}

inline std::unordered_set<const Node*> reachable(const std::vector<at::Tensor>& results) {
  std::unordered_set<const Node*> seen;
  std::vector<const Node*> open;
  const auto visit = [&](const auto& node) {  // Some pointer to a Node.
    if (node && seen.insert(node.get()).second) open.push_back(node.get());
  };
  for (const at::Tensor& t : results) {
    if (t.defined()) visit(t.grad_fn());
  }
  while (!open.empty()) {
    const Node* node = open.back();
    open.pop_back();
    for (const auto& edge : node->next_edges()) visit(edge.function);
  }
  return seen;
}

}  // namespace ddprun::torch::detail
