#include "agent/placement/gpus.h"

#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "common/system/secrets.h"

namespace ddprun::agent {
namespace {

namespace fs = std::filesystem;

struct FakeRoot {
  fs::path path = fs::temp_directory_path() / ("ddprun-gpus-" + random_hex(6));
  ~FakeRoot() { fs::remove_all(path); }
  void file(const std::string& name, const std::string& text = "") const {
    fs::create_directories((path / name).parent_path());
    std::ofstream(path / name) << text;
  }
};

TEST_CASE("GPUs: without NVML the driver's files say what there is, and where", "[gpus]") {
  const FakeRoot root;
  CHECK(find_gpus(root.path).empty());
  root.file("proc/driver/nvidia/gpus/0000:5e:00.0/information");
  root.file("proc/driver/nvidia/gpus/0000:3b:00.0/information");
  root.file("sys/bus/pci/devices/0000:5e:00.0/numa_node", "1\n");
  root.file("sys/bus/pci/devices/0000:3b:00.0/numa_node", "-1\n");
  const auto gpus = find_gpus(root.path);
  REQUIRE(gpus.size() == 2);
  CHECK(gpus[0].bus_id == "0000:3b:00.0");
  CHECK(gpus[0].numa_node == -1);
  CHECK(gpus[1].numa_node == 1);
  root.file("dev/nvidia0");  // A container that was given one of two: which, is not known.
  root.file("dev/nvidiactl");
  CHECK(find_gpus(root.path).size() == 1);
  CHECK(find_gpus(root.path)[0].bus_id.empty());
}

TEST_CASE("GPUs: NVML is asked where it can be loaded", "[gpus]") {
  ::setenv("DDPRUN_NVML_LIB", FAKE_NVML, 1);
  const auto gpus = find_gpus();
  ::setenv("DDPRUN_NVML_LIB", "/no/such/library", 1);
  const auto none = find_gpus("/no/such/root");
  ::unsetenv("DDPRUN_NVML_LIB");
  REQUIRE(gpus.size() == 2);
  CHECK(gpus[0].bus_id == "0000:1b:00.0");
  CHECK(gpus[0].uuid == "GPU-0");
  CHECK(gpus[1].uuid == "GPU-2");
  CHECK(gpus[1].name == "Fake H100");
  CHECK(none.empty());
}

TEST_CASE("GPUs: bus ids are shortened to what /sys knows", "[gpus]") {
  CHECK(short_bus_id("00000000:3B:00.0") == "0000:3b:00.0");
  CHECK(short_bus_id("0000:3b:00.0") == "0000:3b:00.0");
  CHECK(short_bus_id("00010002:3B:00.0") == "0002:3b:00.0");
  CHECK(short_bus_id("") == "");
}

TEST_CASE("GPUs: the slices of cards in MIG mode count, and a card's number means all of its own",
          "[gpus]") {
  ::setenv("DDPRUN_NVML_LIB", FAKE_MIG_NVML, 1);
  const auto gpus = find_gpus();
  ::unsetenv("DDPRUN_NVML_LIB");
  const auto seen = [&](const char* list) {
    std::string text;
    for (const Gpu& gpu : visible_among(gpus, list)) text += (text.empty() ? "" : " ") + gpu.uuid;
    return text;
  };
  REQUIRE(gpus.size() == 5);
  CHECK(gpus[3].is_slice);
  CHECK(gpus[3].bus_id == "0000:2b:00.0");
  CHECK_FALSE(gpus[4].is_slice);
  CHECK(seen("0,1,2") == "MIG-0a MIG-0b MIG-1a MIG-1b GPU-2");
  CHECK(seen("0,1,2,3") == seen("0,1,2"));  // There is no card 3.
  CHECK(seen("1") == "MIG-1a MIG-1b");
  CHECK(seen("2,0") == "GPU-2 MIG-0a MIG-0b");
  CHECK(seen("MIG-1b,MIG-0a") == "MIG-1b MIG-0a");
  CHECK(seen("MIG-elsewhere") == "MIG-elsewhere");
  CHECK(visible_among(gpus, "MIG-elsewhere").front().is_slice);
  CHECK(seen("") == "");
  CHECK(visible_among(gpus, std::nullopt).size() == 5);
}

}  // namespace
}  // namespace ddprun::agent
