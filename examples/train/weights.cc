#include "examples/train/weights.h"

#include <algorithm>
#include <exception>
#include <map>
#include <sstream>
#include <stdexcept>

#include "examples/train/checkpoint.h"

namespace examples {
namespace {

using Tensors = std::map<std::string, torch::Tensor>;

bool is_under(const std::string& name, const std::string& prefix) {
  return name.starts_with(prefix) && (name.size() == prefix.size() || name[prefix.size()] == '.');
}

bool is_under(const std::string& name, const std::vector<std::string>& prefixes) {
  return std::ranges::any_of(prefixes, [&](const auto& prefix) { return is_under(name, prefix); });
}

// "a, b, c and 4 more".
std::string list(const std::vector<std::string>& names) {
  constexpr std::size_t kMost = 6;
  std::string text;
  for (std::size_t i = 0; i < std::min(names.size(), kMost); ++i) {
    text += (i == 0 ? "" : ", ") + names[i];
  }
  if (names.size() > kMost) text += " and " + std::to_string(names.size() - kMost) + " more";
  return text;
}

template <class Map>
std::vector<std::string> names_of(const Map& tensors) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : tensors) names.push_back(name);
  return names;
}

// An archive of a module holds its tensors, and an archive for each of its parts.
void collect(torch::serialize::InputArchive& archive, const std::string& prefix, Tensors& tensors) {
  for (const std::string& key : archive.keys()) {
    torch::serialize::InputArchive part;
    c10::IValue value;
    if (archive.try_read(key, part)) {
      collect(part, prefix + key + ".", tensors);
    } else if (archive.try_read(key, value) && value.isTensor()) {
      tensors[prefix + key] = value.toTensor();
    }
  }
}

// A checkpoint of train has the model beside the state of the optimizer.
Tensors tensors_of_archive(const std::string& contents) {
  std::istringstream in(contents);
  torch::serialize::InputArchive archive, model, optimizer;
  archive.load_from(in, torch::kCPU);
  Tensors tensors;
  const bool checkpoint =
      archive.try_read("model", model) && archive.try_read("optimizer", optimizer);
  collect(checkpoint ? model : archive, "", tensors);
  return tensors;
}

Tensors tensors_of_dictionary(const c10::IValue& value) {
  Tensors tensors;
  if (!value.isGenericDict()) return tensors;
  for (const auto& entry : value.toGenericDict()) {
    if (!entry.key().isString()) continue;
    const std::string& key = entry.key().toStringRef();
    if (entry.value().isTensor()) tensors[key] = entry.value().toTensor();
    if (key == "model" || key == "state_dict" || key == "model_state_dict") {
      tensors.merge(tensors_of_dictionary(entry.value()));
    }
  }
  return tensors;
}

Tensors without_wrapper(Tensors tensors) {
  const std::string wrapper = "module.";
  const auto wrapped = [&](const auto& entry) { return entry.first.starts_with(wrapper); };
  if (!std::ranges::all_of(tensors, wrapped)) return tensors;
  Tensors bare;
  for (auto& [name, tensor] : tensors) bare[name.substr(wrapper.size())] = tensor;
  return bare;
}

Tensors tensors_of(const std::string& path, const std::string& contents) {
  Tensors tensors;
  try {
    tensors = tensors_of_archive(contents);
  } catch (const std::exception&) {  // Not a file of C++: Python's?
    try {
      tensors = tensors_of_dictionary(torch::pickle_load({contents.begin(), contents.end()}));
    } catch (const std::exception&) {
      throw std::runtime_error("--init-from: " + path +
                               " is neither a checkpoint of train nor a file of torch::save(model)"
                               " or of Python's torch.save(dict(model.state_dict()), FILE);"
                               " libtorch cannot read a state_dict() that is no plain dict");
    }
  }
  return without_wrapper(std::move(tensors));
}

std::string shape_of(const torch::Tensor& tensor) {
  std::string text;
  for (const auto extent : tensor.sizes())
    text += (text.empty() ? "" : "x") + std::to_string(extent);
  return text.empty() ? "one number" : text;
}

// All tensors of a model, by name.
torch::OrderedDict<std::string, torch::Tensor> tensors_of(const torch::nn::Module& model) {
  auto tensors = model.named_parameters();
  for (const auto& buffer : model.named_buffers()) tensors.insert(buffer.key(), buffer.value());
  return tensors;
}

struct Taken {
  std::size_t tensors = 0;
  std::vector<std::string> absent;     // In the model, not in the file.
  std::vector<std::string> misshapen;  // In both.
};

Taken take(Tensors& given, const torch::OrderedDict<std::string, torch::Tensor>& own) {
  const torch::NoGradGuard no_grad;
  Taken taken;
  for (const auto& item : own) {
    const auto found = given.find(item.key());
    if (found == given.end()) {
      taken.absent.push_back(item.key());
      continue;
    }
    if (found->second.sizes() == item.value().sizes()) {
      torch::Tensor(item.value()).copy_(found->second);
      ++taken.tensors;
    } else {
      taken.misshapen.push_back(item.key() + " (" + shape_of(found->second) + " there, " +
                                shape_of(item.value()) + " here)");
    }
    given.erase(found);
  }
  return taken;
}

}  // namespace

void freeze(torch::nn::Module& model, const std::vector<std::string>& prefixes) {
  const auto parameters = model.named_parameters();
  for (const std::string& prefix : prefixes) {
    const auto names = parameters.keys();
    if (std::ranges::none_of(names, [&](const auto& name) { return is_under(name, prefix); })) {
      throw std::invalid_argument("--freeze " + prefix + ": no parameter has that name or begins " +
                                  "with it and a dot. There are " + list(names));
    }
  }
  std::size_t trained = 0;
  for (const auto& parameter : parameters) {
    const bool frozen = is_under(parameter.key(), prefixes);
    torch::Tensor(parameter.value()).set_requires_grad(!frozen);
    if (!frozen) ++trained;
  }
  if (trained == 0) throw std::invalid_argument("--freeze leaves no parameter to be trained");
}

void begin_training(torch::nn::Module& model, const std::vector<std::string>& prefixes) {
  model.train();
  for (const auto& part : model.named_modules("", /*include_self=*/false)) {
    if (is_under(part.key(), prefixes)) part.value()->eval();
  }
}

std::vector<torch::Tensor> trained_parameters(const torch::nn::Module& model) {
  auto parameters = model.parameters();
  std::erase_if(parameters, [](const torch::Tensor& p) { return !p.requires_grad(); });
  return parameters;
}

std::string init_from(const std::string& path, ddprun::ProcessGroup& group,
                      torch::nn::Module& model) {
  const auto contents = read_and_share(path, group);
  if (!contents) throw std::runtime_error("--init-from: there is no file " + path);
  Tensors given = tensors_of(path, *contents);
  const auto own = tensors_of(model);
  const auto names = names_of(given);
  const Taken taken = take(given, own);
  if (taken.tensors == 0) {
    throw std::runtime_error("--init-from: " + path + " has no weight of this model: it has " +
                             (names.empty() ? "no tensors" : list(names)) + "; the model has " +
                             list(own.keys()));
  }
  std::string text = "weights from " + path + ": " + std::to_string(taken.tensors) + " of the " +
                     std::to_string(own.size()) + " tensors of the model";
  if (!taken.absent.empty()) text += "\n  not in the file: " + list(taken.absent);
  if (!taken.misshapen.empty()) text += "\n  of another shape: " + list(taken.misshapen);
  if (!given.empty()) text += "\n  in the file only: " + list(names_of(given));
  return text;
}

}  // namespace examples
