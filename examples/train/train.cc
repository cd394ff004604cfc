// train: the example of ddprun in C++. Fashion-MNIST, data parallel, on any number of ranks.
//
//   ddprun --standalone --nproc-per-node 2 train --epochs 2
//
// Exit status: 0 trained, 1 failed, 2 bad option.

#include <malloc.h>
#include <torch/cuda.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <stdexcept>
#include <string>
#include <vector>

#include "ddprun/process_group.h"
#include "examples/train/train_options.h"
#include "examples/train/trainer.h"

namespace {

int complain(const std::exception& e, int status) {
  // One line: libtorch adds a backtrace after the first.
  const std::string text = e.what();
  std::fprintf(stderr, "train: %s\n", text.substr(0, text.find('\n')).c_str());
  return status;
}

// Activations of every step are allocated afresh. By default glibc gives such sizes back to the
// kernel each time, and faulting them in again costs a quarter of the step.
void keep_freed_memory() {
#ifdef __GLIBC__
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  mallopt(M_TOP_PAD, 64 << 20);
#endif
}

int run(const std::vector<std::string>& arguments) {
  const auto options = examples::parse_train_options(arguments);
  if (options.help) {
    std::fputs(examples::train_usage().c_str(), stdout);
    return 0;
  }
  keep_freed_memory();
  const char* backend = std::getenv("DDPRUN_BACKEND");
  ddprun::InitOptions init;
  if (examples::wants_gpu(options, torch::cuda::device_count(), backend ? backend : "")) {
    init.backend = "nccl";
  }
  auto group = ddprun::ProcessGroup::init(init);
  examples::train(group, options);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run({argv + 1, argv + argc});
  } catch (const std::invalid_argument& e) {
    return complain(e, 2);
  } catch (const std::exception& e) {
    return complain(e, 1);
  }
}
