#include "examples/train/train_options.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <functional>
#include <stdexcept>
#include <utility>

namespace examples {
namespace {

struct Flag {
  std::string name;
  std::string value;  // The value's name in the help; empty: the flag takes none.
  std::string help;
  std::function<void(TrainOptions&, const std::string&)> apply;
};

struct Section {
  std::string heading;
  std::vector<Flag> flags;
};

[[noreturn]] void bad(const std::string& text) { throw std::invalid_argument(text); }

template <class T>
std::string text_of(T value) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", static_cast<double>(value));
  return text;
}

template <class T>
T number(const std::string& flag, const std::string& text, T smallest) {
  T value{};
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error == std::errc::result_out_of_range) bad(flag + " " + text + " is out of range");
  if (error != std::errc() || stop != end || !(value >= smallest) ||
      !std::isfinite(static_cast<double>(value))) {
    bad(flag + " needs a number of at least " + text_of(smallest) + ", not '" + text + "'");
  }
  return value;
}

template <class T>
Flag numeric(const std::string& name, T TrainOptions::*member, T smallest,
             const std::string& help) {
  return {name, "N", help, [name, member, smallest](TrainOptions& o, const std::string& text) {
            o.*member = number<T>(name, text, smallest);
          }};
}

Flag path(const std::string& name, std::string TrainOptions::*member, const std::string& help) {
  return {name, "PATH", help, [name, member](TrainOptions& o, const std::string& text) {
            if (text.empty()) bad(name + " needs a path");
            o.*member = text;
          }};
}

Flag toggle(const std::string& name, bool TrainOptions::*member, bool on, const std::string& help) {
  return {name, "", help, [member, on](TrainOptions& o, const std::string&) { o.*member = on; }};
}

// One of the words, in the order in which an error message lists them.
template <class T>
Flag choice(const std::string& name, T TrainOptions::*member,
            const std::vector<std::pair<std::string, T>>& words, const std::string& help) {
  return {name, "NAME", help, [name, member, words](TrainOptions& o, const std::string& text) {
            std::string all;
            for (std::size_t i = 0; i < words.size(); ++i) {
              const auto& [word, value] = words[i];
              if (word == text) {
                o.*member = value;
                return;
              }
              all += (i == 0 ? "" : i + 1 == words.size() ? " or " : ", ") + word;
            }
            bad(name + " is " + all + ", not '" + text + "'");
          }};
}

using O = TrainOptions;

Section training() {
  return {"Training",
          {numeric<int>("--epochs", &O::epochs, 1, "passes over the training set (2)"),
           numeric<std::int64_t>("--batch-size", &O::batch_size, 1,
                                 "samples of each rank in a step (100)"),
           numeric<std::int64_t>("--global-batch-size", &O::global_batch_size, 1,
                                 "samples of all ranks together in a step, instead"),
           numeric<std::int64_t>("--max-steps", &O::max_steps, 1,
                                 "end each epoch after that many steps"),
           numeric<std::uint64_t>("--seed", &O::seed, 0,
                                  "seed of the weights and of the order of samples (0)"),
           path("--data", &O::data, "folder of the data set (/usr/share/datasets/fashion-mnist)")}};
}

Section learning_rate() {
  return {"Learning rate",
          {numeric<double>("--lr", &O::lr, 0.0, "learning rate (0.01)"),
           choice<LrScale>(
               "--lr-scale", &O::lr_scale,
               {{"none", LrScale::none}, {"linear", LrScale::linear}, {"sqrt", LrScale::sqrt}},
               "multiply it by the ranks: linear, sqrt (their root) or none (none)"),
           numeric<std::int64_t>("--warmup", &O::warmup, 0,
                                 "raise it in equal parts over the first N steps (0)"),
           choice<Decay>("--schedule", &O::decay,
                         {{"constant", Decay::none}, {"cosine", Decay::cosine}},
                         "then constant, or cosine: it falls to --min-lr (constant)"),
           numeric<double>("--min-lr", &O::min_lr, 0.0, "where the cosine ends (0)")}};
}

