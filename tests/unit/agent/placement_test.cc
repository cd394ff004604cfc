#include "agent/placement/worker_count.h"

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

#include "agent/placement/gpu_list.h"
#include "common/system/random_id.h"

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

}  // namespace
}  // namespace ddprun::agent
