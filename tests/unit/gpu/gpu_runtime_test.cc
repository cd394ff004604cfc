// The message if NCCL cannot be used, and what its versions can do.

#include "worker_sdk/gpu/gpu_runtime.h"

#include <catch2/catch.hpp>
#include <filesystem>

#include "ddprun/error.h"
#include "tests/support/fake_gpu.h"
#include "tests/support/ranks.h"
#include "worker_sdk/gpu/gpu_runtime.h"

namespace ddprun {
namespace {

using test::FakeGpu;
using worker_sdk::features_of;
using worker_sdk::load_gpu_runtime;

std::string refusal() {
  try {
    return "loaded " + load_gpu_runtime()->describe();
  } catch (const Error& error) {
    return error.kind() == ErrorKind::unsupported ? error.text() : "another kind";
  }
}

bool contains(const std::string& text, const std::string& part) {
  INFO(text);
  CHECK(text.find(part) != std::string::npos);
  return text.find(part) != std::string::npos;
}

TEST_CASE("GPU runtime: what is there is loaded and tells its versions", "[nccl]") {
  const FakeGpu gpu("version=22809", "devices=3,runtime=12080,driver=12090");
  const auto runtime = load_gpu_runtime();
  CHECK(runtime->devices == 3);
  CHECK(contains(runtime->describe(), "NCCL 2.28.9 ("));
  CHECK(contains(runtime->describe(), "CUDA 12.8 ("));
  CHECK(contains(runtime->describe(), "driver for CUDA 12.9"));
}

TEST_CASE("GPU runtime: a library named by its variable that is not there is named", "[nccl]") {
  const FakeGpu gpu;
  FakeGpu::set("DDPRUN_NCCL_LIB", "/nowhere/libnccl.so.2");
  const std::string text = refusal();
  CHECK(contains(text, "DDPRUN_NCCL_LIB cannot be loaded: /nowhere/libnccl.so.2"));
  FakeGpu::set("DDPRUN_CUDART_LIB", "/nowhere/libcudart.so");
  CHECK(contains(refusal(), "DDPRUN_CUDART_LIB cannot be loaded: /nowhere/libcudart.so"));
}

TEST_CASE("GPU runtime: where there is no library, the text says what was looked for", "[nccl]") {
  const auto library = worker_sdk::open_library({.title = "NCCL",
                                                 .variable = "DDPRUN_NO_SUCH_VARIABLE",
                                                 .names = {"libnowhere.so.2", "libnowhere.so"},
                                                 .in_folders = {"nvidia/nowhere/*.so"}});
  CHECK(library.handle == nullptr);
  CHECK(contains(library.missing,
                 "no NCCL found: DDPRUN_NO_SUCH_VARIABLE is not set, the loader has no "
                 "libnowhere.so.2 or libnowhere.so, and there is no nvidia/nowhere/*.so"));
}

TEST_CASE("GPU runtime: pip's copy in an activated environment is found", "[nccl]") {
  const test::TemporaryDirectory directory;
  const std::string folder = directory / "lib/python3.11/site-packages/nvidia/nccl/lib";
  std::filesystem::create_directories(folder);
  std::filesystem::create_symlink(std::string(DDPRUN_FAKES) + "/libfake_nccl.so",
                                  folder + "/libpips.so.2");
  FakeGpu::set("VIRTUAL_ENV", directory / "");
  const auto library = worker_sdk::open_library({.title = "NCCL",
                                                 .variable = "DDPRUN_NO_SUCH_VARIABLE",
                                                 .names = {"libpips.so.2"},
                                                 .in_folders = {"nvidia/nccl/lib/libpips.so.*"}});
  ::unsetenv("VIRTUAL_ENV");
  REQUIRE(library.handle);
  CHECK(library.find("ncclGetVersion") != nullptr);
}

TEST_CASE("GPU runtime: no driver, an old one, no GPU and an old NCCL are told apart", "[nccl]") {
  {
    const FakeGpu gpu("", "status=35,driver=0,devices=0");
    CHECK(contains(refusal(), "finds no NVIDIA driver (libcuda.so.1) on this machine"));
  }
  {
    const FakeGpu gpu("", "status=35,driver=11080,devices=0");
    CHECK(contains(refusal(), "needs a newer driver than this machine's, which is for CUDA 11.8"));
  }
  {
    const FakeGpu gpu("", "status=100,devices=0");
    CHECK(contains(refusal(), "finds no GPU that this process may use"));
  }
  {
    const FakeGpu gpu("version=21304");
    CHECK(contains(refusal(), "is NCCL 2.13.4; 2.14 or later is needed"));
  }
}

TEST_CASE("GPU runtime: features come with their versions", "[nccl]") {
  CHECK_FALSE(features_of(21304).non_blocking);
  CHECK(features_of(21400).non_blocking);
  CHECK_FALSE(features_of(21806).memory);
  CHECK(features_of(22304).scalable_init);
  CHECK_FALSE(features_of(22605).windows);
  CHECK(features_of(22705).shrink);
  CHECK_FALSE(features_of(22803).revoke);
  CHECK(features_of(22807).revoke);
  CHECK_FALSE(features_of(22901).grow);
  CHECK(features_of(22902).grow);
  CHECK(features_of(23007).shared_gpu);
  CHECK(worker_sdk::nccl_version_text(2708) == "2.7.8");
  CHECK(worker_sdk::nccl_version_text(22907) == "2.29.7");
}

}  // namespace
}  // namespace ddprun
