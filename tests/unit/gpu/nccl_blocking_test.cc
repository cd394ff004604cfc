// abort() and the failure of a sibling do not wait for NCCL, which may take its time to explain an
// error, or not return at all. On the fakes; ranks are threads.

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <fstream>
#include <future>
#include <numeric>
#include <thread>

#include "ddprun/c_api.h"
#include "tests/support/fake_gpu.h"
#include "tests/support/model.h"
#include "tests/support/ranks.h"
#include "worker_sdk/base/retry.h"
#include "worker_sdk/nccl/nccl_comm.h"

namespace ddprun {
namespace {

using namespace std::chrono_literals;
using test::Complaints;
using test::FakeGpu;
using test::Ranks;

// An NCCL that explains an error when the test lets it.
class SlowMessages {
 public:
  explicit SlowMessages(const std::string& faults) : gpu_(faults + ",words=" + path_) {}

  bool wanted() const {
    const auto limit = worker_sdk::Clock::now() + 60s;
    return worker_sdk::retry_until(limit, [&] { return exists(path_ + ".wanted"); });
  }
  void come() const { std::ofstream{path_}; }
  bool were_late() const { return exists(path_ + ".late"); }

 private:
  static bool exists(const std::string& path) { return ::access(path.c_str(), F_OK) == 0; }

  const test::TemporaryDirectory folder_;
  const std::string path_ = folder_ / "words";
  const FakeGpu gpu_;
};

TEST_CASE("NCCL: abort() does not wait for NCCL to explain an error", "[nccl]") {
  const SlowMessages words("async_error=0:1");
  Complaints complaints;
  const auto errors = Ranks{.world_size = 1, .backend = "nccl"}.run([&](ProcessGroup& group) {
    float value = 0;
    const Work work = group.all_reduce_async(buffer(&value, 1));
    complaints.unless(words.wanted(), "nobody asks for an explanation");
    group.abort();
    complaints.unless(!words.were_late(), "abort() waited for it");
    words.come();
  });
  CHECK(test::outcome(errors) == "all well");
  CHECK(complaints.text() == "none");
}

// Rank 0 of the job is rank 1 of the sibling, where NCCL reports an error.
TEST_CASE("NCCL: a group fails though NCCL still explains an error of its sibling", "[nccl]") {
  const SlowMessages words("async_error=1:1");
  Complaints complaints;
  std::promise<void> over;
  auto done = over.get_future().share();
  const auto errors = Ranks{.backend = "nccl"}.run([&](ProcessGroup& group) {
    auto sibling = group.split(0, -group.rank());
    if (group.rank() == 1) return done.wait();
    float a = 0, b = 0;
    const Work other = sibling->all_reduce_async(buffer(&a, 1));
    Work mine = group.all_reduce_async(buffer(&b, 1));
    complaints.unless(words.wanted(), "nobody asks for an explanation");
    group.abort();
    try {
      mine.wait();
      complaints.unless(false, "the operation ended well");
    } catch (const Error& error) {
      complaints.unless(error.kind() == ErrorKind::aborted, error.what());
    }
    complaints.unless(!words.were_late(), "the group waited for the sibling's explanation");
    words.come();
    over.set_value();
  });
  CHECK(test::outcome(errors) == "all well");
  CHECK(complaints.text() == "none");
}

TEST_CASE("NCCL: a call that does not return is freed by the abort", "[nccl]") {
  const FakeGpu gpu("blocks=0:2");
  const auto errors = Ranks{.backend = "nccl", .op_timeout = 2s}.run([](ProcessGroup& group) {
    float value = 1;
    for (int i = 0; i < 2; ++i) group.all_reduce(buffer(&value, 1));
  });
  for (const auto& error : errors) {
    REQUIRE(error);
    INFO(error->what());
    CHECK(error->kind() == ErrorKind::timed_out);
    CHECK(error->where().operation.find("all_reduce #2") != std::string::npos);
  }
}

// A runtime in which the first other thread that asks for the device gets it after the next abort:
// the thread of a call that is given up before it runs. Should the abort's own thread be the first,
// it is late by some seconds, and the test finds nothing.
class LateThread {
 public:
  LateThread() {
    late_.store(false);
    aborted_.store(false);
    caller_ = std::this_thread::get_id();
    auto runtime = std::make_shared<worker_sdk::GpuRuntime>(*real_);
    abort_ = real_->nccl.abort;
    runtime->nccl.abort = [](worker_sdk::NcclComm comm) {
      const int status = abort_(comm);
      aborted_.store(true);
      return status;
    };
    set_device_ = real_->cuda.set_device;
    runtime->cuda.set_device = [](int device) {
      if (std::this_thread::get_id() != caller_ && late_.exchange(false)) {
        worker_sdk::retry_until(worker_sdk::Clock::now() + 5s, [] { return aborted_.load(); });
      }
      return set_device_(device);
    };
    runtime_ = std::move(runtime);
  }
  const std::shared_ptr<const worker_sdk::GpuRuntime>& runtime() const { return runtime_; }
  void arm() { late_.store(true); }

