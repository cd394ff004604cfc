#include "agent/placement/worker_count.h"

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

#include "agent/placement/worker_environment.h"
#include "common/system/secrets.h"

namespace ddprun::agent {
namespace {

namespace fs = std::filesystem;

TEST_CASE("Placement: a number is itself", "[placement]") {
  CHECK(workers_per_node("8", {}).value() == 8);
  for (const char* bad : {"0", "-1", "1.5", "", "8x", "foo", "99999"}) {
    CAPTURE(bad);
    CHECK(workers_per_node(bad, {}).has_error());
  }
  CHECK(to_string(workers_per_node("foo", {}).error()) ==
        "--nproc-per-node foo: give a number, auto, gpu or cpu: bad option");
}

TEST_CASE("Placement: auto takes the GPUs, and the processors where there is none", "[placement]") {
  CHECK(workers_per_node("auto", {.cpus = 16, .gpus = 4}).value() == 4);
  CHECK(workers_per_node("auto", {.cpus = 16}).value() == 16);
  CHECK(workers_per_node("auto", {.cpus = 16, .gpus = 4, .cuda_visible_devices = ""}).value() ==
        16);
  CHECK(workers_per_node("cpu", {.cpus = 16, .gpus = 4}).value() == 16);
}

TEST_CASE("Placement: gpu without one says why", "[placement]") {
  CHECK(workers_per_node("gpu", {.gpus = 2}).value() == 2);
  CHECK(to_string(workers_per_node("gpu", {.cpus = 2}).error()) ==
        "--nproc-per-node gpu: no NVIDIA GPU on this node; try auto, cpu or a number: bad option");
  CHECK(to_string(workers_per_node("gpu", {.gpus = 2, .cuda_visible_devices = "-1"}).error()) ==
        "--nproc-per-node gpu: CUDA_VISIBLE_DEVICES=-1 hides all 2 GPUs of this node: bad option");
}

TEST_CASE("Placement: CUDA_VISIBLE_DEVICES is read as the driver reads it", "[placement]") {
  CHECK(visible_gpus("0,2", 4) == 2);
  CHECK(visible_gpus(" 0 , 1 ", 4) == 2);
  CHECK(visible_gpus("0,7,1", 4) == 1);
  CHECK(visible_gpus("0,-1,1", 4) == 1);
  CHECK(visible_gpus("0,0", 4) == 0);
  CHECK(visible_gpus("", 4) == 0);
  CHECK(visible_gpus("NoDevFiles", 4) == 0);
  CHECK(visible_gpus("GPU-aa,MIG-bb", 4) == 2);
  CHECK(split_gpu_list("3,GPU-x,,1") == std::vector<std::string>{"3", "GPU-x"});
}

TEST_CASE("Placement: counts what /proc and /dev show", "[placement]") {
  const fs::path root = fs::temp_directory_path() / ("placement_" + random_hex(8));
  CHECK(read_placement_facts(root.string()).gpus == 0);
  for (const char* folder :
       {"proc/driver/nvidia/gpus/0000:01:00.0", "proc/driver/nvidia/gpus/0000:02:00.0", "dev"}) {
    fs::create_directories(root / folder);
  }
  CHECK(read_placement_facts(root.string()).gpus == 2);
  for (const char* name : {"nvidia0", "nvidiactl", "nvidia-uvm"})
    std::ofstream(root / "dev" / name) << "";
  CHECK(read_placement_facts(root.string()).gpus == 1);  // A container that was given one of two.
  fs::remove_all(root / "proc");
  CHECK(read_placement_facts(root.string()).gpus == 1);
  CHECK(read_placement_facts().cpus >= 1);
  fs::remove_all(root);
}

TEST_CASE("Placement: a quota counts as much as the processors, the smaller of both",
          "[placement]") {
  CHECK(workers_per_node("cpu", {.cpus = 16, .quota = 4.0}).value() == 4);
  CHECK(workers_per_node("auto", {.cpus = 16, .quota = 2.9}).value() == 2);
  CHECK(workers_per_node("cpu", {.cpus = 16, .quota = 0.5}).value() == 1);
  CHECK(workers_per_node("cpu", {.cpus = 2, .quota = 4.0}).value() == 2);
  CHECK(workers_per_node("auto", {.cpus = 16, .gpus = 8, .quota = 1.0}).value() == 8);
  CHECK(workers_per_node("5", {.cpus = 16, .quota = 1.0}).value() == 5);
}

TEST_CASE("Placement: what limits the workers is said with its name", "[placement]") {
  const auto text_of = [](const char* request, int workers, const PlacementFacts& facts,
                          bool by_slurm = false) {
    std::string text;
    for (const auto& warning : count_warnings(request, workers, facts, by_slurm)) text += warning;
    return text;
  };
  CHECK(text_of("cpu", 1, {.cpus = 2, .quota = 0.5}) ==
        "1 worker on 1 processor of 2: a cgroup's quota is 0.5 (docker run --cpus, a pod's limit)");
  CHECK(text_of("8", 8, {.cpus = 16, .quota = 4.0}).starts_with("8 workers on 4 processors of 16"));
  CHECK(text_of("4", 4, {.cpus = 16, .quota = 4.0}) == "");
  CHECK(text_of("64", 64, {.cpus = 2}) == "");
  const PlacementFacts bound{.cpus = 1, .machine_cpus = 64};
  CHECK(
      text_of("8", 8, bound, true)
          .starts_with(
              "8 workers on 1 processor: Slurm gave this task 1 of 64; give srun --cpus-per-task"));
  CHECK(text_of("8", 8, bound) == "");
  CHECK(text_of("1", 1, bound, true) == "");
  CHECK(text_of("8", 8, {.cpus = 2, .machine_cpus = 2}, true) == "");  // There are no more.
}

TEST_CASE("Placement: slices of MIG are GPUs", "[placement]") {
  CHECK(workers_per_node("gpu", {.gpus = 4, .slices = 4}).value() == 4);
  CHECK(workers_per_node("auto",
                         {.cpus = 2, .gpus = 4, .cuda_visible_devices = "0,1,2,3", .slices = 4})
            .value() == 4);
  CHECK(workers_per_node("gpu", {.gpus = 4, .slices = 0}).has_error());
}

}  // namespace
}  // namespace ddprun::agent
