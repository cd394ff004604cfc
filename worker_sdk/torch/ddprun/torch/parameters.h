#pragma once
// A module's parameters without duplicates, and the parameters that a wrapper trains, checked for
// changes that the wrapper does not support. Included through ddprun/torch.h.

#include <torch/torch.h>

#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "ddprun/torch/tensor.h"

namespace ddprun::torch {
namespace detail {

using Named = std::vector<std::pair<std::string, at::Tensor>>;

// Keeps the first name of each tensor.
template <class Items>
Named each_once(const Items& items) {
  Named result;
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const auto& item : items) {
    if (seen.insert(item.value().unsafeGetTensorImpl()).second) {
      result.emplace_back(item.key(), item.value());
    }
  }
  return result;
}

inline std::vector<at::Tensor> each_once(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> result;
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const at::Tensor& t : tensors) {
    if (seen.insert(t.unsafeGetTensorImpl()).second) result.push_back(t);
  }
  return result;
}

// The parameters that a wrapper trains, by reference, so that later changes are visible.
class TrainedParameters {
 public:
  TrainedParameters(const ProcessGroup& group, const ::torch::nn::Module& module)
      : rank_(group.rank()) {
    for (auto& [name, tensor] : each_once(module.named_parameters())) {
      if (!tensor.requires_grad()) {
        frozen_.emplace_back(name, tensor);
        continue;
      }
      require_device(group, name, tensor);
      taken_as_.push_back(describe(tensor));
      tensors_.push_back(tensor);
      names_.push_back(name);
    }
  }

  const std::vector<at::Tensor>& tensors() const { return tensors_; }
  const std::string& name(std::size_t i) const { return names_[i]; }

  Buffer memory(std::size_t i, const at::Tensor& numbers) const {
    try {
      return memory_of(numbers);
    } catch (const Error& error) {
      throw Error(error.kind(), {.rank = rank_, .operation = "DistributedDataParallel"},
                  "parameter " + names_[i] + ": " + error.text());
    }
  }

  /// Throws Error(bad_argument) if a gradient would be missing, of another type or not averaged.
  void require_unchanged() const {
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      if (!tensors_[i].requires_grad()) {
        refuse(names_[i], "was frozen (requires_grad is off) after it was wrapped");
      }
      const TensorForm now = describe(tensors_[i]);
      if (now == taken_as_[i]) continue;
      refuse(names_[i], "is " + text_of(now) + " now, but was " + text_of(taken_as_[i]) +
                            " when it was wrapped");
    }
    for (const auto& [name, tensor] : frozen_) {
      if (tensor.requires_grad()) {
        refuse(name, "was frozen when it was wrapped, so that its gradients would not be averaged");
      }
    }
  }

 private:
  struct TensorForm {
    at::ScalarType type;
    at::Device device;
    std::vector<std::int64_t> sizes;
    bool operator==(const TensorForm& other) const {
      return type == other.type && device == other.device && sizes == other.sizes;
    }
  };
  static TensorForm describe(const at::Tensor& t) {
    return {t.scalar_type(), t.device(), t.sizes().vec()};
  }
  static std::string text_of(const TensorForm& form) {
    std::string text = std::string(c10::toString(form.type)) + " [";
    for (std::size_t d = 0; d < form.sizes.size(); ++d) {
      text += (d == 0 ? "" : ", ") + std::to_string(form.sizes[d]);
    }
    return text + "] on " + form.device.str();
  }
  [[noreturn]] void refuse(const std::string& name, const std::string& text) const {
    throw Error(ErrorKind::bad_argument, {.rank = rank_, .operation = "DistributedDataParallel"},
                "parameter " + name + " " + text +
                    "; change parameters first, and wrap the module then (on all ranks)");
  }

  const int rank_;
  std::vector<at::Tensor> tensors_;
  std::vector<std::string> names_;
  std::vector<TensorForm> taken_as_;
  Named frozen_;
};

}  // namespace detail

/// Each parameter once, in order, as Python's Module.parameters(). libtorch's own function repeats
/// a parameter that two modules share, and an optimizer would step it twice.
inline std::vector<at::Tensor> parameters(const ::torch::nn::Module& module) {
  return detail::each_once(module.parameters());
}
template <class Module>
std::vector<at::Tensor> parameters(const ::torch::nn::ModuleHolder<Module>& module) {
  return parameters(*module.ptr());
}

}  // namespace ddprun::torch
