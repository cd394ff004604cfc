// The life of the backend nccl: its stream, its memory, its end. The operations are in
// nccl_backend_move.cc.

#include "worker_sdk/nccl_backend.h"

#include <set>

namespace ddprun::worker_sdk {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kFinishPatience{5000};  // For the peers, that they finish, too.
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
                         std::unique_ptr<NcclCommunicator> comm, std::unique_ptr<Backend> host)
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
  watch_ = std::make_unique<NcclWatch>(roster_, *comm_, dynamic_cast<GlooBackend*>(host_.get()));
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

void NcclBackend::copy(void* to, const void* from, std::size_t bytes,
                       std::optional<Stream> stream) {
  const std::lock_guard lock(mutex_);
  require(*gpu_, gpu_->cuda.set_device(comm_->device()), "cudaSetDevice");
  const auto in = static_cast<CudaStream>(stream.value_or(nullptr));
  require(*gpu_, gpu_->cuda.memcpy(to, from, bytes, kCudaMemcpyDefault, in), "cudaMemcpyAsync");
  finish_copy(stream);
}

void NcclBackend::zero(void* to, std::size_t bytes, std::optional<Stream> stream) {
  const std::lock_guard lock(mutex_);
  require(*gpu_, gpu_->cuda.set_device(comm_->device()), "cudaSetDevice");
  const auto in = static_cast<CudaStream>(stream.value_or(nullptr));
  require(*gpu_, gpu_->cuda.memset(to, 0, bytes, in), "cudaMemsetAsync");
  finish_copy(stream);
}

void NcclBackend::finish_copy(std::optional<Stream> stream) {
  if (stream) return;
  copied_->record(nullptr);
  while (!copied_->passed()) std::this_thread::yield();
}

// The ranks meet on the host, after all that each has put into its stream is done.
void NcclBackend::barrier(const Call& call) {
  watch_->wait_idle(call.deadline);
  check(call);
  host_->barrier(call);
}

std::shared_ptr<void> NcclBackend::allocate(const Call&, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  require(*gpu_, gpu_->cuda.set_device(comm_->device()), "cudaSetDevice");
  void* memory = nullptr;
  const std::size_t size = bytes == 0 ? 1 : bytes;
  const bool ncclsown = gpu_->nccl.mem_alloc && gpu_->nccl.mem_alloc(&memory, size) == kNcclSuccess;
  if (!ncclsown) require(*gpu_, gpu_->cuda.malloc(&memory, size), "cudaMalloc");
  void* handle = registrations_->add(memory, size);
  std::shared_ptr<void> result(memory, [gpu = gpu_, registrations = registrations_, handle,
                                        ncclsown, device = comm_->device()](void* address) {
    if (handle) registrations->remove(handle);
    gpu->cuda.set_device(device);
    ncclsown ? gpu->nccl.mem_free(address) : gpu->cuda.free(address);
  });
  require(*gpu_, gpu_->cuda.memset(memory, 0, size, nullptr), "cudaMemset");
  finish_copy(std::nullopt);
  return result;
}

void NcclBackend::abort() noexcept {
  aborted_.store(true);
  host_->abort();
  watch_->request_abort();
}

}  // namespace ddprun::worker_sdk
