// The life of the backend nccl: its stream, its memory, its end, and its work on the host. Below
// are the operations in the stream.

#include "worker_sdk/nccl/nccl_backend.h"

#include <cstdio>
#include <thread>
#include <utility>

#include "common/assert.h"
#include "worker_sdk/base/retry.h"
#include "worker_sdk/nccl/nccl_pending.h"
#include "worker_sdk/transport/backend.h"

namespace ddprun::worker_sdk {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kFinishPatience{5000};  // For the peers to finish, too.
constexpr std::chrono::microseconds kPollAgain{200};
constexpr auto kHostDiagnosisPatience = std::chrono::seconds(30);

std::unique_ptr<HostBackend> beside(std::shared_ptr<const Roster> roster,
                                    std::unique_ptr<GlooBackend> gloo) {
  if (gloo) return gloo;
  return std::make_unique<SelfBackend>(std::move(roster));
}

}  // namespace

NcclBackend::NcclBackend(std::shared_ptr<const Roster> roster,
                         std::shared_ptr<NcclCommunicator> comm, std::unique_ptr<GlooBackend> gloo,
                         std::shared_ptr<NcclSiblings> siblings, NcclWindowOptions windows)
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

// Operations have deadlines, so the watch ends.
NcclBackend::~NcclBackend() {
  const auto fate = watch_->fate();
  watch_.reset();
  if (fate->failing.load()) comm_->abort(kAbortPatience);  // It may only have been revoked.
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

// Throws the failure itself to the first caller, and to later ones that the group is dead.
void NcclBackend::throw_fate(const Call& call) {
  const auto fate = watch_->fate();
  std::unique_lock lock(fate->mutex);
  fate->changed.wait_for(lock, kHostDiagnosisPatience, [&] { return fate->failure.has_value(); });
  if (fate->failure && !fate->thrown.exchange(true)) throw Error(*fate->failure);
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
  constexpr int kQuickPolls = 1000;
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
  for (int poll = 0;; ++poll) {
    const int status = copied_->poll();
    if (status == kCudaSuccess) return;
    if (status != kCudaNotReady) {
      fail(ErrorKind::system, std::string("CUDA says: ") + gpu_->cuda.error_string(status));
    }
    if (aborted_.load()) fail(ErrorKind::aborted, "this rank called abort()");
    if (Clock::now() >= deadline) {
      fail(ErrorKind::timed_out, "a kernel in CUDA's default stream does not end");
    }
    if (poll < kQuickPolls) {
      std::this_thread::yield();
    } else {
      retry_until(Clock::now() + kPollAgain, [] { return false; });
    }
  }
}

// In a barrier the ranks meet on the host, after each rank's stream has done what was put into it
// before.
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

// Drops the windows that no rank uses any more. True: all ranks can make another one. Also stops
// ranks that request different sizes, which NCCL would not notice.
bool NcclBackend::agree_on_windows(const Call& call, bool able) {
  DDPRUN_ASSERT(gloo_);  // There are no windows in a world of one.
  std::vector<std::int64_t> figures = memory_->released();
  figures.push_back(able ? 1 : 0);
  Call exchange = call;
  exchange.what.type = DataType::i64;
  exchange.what.op = ReduceOp::min;
  gloo_->all_reduce_among(exchange, gloo_->all_ranks(), buffer(figures.data(), figures.size()),
                          ReduceOp::min);
  const bool all = figures.back() != 0;
  figures.pop_back();
  memory_->drop(figures);
  return all;
}

// Collective: fails like any other operation. If NCCL cannot make a window, it registers the memory
// as ncclCommRegister does, or does nothing if NCCL_LOCAL_REGISTER is 0.
void NcclBackend::make_window(const Call& call, NcclMemory::Block& block) {
  const auto pending = put_behind(call, nullptr, [&] {
    return comm_->call([&](const NcclApi& nccl, NcclComm comm) {
      return nccl.window_register(comm, block.address, block.bytes, &block.window,
                                  kNcclWindowSymmetric);
    });
  });
  pending->wait_until(Clock::time_point::max());
  if (block.window || !windows_.reports || std::exchange(reported_no_windows_, true)) return;
  std::fprintf(stderr,
               "ddprun: rank %d: NCCL makes no symmetric windows here; buffers are registered\n",
               roster_->rank);
}

void NcclBackend::abort() noexcept {
  aborted_.store(true);
  host_->abort();
  watch_->request_abort();
}

// The round's store ends, too, so Gloo's part must not search it for a reason.
void NcclBackend::dissolve() noexcept {
  aborted_.store(true);
  host_->dissolve();
  watch_->request_abort();
}

// The watch itself notices the loss for operations in streams; barriers and arrays of the host wait
// in Gloo.
void NcclBackend::lose(int rank, const std::string& why) noexcept { host_->lose(rank, why); }

std::shared_ptr<NcclCommunicator> NcclBackend::retire() {
  abort();
  const auto fate = watch_->fate();
  std::unique_lock lock(fate->mutex);
  fate->changed.wait_for(lock, kHostDiagnosisPatience, [&] { return fate->failure.has_value(); });
  return comm_->is_revoked() ? comm_ : nullptr;
}

// NcclBackend::enqueue(): puts an operation into the stream and waits only until NCCL has put it
// there.

namespace {

// -1: NCCL has none of this type.
int own_type_of(DataType type) {
  switch (type) {
    case DataType::f32: return kNcclFloat32;
    case DataType::f64: return kNcclFloat64;
    case DataType::f16: return kNcclFloat16;
    case DataType::bf16: return kNcclBfloat16;
    case DataType::i32: return kNcclInt32;
    case DataType::i64: return kNcclInt64;
    case DataType::u8: return kNcclUint8;
    case DataType::i8: return kNcclInt8;
    case DataType::u32: return kNcclUint32;
    case DataType::u64: return kNcclUint64;
    case DataType::i16:
    case DataType::u16:
    case DataType::boolean:
    case DataType::c64:
    case DataType::c128: break;
  }
  return -1;
}

// The names of the types that NCCL has: "f32, f64, ...".
std::string own_types() {
  std::string names;
  for (const TypeFacts& facts : kDataTypes) {
    if (own_type_of(facts.type) < 0) continue;
    names += (names.empty() ? "" : ", ") + std::string(facts.name);
  }
  return names;
}

// The type as which an array travels: bytes, if NCCL does not have its type.
int type_of(DataType type) {
  const int own = own_type_of(type);
  return own < 0 ? kNcclUint8 : own;
}
std::size_t count_of(DataType type, std::size_t count) {
  return own_type_of(type) < 0 ? count * size_of(type) : count;
}

// -1: NCCL has none like it.
int op_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum: return kNcclSum;
    case ReduceOp::avg: return kNcclAvg;  // Divides on the way, so that halves do not overflow.
    case ReduceOp::min: return kNcclMin;
    case ReduceOp::max: return kNcclMax;
    case ReduceOp::prod: return kNcclProd;
    case ReduceOp::band:
    case ReduceOp::bor:
    case ReduceOp::bxor:
    case ReduceOp::premul_sum: break;
  }
  return -1;
}

