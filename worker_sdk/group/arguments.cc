#include "worker_sdk/group/arguments.h"

namespace ddprun::worker_sdk {
namespace {

Signature signature(OpKind kind, const Buffer& counted, int rank = -1,
                    ReduceOp op = ReduceOp::sum) {
  return {.kind = kind, .type = counted.type, .op = op, .rank = rank, .count = counted.count};
}

}  // namespace

void Arguments::refuse(const Signature& what, const std::string& text) const {
  throw Error(ErrorKind::bad_argument,
              {.rank = roster_->rank,
               .host = roster_->hosts[static_cast<std::size_t>(roster_->rank)],
               .operation = to_string(what)},
              text);
}

void Arguments::check_buffer(const Signature& what, const Buffer& buffer) const {
  const std::size_t element = size_of(buffer.type);
  if (element == 0) refuse(what, "unknown element type");
  if (buffer.count > std::size_t{1} << 56) refuse(what, "too many elements");
  if (!buffer.data && buffer.count > 0) refuse(what, "the array is null");
  if (reinterpret_cast<std::uintptr_t>(buffer.data) % element != 0) {
    refuse(what, "the array is not aligned to its elements");
  }
}

void Arguments::check_op(const Signature& what) const {
  if (what.op > ReduceOp::prod) refuse(what, "unknown reduction");
  const bool integers =
      what.type == DataType::i32 || what.type == DataType::i64 || what.type == DataType::u8;
  if (what.op == ReduceOp::avg && integers) refuse(what, "an average of integers is not defined");
}

void Arguments::check_rank(const Signature& what) const {
  if (what.rank >= 0 && what.rank < roster_->size()) return;
  refuse(what, "there is no rank " + std::to_string(what.rank) + " in a world of " +
                   std::to_string(roster_->size()));
}

void Arguments::check_not_self(const Signature& what) const {
  check_rank(what);
  if (what.rank == roster_->rank) refuse(what, "a rank cannot send to itself");
}

void Arguments::check_parts(const Signature& what, const Buffer& part, const Buffer& whole,
                            const char* name) const {
  check_buffer(what, part);
  check_buffer(what, whole);
  const auto n = static_cast<std::size_t>(roster_->size());
  if (whole.type == part.type && whole.count == part.count * n) return;
  refuse(what, std::string("the ") + name + " must hold world_size * " +
                   std::to_string(part.count) + " elements of the same type");
}

Operation Arguments::all_reduce(const Buffer& inout, ReduceOp op) const {
  const Signature what = signature(OpKind::kAllReduce, inout, -1, op);
  check_buffer(what, inout);
  check_op(what);
  return {what, {inout, inout}};
}

Operation Arguments::reduce_scatter(const Buffer& in, const Buffer& out, ReduceOp op) const {
  const Signature what = signature(OpKind::kReduceScatter, out, -1, op);
  check_parts(what, out, in, "input");
  check_op(what);
  return {what, {in, out}};
}

Operation Arguments::broadcast(const Buffer& inout, int root) const {
  const Signature what = signature(OpKind::kBroadcast, inout, root);
  check_buffer(what, inout);
  check_rank(what);
  return {what, {inout, inout}};
}

Operation Arguments::all_gather(const Buffer& in, const Buffer& out) const {
  const Signature what = signature(OpKind::kAllGather, in);
  check_parts(what, in, out, "output");
  return {what, {in, out}};
}

Operation Arguments::all_to_all(const Buffer& in, const Buffer& out) const {
  const auto n = static_cast<std::size_t>(roster_->size());
  Signature what = signature(OpKind::kAllToAll, in);
  what.count /= n;
  check_buffer(what, in);
  check_buffer(what, out);
  if (in.count % n != 0) {
    refuse(what, "the " + std::to_string(in.count) + " elements cannot be divided by " +
                     std::to_string(n) + " ranks");
  }
  if (out.type != in.type || out.count != in.count) {
    refuse(what, "the output must hold as many elements as the input, of the same type");
  }
  return {what, {in, out}};
}

Operation Arguments::gather(const Buffer& in, const Buffer& out, int root) const {
  const Signature what = signature(OpKind::kGather, in, root);
  check_rank(what);
  check_buffer(what, in);
  if (root == roster_->rank) check_parts(what, in, out, "output");
  return {what, {in, out}};
}

Operation Arguments::scatter(const Buffer& in, const Buffer& out, int root) const {
  const Signature what = signature(OpKind::kScatter, out, root);
  check_rank(what);
  check_buffer(what, out);
  if (root == roster_->rank) check_parts(what, out, in, "input");
  return {what, {in, out}};
}

Operation Arguments::send(const Buffer& in, int destination) const {
  const Signature what = signature(OpKind::kSend, in, destination);
  check_buffer(what, in);
  check_not_self(what);
  return {what, {in, {}}};
}

Operation Arguments::recv(const Buffer& out, int source) const {
  const Signature what = signature(OpKind::kRecv, out, source);
  check_buffer(what, out);
  check_not_self(what);
  return {what, {{}, out}};
}

}  // namespace ddprun::worker_sdk
