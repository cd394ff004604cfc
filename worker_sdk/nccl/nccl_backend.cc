// The life of the backend nccl: its stream, its memory, its end, and what is done on the host.
// nccl_enqueue.cc has the operations in the stream.

#include "worker_sdk/nccl/nccl_backend.h"

#include <cstdio>
#include <thread>
#include <utility>

#include "common/assert.h"
#include "worker_sdk/base/retry.h"
#include "worker_sdk/nccl/nccl_captured.h"
#include "worker_sdk/transport/self_backend.h"

namespace ddprun::worker_sdk {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kFinishPatience{5000};  // For the peers, that they finish, too.
constexpr std::chrono::microseconds kLookAgain{200};
constexpr milliseconds kAbortPatience{10000};
constexpr auto kHostDiagnosisPatience = std::chrono::seconds(30);

std::unique_ptr<HostBackend> beside(std::shared_ptr<const Roster> roster,
                                    std::unique_ptr<GlooBackend> gloo) {
  if (gloo) return gloo;
  return std::make_unique<SelfBackend>(std::move(roster));
}

}  // namespace

NcclBackend::NcclBackend(std::shared_ptr<const Roster> roster,
                         std::shared_ptr<NcclCommunicator> comm, std::unique_ptr<GlooBackend> gloo,
                         std::shared_ptr<NcclSiblings> siblings, NcclWindowWish windows)
    : roster_(std::move(roster)),
      gpu_(comm->runtime()),
      gloo_(gloo.get()),
      host_(beside(roster_, std::move(gloo))),
      comm_(std::move(comm)),
      windows_(windows),
      memory_(std::make_shared<NcclMemory>(*comm_)) {
  const GpuDeviceGuard current(*gpu_, comm_->device());
  require(*gpu_, current.status(), "cudaSetDevice");
  int least = 0, greatest = 0;
  gpu_->cuda.priority_range(&least, &greatest);
  require(*gpu_, gpu_->cuda.stream_create(&stream_, kCudaStreamNonBlocking, greatest),
          "cudaStreamCreate");
  try {
    ready_ = std::make_unique<GpuEvent>(gpu_, comm_->device(), kCudaEventDisableTiming);
    copied_ = std::make_unique<GpuEvent>(gpu_, comm_->device(), kCudaEventDisableTiming);
    watch_ = std::make_unique<NcclWatch>(roster_, *comm_, gloo_, std::move(siblings));
  } catch (...) {  // The destructor does not run then.
    gpu_->cuda.stream_destroy(stream_);
    throw;
  }
}

// Operations have deadlines, so the watch comes to an end.
NcclBackend::~NcclBackend() {
  const auto fate = watch_->fate();
  watch_.reset();
  if (fate->failing.load()) comm_->abort(kAbortPatience);  // It may only be revoked yet.
  memory_->end();
  if (!fate->failing.load()) comm_->finish(Clock::now() + kFinishPatience);
  const GpuDeviceGuard current(*gpu_, comm_->device());
  gpu_->cuda.stream_destroy(stream_);
  if (scratch_) gpu_->cuda.free(scratch_);
}

void NcclBackend::check(const Call& call) {
  if (aborted_.load()) {
    throw failure(*roster_, call, ErrorKind::aborted, -1, "this rank called abort()");
  }
  if (watch_->fate()->failing.load()) throw_fate(call);
}

// The failure itself for the first who hears of it.
void NcclBackend::throw_fate(const Call& call) {
  const auto fate = watch_->fate();
  std::unique_lock lock(fate->mutex);
  fate->changed.wait_for(lock, kHostDiagnosisPatience, [&] { return fate->failure.has_value(); });
  if (fate->failure && !fate->told.exchange(true)) throw Error(*fate->failure);
  throw failure(*roster_, call, ErrorKind::aborted, -1,
                std::string("this group is dead since: ") +
                    (fate->failure ? fate->failure->what() : "its communicator was aborted"));
}