// All operations except those that are made of several messages.
int call_nccl(const NcclApi& nccl, const Signature& what, const Arrays& arrays, NcclComm comm,
              CudaStream stream) {
  const Buffer in = arrays.in, out = arrays.out;
  const int type = type_of(what.type);
  const std::size_t count = count_of(what.type, what.count);
  switch (what.kind) {
    case OpKind::kAllReduce:
      return nccl.all_reduce(in.data, out.data, count, type, op_of(what.op), comm, stream);
    case OpKind::kReduceScatter:
      return nccl.reduce_scatter(in.data, out.data, count, type, op_of(what.op), comm, stream);
    case OpKind::kReduce:
      return nccl.reduce(in.data, out.data, count, type, op_of(what.op), what.rank, comm, stream);
    case OpKind::kBroadcast:
      return nccl.broadcast(in.data, out.data, count, type, what.rank, comm, stream);
    case OpKind::kAllGather: return nccl.all_gather(in.data, out.data, count, type, comm, stream);
    case OpKind::kSend:
    case OpKind::kGather: return nccl.send(in.data, count, type, what.rank, comm, stream);
    case OpKind::kRecv:
    case OpKind::kScatter: return nccl.recv(out.data, count, type, what.rank, comm, stream);
    case OpKind::kAllToAll:
    case OpKind::kBarrier:
    case OpKind::kAllocate: break;
  }
  return kNcclInvalidUsage;
}

}  // namespace

std::string NcclBackend::refusal(const Signature& what, const Arrays& arrays) const {
  if (!is_reduction(what.kind)) return {};
  if (own_type_of(what.type) < 0) {
    return std::string("NCCL does not reduce ") + name_of(what.type) + ", but " + own_types();
  }
  if (op_of(what.op) < 0) return std::string("NCCL has no ") + name_of(what.op);
  return arrays.ins.empty() ? "" : "NCCL requires the parts of a reduce_scatter to be one array";
}

std::shared_ptr<Pending> NcclBackend::enqueue(const Call& call, const Arrays& arrays,
                                              Stream stream) {
  DDPRUN_ASSERT(call.what.kind != OpKind::kBarrier && call.what.kind != OpKind::kAllocate);
  check(call);
  return put_behind(call, stream, [&] { return put_operation(call.what, arrays); });
}

std::shared_ptr<Pending> NcclBackend::put_behind(const Call& call, Stream stream, const Put& put) {
  const std::lock_guard lock(mutex_);
  const GpuDeviceGuard current(*gpu_, comm_->device());
  require(*gpu_, current.status(), "cudaSetDevice");
  const auto after = static_cast<CudaStream>(stream);
  ready_->record(after);
  ready_->hold_up(stream_);
  if (is_captured(*gpu_, after)) return capture(call, put);
  auto pending = std::make_shared<NcclPending>(gpu_, comm_->device(), call, watch_->fate());
  pending->begin(stream_);
  watch_->add(pending);  // NCCL may wait for peers already to put the operation into the stream.
  bool well = false;
  try {
    well = put_into_stream(call, put);
  } catch (...) {
    pending->end(stream_);  // There was no operation.
    throw;
  }
  if (well) pending->end(stream_);
  return pending;
}

