// The operations of the backend nccl, as NCCL has them. Each only puts work into the stream.

#include "worker_sdk/nccl/nccl_backend.h"

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

template <class Byte>
Byte* part(Byte* data, std::size_t bytes, int rank) {
  return data + bytes * static_cast<std::size_t>(rank);
}

}  // namespace

void NcclBackend::put(const Enqueue& enqueue) { status_ = comm_->call(enqueue); }

// Several messages at once, so that none waits for another.
void NcclBackend::put_messages(const Enqueue& enqueue) {
  put([&](const NcclApi& nccl, NcclComm comm) {
    int status = nccl.group_start();
    if (status == kNcclSuccess) status = enqueue(nccl, comm);
    const int ended = nccl.group_end();
    return status == kNcclSuccess || status == kNcclInProgress ? ended : status;
  });
}

void NcclBackend::all_reduce(const Call& call, Buffer inout) {
  if (inout.count == 0) return;
  put([&](const NcclApi& nccl, NcclComm comm) {
    return nccl.all_reduce(inout.data, inout.data, inout.count, type_of(inout.type),
                           op_of(call.what.op), comm, stream_);
  });
}

void NcclBackend::reduce_scatter(const Call& call, Buffer in, Buffer out) {
  if (out.count == 0) return;
  put([&](const NcclApi& nccl, NcclComm comm) {
    return nccl.reduce_scatter(in.data, out.data, out.count, type_of(out.type), op_of(call.what.op),
                               comm, stream_);
  });
}

void NcclBackend::broadcast(const Call& call, Buffer inout) {
  if (inout.count == 0) return;
  put([&](const NcclApi& nccl, NcclComm comm) {
    return nccl.broadcast(inout.data, inout.data, inout.count, type_of(inout.type), call.what.rank,
                          comm, stream_);
  });
}

void NcclBackend::all_gather(const Call&, Buffer in, Buffer out) {
  if (in.count == 0) return;
  put([&](const NcclApi& nccl, NcclComm comm) {
    return nccl.all_gather(in.data, out.data, in.count, type_of(in.type), comm, stream_);
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

void NcclBackend::all_to_all(const Call& call, Buffer in, Buffer out) {
  const std::size_t count = call.what.count, bytes = count * size_of(in.type);
  if (count == 0) return;
  const auto* from = in.data == out.data ? apart(in) : static_cast<const std::byte*>(in.data);
  auto* to = static_cast<std::byte*>(out.data);
  put_messages([&](const NcclApi& nccl, NcclComm comm) {
    int status = kNcclSuccess;
    for (int r = 0; r < roster_->size() && status == kNcclSuccess; ++r) {
      status = nccl.send(part(from, bytes, r), count, type_of(in.type), r, comm, stream_);
      if (status != kNcclSuccess) break;
      status = nccl.recv(part(to, bytes, r), count, type_of(in.type), r, comm, stream_);
    }
    return status;
  });
}

void NcclBackend::gather(const Call& call, Buffer in, Buffer out) {
  if (in.count == 0) return;
  if (call.what.rank != roster_->rank) return send(call, in);
  auto* to = static_cast<std::byte*>(out.data);
  put_copy(part(to, in.bytes(), roster_->rank), in.data, in.bytes());
  put_messages([&](const NcclApi& nccl, NcclComm comm) {
    int status = kNcclSuccess;
    for (int r = 0; r < roster_->size() && status == kNcclSuccess; ++r) {
      if (r == roster_->rank) continue;
      status = nccl.recv(part(to, in.bytes(), r), in.count, type_of(in.type), r, comm, stream_);
    }
    return status;
  });
}

void NcclBackend::scatter(const Call& call, Buffer in, Buffer out) {
  if (out.count == 0) return;
  if (call.what.rank != roster_->rank) return recv(call, out);
  const auto* from = static_cast<const std::byte*>(in.data);
  put_copy(out.data, part(from, out.bytes(), roster_->rank), out.bytes());
  put_messages([&](const NcclApi& nccl, NcclComm comm) {
    int status = kNcclSuccess;
    for (int r = 0; r < roster_->size() && status == kNcclSuccess; ++r) {
      if (r == roster_->rank) continue;
      status =
          nccl.send(part(from, out.bytes(), r), out.count, type_of(out.type), r, comm, stream_);
    }
    return status;
  });
}

void NcclBackend::send(const Call& call, Buffer in) {
  if (in.count == 0) return;
  put([&](const NcclApi& nccl, NcclComm comm) {
    return nccl.send(in.data, in.count, type_of(in.type), call.what.rank, comm, stream_);
  });
}

void NcclBackend::recv(const Call& call, Buffer out) {
  if (out.count == 0) return;
  put([&](const NcclApi& nccl, NcclComm comm) {
    return nccl.recv(out.data, out.count, type_of(out.type), call.what.rank, comm, stream_);
  });
}

}  // namespace ddprun::worker_sdk
