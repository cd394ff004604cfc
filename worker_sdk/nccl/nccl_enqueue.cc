// NcclBackend::enqueue(): an operation, as NCCL has it, is put into the stream, and nothing waits
// for it here but for NCCL to have put it there.

#include "common/assert.h"
#include "worker_sdk/nccl/nccl_backend.h"
#include "worker_sdk/nccl/nccl_captured.h"

namespace ddprun::worker_sdk {
namespace {

int type_of(DataType type) {
  switch (type) {
    case DataType::f32: return kNcclFloat32;
    case DataType::f64: return kNcclFloat64;
    case DataType::f16: return kNcclFloat16;
    case DataType::bf16: return kNcclBfloat16;
    case DataType::i32: return kNcclInt32;
    case DataType::i64: return kNcclInt64;
    case DataType::u8: return kNcclUint8;
  }
  return kNcclUint8;
}

int op_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum: return kNcclSum;
    case ReduceOp::avg: return kNcclAvg;  // Divides on the way, so that halves do not overflow.
    case ReduceOp::min: return kNcclMin;
    case ReduceOp::max: return kNcclMax;
    case ReduceOp::prod: return kNcclProd;
  }
  return kNcclSum;
}

// All but those that are made of several messages.
int call_nccl(const NcclApi& nccl, const Signature& what, const Arrays& arrays, NcclComm comm,
              CudaStream stream) {
  const Buffer in = arrays.in, out = arrays.out;
  const int type = type_of(what.type);
  switch (what.kind) {
    case OpKind::kAllReduce:
      return nccl.all_reduce(in.data, out.data, what.count, type, op_of(what.op), comm, stream);
    case OpKind::kReduceScatter:
      return nccl.reduce_scatter(in.data, out.data, what.count, type, op_of(what.op), comm, stream);
    case OpKind::kBroadcast:
      return nccl.broadcast(in.data, out.data, what.count, type, what.rank, comm, stream);
    case OpKind::kAllGather:
      return nccl.all_gather(in.data, out.data, what.count, type, comm, stream);
    case OpKind::kSend:
    case OpKind::kGather: return nccl.send(in.data, what.count, type, what.rank, comm, stream);
    case OpKind::kRecv:
    case OpKind::kScatter: return nccl.recv(out.data, what.count, type, what.rank, comm, stream);
    case OpKind::kAllToAll:
    case OpKind::kBarrier:
    case OpKind::kAllocate: break;
  }
  return kNcclInvalidUsage;
}

}  // namespace

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
    pending->end(stream_);  // There was none.
    throw;
  }
  if (well) pending->end(stream_);
  return pending;
}

std::shared_ptr<Pending> NcclBackend::capture(const Call& call, const Put& put) {
  watch_->keep_looking(call);
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
  if (what.count == 0) return kNcclSuccess;
  const auto* from = static_cast<const std::byte*>(arrays.in.data);
  auto* to = static_cast<std::byte*>(arrays.out.data);
  const bool is_root = what.rank == roster_->rank;
  const std::size_t my_part =
      what.count * size_of(what.type) * static_cast<std::size_t>(roster_->rank);
  if (what.kind == OpKind::kAllToAll) {
    return put_messages(what, from == to ? apart(arrays.in) : from, to);
  }
  if (what.kind == OpKind::kGather && is_root) {
    put_copy(to + my_part, from, arrays.in.bytes());
    return put_messages(what, nullptr, to);
  }
  if (what.kind == OpKind::kScatter && is_root) {
    put_copy(to, from + my_part, arrays.out.bytes());
    return put_messages(what, from, nullptr);
  }
  return comm_->call([&](const NcclApi& nccl, NcclComm comm) {
    return call_nccl(nccl, what, arrays, comm, stream_);
  });
}

// To each rank its part of `from`, and from each its part of `to`; where one of them is null, this
// rank has its part already. All at once, so that no message waits for another.
int NcclBackend::put_messages(const Signature& what, const std::byte* from, std::byte* to) {
  const int type = type_of(what.type);
  return comm_->call([&](const NcclApi& nccl, NcclComm comm) {
    int status = nccl.group_start();
    for (int r = 0; r < roster_->size() && status == kNcclSuccess; ++r) {
      if (r == roster_->rank && !(from && to)) continue;
      const std::size_t at = what.count * size_of(what.type) * static_cast<std::size_t>(r);
      if (from) status = nccl.send(from + at, what.count, type, r, comm, stream_);
      if (to && status == kNcclSuccess) {
        status = nccl.recv(to + at, what.count, type, r, comm, stream_);
      }
    }
    const int ended = nccl.group_end();
    return status == kNcclSuccess || status == kNcclInProgress ? ended : status;
  });
}

// NCCL sends and receives at the same time, so that the source must lie elsewhere.
const std::byte* NcclBackend::apart(Buffer in) {
  if (scratch_bytes_ < in.bytes()) {
    if (scratch_) gpu_->cuda.free(scratch_);  // CUDA waits for who uses it.
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

// Throws what CUDA says of it: no operation may go on with what was not copied.
void NcclBackend::put_copy(void* to, const void* from, std::size_t bytes) {
  if (to == from) return;
  require(*gpu_, gpu_->cuda.memcpy(to, from, bytes, kCudaMemcpyDefault, stream_),
          "cudaMemcpyAsync");
}

}  // namespace ddprun::worker_sdk