std::shared_ptr<Pending> NcclBackend::capture(const Call& call, const Put& put) {
  watch_->keep_polling(call);
  if (put_into_stream(call, put)) {
    return std::make_shared<NcclCaptured>(gpu_, comm_->device(), call, watch_->fate(), stream_);
  }
  auto refused = std::make_shared<NcclPending>(gpu_, comm_->device(), call, watch_->fate());
  watch_->add(refused);
  return refused;
}

// False: NCCL refused, so that the end will never be in the stream. Some of NCCL's functions return
// success although they are in progress (ncclCommWindowRegister since 2.28, ncclAllReduce up to
// 2.23), so all are settled.
bool NcclBackend::put_into_stream(const Call& call, const Put& put) {
  int status = put();
  if (status == kNcclSuccess || status == kNcclInProgress) {
    status = comm_->settle([&] {
      return watch_->fate()->failing.load() || aborted_.load() || Clock::now() >= call.deadline;
    });
  }
  if (status == kNcclSuccess) return true;
  status == kNcclInProgress ? watch_->overdue() : watch_->fate()->failing.store(true);
  return false;
}

int NcclBackend::put_operation(const Signature& what, const Arrays& arrays) {
  if (what.count == 0 && what.parts == 0) return kNcclSuccess;
  const bool is_root = what.rank == roster_->rank;
  const auto in_part = [&](int r) { return arrays.in_part(r, what.count); };
  const auto out_part = [&](int r) { return arrays.out_part(r, what.count); };
  const auto none = [](int) { return Buffer(); };
  const int me = roster_->rank;
  if (what.kind == OpKind::kAllToAll) {
    if (arrays.in.data != arrays.out.data || !arrays.ins.empty()) {
      return put_messages(in_part, out_part);
    }
    const Arrays moved{{const_cast<std::byte*>(apart(arrays.in)), arrays.in.count, what.type}};
    return put_messages([&](int r) { return moved.in_part(r, what.count); }, out_part);
  }
  if (what.kind == OpKind::kAllGather && !arrays.outs.empty()) {
    return put_messages([&](int) { return arrays.in; }, out_part);
  }
  if (what.kind == OpKind::kGather && is_root) {
    put_copy(out_part(me).data, arrays.in.data, arrays.in.bytes());
    return put_messages(none, out_part);
  }
  if (what.kind == OpKind::kScatter && is_root) {
    put_copy(arrays.out.data, in_part(me).data, arrays.out.bytes());
    return put_messages(in_part, none);
  }
  return comm_->call([&](const NcclApi& nccl, NcclComm comm) {
    return call_nccl(nccl, what, arrays, comm, stream_);
  });
}

// Sends each rank its part, and receives a part from each. Where a part is null, this rank has its
// part already. All in one NCCL group, so that no message waits for another.
int NcclBackend::put_messages(const PartOf& from, const PartOf& to) {
  return comm_->call([&](const NcclApi& nccl, NcclComm comm) {
    int status = nccl.group_start();
    for (int r = 0; r < roster_->size() && status == kNcclSuccess; ++r) {
      const Buffer in = from(r), out = to(r);
      if (r == roster_->rank && !(in.data && out.data)) continue;
      if (in.count > 0) {
        status =
            nccl.send(in.data, count_of(in.type, in.count), type_of(in.type), r, comm, stream_);
      }
      if (out.count > 0 && status == kNcclSuccess) {
        status =
            nccl.recv(out.data, count_of(out.type, out.count), type_of(out.type), r, comm, stream_);
      }
    }
    const int ended = nccl.group_end();
    return status == kNcclSuccess || status == kNcclInProgress ? ended : status;
  });
}

// NCCL sends and receives at the same time, so that the source must lie elsewhere.
const std::byte* NcclBackend::apart(Buffer in) {
  if (scratch_bytes_ < in.bytes()) {
    if (scratch_) gpu_->cuda.free(scratch_);  // CUDA waits for its users.
    scratch_ = nullptr;
    scratch_bytes_ = 0;
    if (gpu_->cuda.malloc(&scratch_, in.bytes()) != kCudaSuccess) {
      throw Error(ErrorKind::system, {.rank = roster_->rank, .operation = "all_to_all in place"},
                  "no device memory for " + std::to_string(in.bytes()) + " bytes");
    }
    scratch_bytes_ = in.bytes();
  }
  put_copy(scratch_, in.data, in.bytes());
  return static_cast<const std::byte*>(scratch_);
}

// Throws CUDA's error: no operation may continue if its data was not copied.
void NcclBackend::put_copy(void* to, const void* from, std::size_t bytes) {
  if (to == from) return;
  require(*gpu_, gpu_->cuda.memcpy(to, from, bytes, kCudaMemcpyDefault, stream_),
          "cudaMemcpyAsync");
}

}  // namespace ddprun::worker_sdk
