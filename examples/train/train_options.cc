#include "examples/train/train_options.h"

#include <charconv>
#include <cmath>
#include <functional>
#include <stdexcept>

namespace examples {
namespace {

struct Flag {
  std::string name;
  std::string value;  // What the help calls it; empty: the flag takes none.
  std::string help;
  std::function<void(TrainOptions&, const std::string&)> apply;
};

[[noreturn]] void bad(const std::string& text) { throw std::invalid_argument(text); }

template <class T>
T number(const std::string& flag, const std::string& text, T smallest) {
  T value{};
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end || !(value >= smallest)) {
    bad(flag + " wants a number of at least " + std::to_string(smallest) + ", not '" + text + "'");
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
            if (text.empty()) bad(name + " wants a path");
            o.*member = text;
          }};
}

Flag toggle(const std::string& name, bool TrainOptions::*member, bool on, const std::string& help) {
  return {name, "", help, [member, on](TrainOptions& o, const std::string&) { o.*member = on; }};
}

std::vector<Flag> make_flags() {
  using O = TrainOptions;
  return {
      numeric<int>("--epochs", &O::epochs, 1, "passes over the training set (2)"),
      numeric<std::int64_t>("--batch-size", &O::batch_size, 1, "samples of each rank a step (100)"),
      numeric<std::int64_t>("--global-batch-size", &O::global_batch_size, 1,
                            "samples of all ranks together a step, instead"),
      numeric<double>("--lr", &O::lr, 0.0, "learning rate (0.01)"),
      numeric<std::uint64_t>("--seed", &O::seed, 0, "of weights and of the order of samples (0)"),
      path("--data", &O::data, "folder of the dataset (/usr/share/datasets/fashion-mnist)"),
      path("--checkpoint", &O::checkpoint, "resume from it if it is there; written every epoch"),
      path("--metrics", &O::metrics, "JSON lines, one an epoch"),
      toggle("--sync-bn", &O::sync_bn, true, "batch normalisation over all ranks"),
      toggle("--no-bn", &O::batch_norm, false, "no batch normalisation"),
      toggle("--channels-last", &O::channels_last, true,
             "memory layout: faster, but not PyTorch's losses to the last digit"),
      toggle("--double", &O::double_precision, true, "compute in f64: slow, for comparisons"),
      numeric<std::int64_t>("--max-steps", &O::max_steps, 1, "end each epoch after as many steps"),
      toggle("--check-weights", &O::check_weights, true, "fail if ranks differ after an epoch"),
      toggle("--print-losses", &O::print_losses, true, "the loss over all ranks, every step"),
      {"--device", "NAME", "cuda, cpu, or auto: cuda if libtorch sees a GPU (auto)",
       [](O& o, const std::string& text) {
         if (text != "auto" && text != "cuda" && text != "cpu") {
           bad("--device is auto, cuda or cpu, not '" + text + "'");
         }
         o.device = text;
       }},
      toggle("--help", &O::help, true, "this text"),
  };
}

const std::vector<Flag>& flags() {
  static const std::vector<Flag> all = make_flags();
  return all;
}

const Flag& find(const std::string& name) {
  for (const Flag& flag : flags()) {
    if (flag.name == name) return flag;
  }
  bad("unknown option " + name + "; see --help");
}

void check(const TrainOptions& o) {
  if (!std::isfinite(o.lr)) bad("--lr wants a finite number");
  if (o.sync_bn && !o.batch_norm) bad("--sync-bn and --no-bn exclude each other");
}

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
      if (i + 1 == arguments.size()) bad(flag.name + " wants a value");
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
      "  ddprun --standalone --nproc-per-node 2 train [options]\n\n";
  for (const Flag& flag : flags()) {
    std::string head = "  " + flag.name + (flag.value.empty() ? "" : " " + flag.value);
    head.resize(std::max<std::size_t>(head.size() + 2, 26), ' ');
    text += head + flag.help + "\n";
  }
  return text;
}

}  // namespace examples