 private:
  static inline std::atomic<bool> late_;
  static inline std::atomic<bool> aborted_;
  static inline std::thread::id caller_;
  static inline int (*abort_)(worker_sdk::NcclComm);
  static inline int (*set_device_)(int);

  const FakeGpu gpu_;
  const std::shared_ptr<const worker_sdk::GpuRuntime> real_ = worker_sdk::load_gpu_runtime();
  std::shared_ptr<const worker_sdk::GpuRuntime> runtime_;
};

worker_sdk::NcclCommOptions alone(const worker_sdk::GpuRuntime& runtime) {
  worker_sdk::NcclCommOptions options;
  options.may_shrink = true;
  options.ids.resize(1);
  REQUIRE(runtime.nccl.unique_id(options.ids.data()) == worker_sdk::kNcclSuccess);
  return options;
}

// The fake ends the process where a communicator is used after its end.
TEST_CASE("NCCL: a shrink that is given up before its thread runs is not called", "[nccl]") {
  LateThread late;
  worker_sdk::NcclCommunicator comm(late.runtime(), alone(*late.runtime()));
  comm.revoke(20s, 20s, false);
  REQUIRE(comm.is_revoked());
  late.arm();
  const auto [made, why] = comm.shrink({0}, alone(*late.runtime()), [] { return true; });
  CHECK(made == nullptr);
  CHECK(why == "ncclCommShrink does not end");
}

TEST_CASE("NCCL: a revocation that is late before its thread runs is not called", "[nccl]") {
  LateThread late;
  worker_sdk::NcclCommunicator comm(late.runtime(), alone(*late.runtime()));
  late.arm();
  comm.revoke(0s, 20s, false);
  CHECK_FALSE(comm.is_revoked());
}

TEST_CASE("C interface: a rank that is alone on nccl passes the one part of each operation") {
  const FakeGpu gpu;
  ddprun_init_options options = {};
  options.size = sizeof options;
  options.backend = "nccl";
  options.rank = -1;
  ddprun_group* group = nullptr;
  ddprun_memory* memory = nullptr;
  void* data = nullptr;
  REQUIRE(ddprun_group_init(&options, &group) == DDPRUN_OK);
  REQUIRE(ddprun_allocate(group, 8 * sizeof(float), &data, &memory) == DDPRUN_OK);
  auto* values = static_cast<float*>(data);
  for (const int operation : {DDPRUN_REDUCE_SCATTER, DDPRUN_ALL_GATHER, DDPRUN_ALL_TO_ALL}) {
    std::iota(values, values + 4, 1.0F);
    std::fill(values + 4, values + 8, 0.0F);
    const ddprun_buffer in = DDPRUN_BUFFER(values, 4, DDPRUN_F32);
    const ddprun_buffer out = DDPRUN_BUFFER(values + 4, 4, DDPRUN_F32);
    ddprun_call call = {};
    call.size = sizeof call;
    call.operation = operation;
    call.in = &in, call.ins = 1, call.out = &out, call.outs = 1;
    call.tag = -1;
    INFO(operation);
    CHECK(ddprun_submit(group, &call, nullptr) == DDPRUN_OK);
    CHECK(ddprun_last_error() == std::string());
    CHECK(std::equal(values, values + 4, values + 4));
  }
  ddprun_memory_destroy(memory);
  ddprun_group_destroy(group);
}

}  // namespace
}  // namespace ddprun