bool NcclBackend::captured(Stream stream) {
  return is_captured(*gpu_, static_cast<CudaStream>(stream));
}

std::shared_ptr<const DeviceMark> NcclBackend::mark(Stream stream) {
  if (captured(stream)) return nullptr;
  const GpuDeviceGuard current(*gpu_, comm_->device());
  auto event = std::make_shared<GpuEvent>(gpu_, comm_->device(), kCudaEventDefault);
  event->record(static_cast<CudaStream>(stream));
  return event;
}

// CUDA itself would wait without end for what is in the stream, if the host's memory is part of a
// copy. So the stream is waited for before.
void NcclBackend::copy(void* to, const void* from, std::size_t bytes, std::optional<Stream> stream,
                       milliseconds timeout) {
  const std::lock_guard lock(mutex_);
  const auto start = Clock::now();
  const std::string what = "copy of " + std::to_string(bytes) + " bytes";
  const GpuDeviceGuard current(*gpu_, comm_->device());
  require(*gpu_, current.status(), "cudaSetDevice");
  const auto in = static_cast<CudaStream>(stream.value_or(nullptr));
  if (!stream) await_default_stream(what, start, timeout);
  require(*gpu_, gpu_->cuda.memcpy(to, from, bytes, kCudaMemcpyDefault, in), "cudaMemcpyAsync");
  if (!stream) await_default_stream(what, start, timeout);
}

void NcclBackend::zero(void* to, std::size_t bytes, std::optional<Stream> stream,
                       milliseconds timeout) {
  const std::lock_guard lock(mutex_);
  const auto start = Clock::now();
  const GpuDeviceGuard current(*gpu_, comm_->device());
  require(*gpu_, current.status(), "cudaSetDevice");
  const auto in = static_cast<CudaStream>(stream.value_or(nullptr));
  require(*gpu_, gpu_->cuda.memset(to, 0, bytes, in), "cudaMemsetAsync");
  if (!stream) await_default_stream("zero of " + std::to_string(bytes) + " bytes", start, timeout);
}

const GpuKernels& NcclBackend::kernels() {
  const std::lock_guard lock(mutex_);
  const GpuDeviceGuard current(*gpu_, comm_->device());
  if (!kernels_) kernels_ = std::make_unique<GpuKernels>(gpu_, comm_->device());
  return *kernels_;
}

void NcclBackend::settle(const std::string& what, std::optional<Stream> stream,
                         milliseconds timeout) {
  if (stream) return;
  const std::lock_guard lock(mutex_);
  const GpuDeviceGuard current(*gpu_, comm_->device());
  require(*gpu_, current.status(), "cudaSetDevice");
  await_default_stream(what, Clock::now(), timeout);
}

void NcclBackend::await_default_stream(const std::string& what, Clock::time_point start,
                                       milliseconds timeout) {
  constexpr int kQuickLooks = 1000;
  const auto deadline = deadline_after(start, timeout);
  copied_->record(nullptr);
  const auto fail = [&](ErrorKind kind, const std::string& text) {
    throw Error(kind,
                {.rank = roster_->rank,
                 .host = roster_->hosts[static_cast<std::size_t>(roster_->rank)],
                 .operation = what,
                 .waited = std::chrono::duration_cast<milliseconds>(Clock::now() - start)},
                text);
  };
  for (int look = 0;; ++look) {
    const int status = copied_->look();
    if (status == kCudaSuccess) return;
    if (status != kCudaNotReady) {
      fail(ErrorKind::system, std::string("CUDA says: ") + gpu_->cuda.error_string(status));
    }
    if (aborted_.load()) fail(ErrorKind::aborted, "this rank called abort()");
    if (Clock::now() >= deadline) {
      fail(ErrorKind::timed_out, "a kernel in CUDA's default stream does not end");
    }
    if (look < kQuickLooks) {
      std::this_thread::yield();
    } else {
      retry_until(Clock::now() + kLookAgain, [] { return false; });
    }
  }
}