Section model() {
  return {"Model and weights",
          {path("--init-from", &O::init_from,
                "start from the weights of this file that match by name and shape"),
           {"--freeze", "PREFIX",
            "do not train parameters with this name, such as layers.0; may be repeated",
            [](O& o, const std::string& text) {
              if (text.empty()) bad("--freeze needs the name of a layer, such as layers.0");
              o.freeze.push_back(text);
            }},
           toggle("--sync-bn", &O::sync_bn, true, "batch normalisation over all ranks"),
           toggle("--no-bn", &O::batch_norm, false, "no batch normalisation"),
           toggle("--double", &O::double_precision, true, "compute in f64: slow, for comparisons"),
           toggle("--channels-last", &O::channels_last, true,
                  "memory layout: faster, but not PyTorch's losses to the last digit"),
           choice<std::string>("--device", &O::device,
                               {{"auto", "auto"}, {"cuda", "cuda"}, {"cpu", "cpu"}},
                               "cuda, cpu, or auto: cuda if libtorch finds a GPU (auto)")}};
}

Section output() {
  return {"Files and output",
          {path("--checkpoint", &O::checkpoint,
                "resume from this file if it exists; written after each epoch"),
           path("--metrics", &O::metrics, "one line of JSON for each epoch, in this file"),
           path("--tensorboard", &O::tensorboard, "an event file for TensorBoard, in this folder"),
           toggle("--print-losses", &O::print_losses, true,
                  "the loss over all ranks and the learning rate of each step"),
           toggle("--check-weights", &O::check_weights, true,
                  "fail if the ranks' weights differ after an epoch"),
           toggle("--help", &O::help, true, "this text")}};
}

const std::vector<Section>& sections() {
  static const std::vector<Section> all = {training(), learning_rate(), model(), output()};
  return all;
}

const Flag& find(const std::string& name) {
  for (const Section& section : sections()) {
    for (const Flag& flag : section.flags) {
      if (flag.name == name) return flag;
    }
  }
  bad("unknown option " + name + "; see --help");
}

void check(const TrainOptions& o) {
  if (o.sync_bn && !o.batch_norm) bad("--sync-bn and --no-bn exclude each other");
  if (o.lr_scale != LrScale::none && o.global_batch_size > 0) {
    bad("--lr-scale and --global-batch-size exclude each other: the batch of all ranks has that "
        "size whatever their number");
  }
  if (o.min_lr > 0 && o.decay != Decay::cosine) bad("--min-lr needs --schedule cosine");
  if (o.min_lr > o.lr) bad("--min-lr " + text_of(o.min_lr) + " is above --lr " + text_of(o.lr));
}

constexpr const char* kExamples = R"(
Examples:
  ddprun --nproc-per-node 4 train --lr-scale linear --warmup 100 --schedule cosine
  ddprun --nproc-per-node 2 --max-restarts 3 train --checkpoint net.pt --tensorboard runs/net
  ddprun --nproc-per-node 2 train --init-from net.pt --freeze layers.0 --freeze layers.1
)";

}  // namespace

TrainOptions parse_train_options(const std::vector<std::string>& arguments) {
  TrainOptions options;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const auto equals = arguments[i].find('=');
    const Flag& flag = find(arguments[i].substr(0, equals));
    std::string value;
    if (flag.value.empty()) {
      if (equals != std::string::npos) bad(flag.name + " takes no value");
    } else if (equals != std::string::npos) {
      value = arguments[i].substr(equals + 1);
    } else {
      if (i + 1 == arguments.size()) bad(flag.name + " needs a value");
      value = arguments[++i];
    }
    flag.apply(options, value);
  }
  check(options);
  return options;
}

bool wants_gpu(const TrainOptions& options, std::size_t gpus, const std::string& backend) {
  const bool hosts = !backend.empty() && backend != "auto" && backend != "nccl";
  if (options.device != "cuda") return options.device == "auto" && gpus > 0 && !hosts;
  if (hosts) bad("--device cuda needs the backend nccl, but DDPRUN_BACKEND is " + backend);
  if (gpus == 0) bad("--device cuda: this program's libtorch sees no GPU");
  return true;
}

std::string train_usage() {
  std::string text =
      "Trains a small ConvNet on Fashion-MNIST, data parallel.\n"
      "  ddprun --nproc-per-node 2 train [options]\n";
  for (const Section& section : sections()) {
    text += "\n" + section.heading + ":\n";
    for (const Flag& flag : section.flags) {
      std::string head = "  " + flag.name + (flag.value.empty() ? "" : " " + flag.value);
      head.resize(std::max<std::size_t>(head.size() + 2, 26), ' ');
      text += head + flag.help + "\n";
    }
  }
  return text + kExamples;
}

}  // namespace examples
