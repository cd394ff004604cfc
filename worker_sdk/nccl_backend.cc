// The life of the backend nccl: its stream, its memory, its end. The operations are in
// nccl_backend_move.cc.

#include "worker_sdk/nccl_backend.h"

#include <set>
#include <thread>

#include "worker_sdk/retry.h"

namespace ddprun::worker_sdk {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kFinishPatience{5000};  // For the peers, that they finish, too.
constexpr std::chrono::microseconds kLookAgain{200};
constexpr auto kDiagnosisPatience = std::chrono::seconds(30);

void require(const GpuRuntime& gpu, int status, const char* what) {
  if (status == kCudaSuccess) return;
  throw Error(ErrorKind::system, {.operation = what},
              std::string("CUDA says: ") + gpu.cuda.error_string(status));
}

}  // namespace

struct NcclBackend::Registrations {
  std::mutex mutex;
  NcclCommunicator* comm = nullptr;  // Null: it is gone, and took them along.
  std::set<void*> handles;

  void* add(void* memory, std::size_t bytes) {
    const std::lock_guard lock(mutex);
    void* handle = nullptr;
    const int status = comm->call([&](const NcclApi& nccl, NcclComm c) {
      return nccl.comm_register ? nccl.comm_register(c, memory, bytes, &handle) : kNcclInvalidUsage;
    });
    if (status != kNcclSuccess || !handle) return nullptr;  // It works without, only slower.
    handles.insert(handle);
    return handle;
  }
  void remove(void* handle) {
    const std::lock_guard lock(mutex);
    if (!comm || handles.erase(handle) == 0) return;
    comm->call([&](const NcclApi& nccl, NcclComm c) { return nccl.comm_deregister(c, handle); });
  }
  void remove_all() {
    while (!handles.empty()) remove(*handles.begin());
    const std::lock_guard lock(mutex);
    comm = nullptr;
  }
};

NcclBackend::NcclBackend(std::shared_ptr<const Roster> roster,
                         std::unique_ptr<NcclCommunicator> comm, std::unique_ptr<Backend> host,
                         std::shared_ptr<NcclSiblings> siblings)
    : roster_(std::move(roster)),
      gpu_(comm->runtime()),
      host_(std::move(host)),
      comm_(std::move(comm)),
      registrations_(std::make_shared<Registrations>()) {
  registrations_->comm = comm_.get();
  require(*gpu_, gpu_->cuda.set_device(comm_->device()), "cudaSetDevice");
  int least = 0, greatest = 0;
  gpu_->cuda.priority_range(&least, &greatest);
  require(*gpu_, gpu_->cuda.stream_create(&stream_, kCudaStreamNonBlocking, greatest),
          "cudaStreamCreate");
  ready_ = std::make_unique<GpuEvent>(gpu_, comm_->device(), kCudaEventDisableTiming);
  copied_ = std::make_unique<GpuEvent>(gpu_, comm_->device(), kCudaEventDisableTiming);
  watch_ = std::make_unique<NcclWatch>(roster_, *comm_, dynamic_cast<GlooBackend*>(host_.get()),
                                       std::move(siblings));
}

// Operations have deadlines, so the watch comes to an end.
NcclBackend::~NcclBackend() {
  const auto fate = watch_->fate();
  watch_.reset();
  registrations_->remove_all();
  if (!fate->failing.load()) comm_->finish(Clock::now() + kFinishPatience);
  gpu_->cuda.set_device(comm_->device());
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
  fate->changed.wait_for(lock, kDiagnosisPatience, [&] { return fate->failure.has_value(); });
  if (fate->failure && !fate->told.exchange(true)) throw Error(*fate->failure);
  throw failure(*roster_, call, ErrorKind::aborted, -1,
                std::string("this group is dead since: ") +
                    (fate->failure ? fate->failure->what() : "its communicator was aborted"));
}

std::shared_ptr<const DeviceMark> NcclBackend::mark(Stream stream) {
  auto event = std::make_shared<GpuEvent>(gpu_, comm_->device(), kCudaEventDefault);
  event->record(static_cast<CudaStream>(stream));
  return event;
}

std::shared_ptr<Pending> NcclBackend::launch(const Call& call, Stream stream,
                                             const std::function<void()>& enqueue) {
  const std::lock_guard lock(mutex_);
  require(*gpu_, gpu_->cuda.set_device(comm_->device()), "cudaSetDevice");
  auto pending = std::make_shared<NcclPending>(gpu_, comm_->device(), call, watch_->fate());
  ready_->record(static_cast<CudaStream>(stream));
  ready_->hold_up(stream_);
  pending->begin(stream_);
  status_ = kNcclSuccess;
  enqueue();
  if (status_ == kNcclInProgress) {
    status_ = comm_->settle([&] {
      return watch_->fate()->failing.load() || aborted_.load() || Clock::now() >= call.deadline;
    });
  }
  if (status_ == kNcclSuccess) {
    pending->end(stream_);
  } else {
    watch_->fate()->failing.store(true);  // Its end was never put into the stream.
  }
  watch_->add(pending);
  return pending;
}