// In a barrier the ranks meet on the host, after all that each has put into its stream is done.
void NcclBackend::carry_out(const Call& call, const Arrays& arrays) {
  check(call);
  const bool is_barrier = call.what.kind == OpKind::kBarrier;
  if (is_barrier) {
    watch_->wait_idle(call.deadline);
    check(call);
  }
  host_->carry_out(call, arrays);
  if (is_barrier && !memory_->released().empty()) agree_on_windows(call, false);
}

std::shared_ptr<void> NcclBackend::allocate(const Call& call, std::size_t bytes) {
  check(call);
  const std::size_t size = bytes == 0 ? 1 : bytes;
  std::shared_ptr<NcclMemory::Block> block;
  {
    const std::lock_guard lock(mutex_);
    const GpuDeviceGuard current(*gpu_, comm_->device());
    block = memory_->take(size);
    // If this throws, the memory stays: to free it would wait for the device, too.
    require(*gpu_, gpu_->cuda.memset(block->address, 0, size, nullptr), "cudaMemset");
    await_default_stream(to_string(call), call.start,
                         std::chrono::duration_cast<milliseconds>(call.deadline - call.start));
  }
  if (has_windows() && agree_on_windows(call, windows_.wanted && block->is_nccls)) {
    make_window(call, *block);
  }
  if (!block->window) memory_->enroll(*block);
  return memory_->share(std::move(block));
}

bool NcclBackend::has_windows() const {
  return roster_->size() > 1 && gpu_->features.windows && gpu_->nccl.window_register &&
         gpu_->nccl.window_deregister;
}

// Drops the windows that no rank uses any more. True: all ranks can make another one. Ranks that
// ask for different sizes, which NCCL would not notice, do not get through here.
bool NcclBackend::agree_on_windows(const Call& call, bool able) {
  DDPRUN_ASSERT(gloo_);  // There are no windows in a world of one.
  std::vector<std::int64_t> said = memory_->released();
  said.push_back(able ? 1 : 0);
  Call exchange = call;
  exchange.what.type = DataType::i64;
  exchange.what.op = ReduceOp::min;
  gloo_->all_reduce_among(exchange, gloo_->everybody(), buffer(said.data(), said.size()),
                          ReduceOp::min);
  const bool all = said.back() != 0;
  said.pop_back();
  memory_->drop(said);
  return all;
}

// Collective: it fails as any other operation does. Where no window can be had NCCL registers the
// memory as ncclCommRegister does, or does nothing, if NCCL_LOCAL_REGISTER is 0.
void NcclBackend::make_window(const Call& call, NcclMemory::Block& block) {
  const auto pending = put_behind(call, nullptr, [&] {
    return comm_->call([&](const NcclApi& nccl, NcclComm comm) {
      return nccl.window_register(comm, block.address, block.bytes, &block.window,
                                  kNcclWindowSymmetric);
    });
  });
  pending->wait_until(Clock::time_point::max());
  if (block.window || !windows_.tells || std::exchange(told_no_windows_, true)) return;
  std::fprintf(stderr,
               "ddprun: rank %d: NCCL makes no symmetric windows here; buffers are registered\n",
               roster_->rank);
}

void NcclBackend::abort() noexcept {
  aborted_.store(true);
  host_->abort();
  watch_->request_abort();
}

// The round's store ends, too: Gloo's part must not ask there for a reason.
void NcclBackend::dissolve() noexcept {
  aborted_.store(true);
  host_->dissolve();
  watch_->request_abort();
}

// Of what is in streams the watch knows itself; barriers and arrays of the host wait in Gloo.
void NcclBackend::lose(int rank, const std::string& why) noexcept { host_->lose(rank, why); }

std::shared_ptr<NcclCommunicator> NcclBackend::retire() {
  abort();
  const auto fate = watch_->fate();
  std::unique_lock lock(fate->mutex);
  fate->changed.wait_for(lock, kHostDiagnosisPatience, [&] { return fate->failure.has_value(); });
  return comm_->is_revoked() ? comm_ : nullptr;
}

}  // namespace ddprun::worker_sdk
