// NcclBackend::enqueue(): an operation, as NCCL has it, is put into the stream, and nothing waits
// for it here but for NCCL to have put it there.

#include "common/assert.h"
#include "worker_sdk/nccl/nccl_backend.h"
#include "worker_sdk/nccl/nccl_captured.h"

namespace ddprun::worker_sdk {
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

// "f32, f64, ...": those that NCCL has.
std::string own_types() {
  std::string names;
  for (const TypeFacts& facts : kDataTypes) {
    if (own_type_of(facts.type) < 0) continue;
    names += (names.empty() ? "" : ", ") + std::string(facts.name);
  }
  return names;
}

// As which an array travels: bytes, if NCCL does not have its type.
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

// All but those that are made of several messages.
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
  return arrays.ins.empty() ? "" : "NCCL wants the parts of a reduce_scatter to be one array";
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

// To each rank its part, and from each its part; where one of them is null, this rank has its part
// already. All at once, so that no message waits for another.
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