// CUDA itself would wait without end for what is in the stream, if the host's memory is part of a
// copy. So the stream is waited for before.
void NcclBackend::copy(void* to, const void* from, std::size_t bytes, std::optional<Stream> stream,
                       milliseconds timeout) {
  const std::lock_guard lock(mutex_);
  const auto start = Clock::now();
  const std::string what = "copy of " + std::to_string(bytes) + " bytes";
  require(*gpu_, gpu_->cuda.set_device(comm_->device()), "cudaSetDevice");
  const auto in = static_cast<CudaStream>(stream.value_or(nullptr));
  if (!stream) await_default_stream(what, start, timeout);
  require(*gpu_, gpu_->cuda.memcpy(to, from, bytes, kCudaMemcpyDefault, in), "cudaMemcpyAsync");
  if (!stream) await_default_stream(what, start, timeout);
}

void NcclBackend::zero(void* to, std::size_t bytes, std::optional<Stream> stream,
                       milliseconds timeout) {
  const std::lock_guard lock(mutex_);
  const auto start = Clock::now();
  require(*gpu_, gpu_->cuda.set_device(comm_->device()), "cudaSetDevice");
  const auto in = static_cast<CudaStream>(stream.value_or(nullptr));
  require(*gpu_, gpu_->cuda.memset(to, 0, bytes, in), "cudaMemsetAsync");
  if (!stream) await_default_stream("zero of " + std::to_string(bytes) + " bytes", start, timeout);
}

void NcclBackend::await_default_stream(const std::string& what, Clock::time_point start,
                                       milliseconds timeout) {
  constexpr int kQuickLooks = 1000;
  copied_->record(nullptr);
  const auto fail = [&](ErrorKind kind, const std::string& text) {
    throw Error(kind,
                {.rank = roster_->rank,
                 .host = roster_->hosts[static_cast<std::size_t>(roster_->rank)],
                 .operation = what,
                 .waited = std::chrono::duration_cast<milliseconds>(Clock::now() - start)},
                text);
  };
  for (int look = 0; !copied_->passed(); ++look) {
    if (aborted_.load()) fail(ErrorKind::aborted, "this rank called abort()");
    if (Clock::now() >= start + timeout) {
      fail(ErrorKind::timed_out, "a kernel in CUDA's default stream does not end");
    }
    if (look < kQuickLooks) {
      std::this_thread::yield();
    } else {
      retry_until(Clock::now() + kLookAgain, [] { return false; });
    }
  }
}

// The ranks meet on the host, after all that each has put into its stream is done.
void NcclBackend::barrier(const Call& call) {
  watch_->wait_idle(call.deadline);
  check(call);
  host_->barrier(call);
}

std::shared_ptr<void> NcclBackend::allocate(const Call& call, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  require(*gpu_, gpu_->cuda.set_device(comm_->device()), "cudaSetDevice");
  void* memory = nullptr;
  const std::size_t size = bytes == 0 ? 1 : bytes;
  const bool ncclsown = gpu_->nccl.mem_alloc && gpu_->nccl.mem_alloc(&memory, size) == kNcclSuccess;
  if (!ncclsown) require(*gpu_, gpu_->cuda.malloc(&memory, size), "cudaMalloc");
  // If this throws, the memory stays: to free it would wait for the device, too.
  require(*gpu_, gpu_->cuda.memset(memory, 0, size, nullptr), "cudaMemset");
  await_default_stream(to_string(call), call.start,
                       std::chrono::duration_cast<milliseconds>(call.deadline - call.start));
  void* handle = registrations_->add(memory, size);
  return std::shared_ptr<void>(memory, [gpu = gpu_, registrations = registrations_, handle,
                                        ncclsown, device = comm_->device()](void* address) {
    // Kernels may still use it, and ncclMemFree does not wait for them as cudaFree does.
    gpu->cuda.set_device(device);
    gpu->cuda.device_synchronize();
    if (handle) registrations->remove(handle);
    ncclsown ? gpu->nccl.mem_free(address) : gpu->cuda.free(address);
  });
}

void NcclBackend::abort() noexcept {
  aborted_.store(true);
  host_->abort();
  watch_->request_abort();
}

}  // namespace ddprun::worker_sdk
