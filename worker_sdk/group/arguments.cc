#include "worker_sdk/group/arguments.h"

#include <algorithm>

namespace ddprun::worker_sdk {
namespace {

// A complex number is aligned as its parts are.
std::size_t alignment_of(DataType type) {
  return is_of(type, TypeClass::complex) ? size_of(type) / 2 : size_of(type);
}

// Never 0 nor kOwnParts. FNV-1a.
std::uint64_t list_number(const std::vector<Buffer>& parts) {
  std::uint64_t hash = 14695981039346656037U;
  for (const Buffer& part : parts) {
    for (int i = 0; i < 64; i += 8) hash = (hash ^ (part.count >> i & 0xff)) * 1099511628211U;
  }
  return (hash & ~std::uint64_t{3}) | 2;
}

bool are_equal(const std::vector<Buffer>& parts) {
  return std::all_of(parts.begin(), parts.end(),
                     [&](const Buffer& part) { return part.count == parts.front().count; });
}

bool overlap(const Buffer& a, const Buffer& b) {
  const auto begin = [](const Buffer& x) { return reinterpret_cast<std::uintptr_t>(x.data); };
  return begin(a) < begin(b) + b.bytes() && begin(b) < begin(a) + a.bytes();
}

Arrays arrays_of(const PartsBuffer& in, const PartsBuffer& out) {
  return {in.whole, out.whole, in.parts, out.parts};
}

Signature signature(OpKind kind, const Buffer& counted, int rank = -1,
                    ReduceOp op = ReduceOp::sum) {
  return {.kind = kind, .type = counted.type, .op = op, .rank = rank, .count = counted.count};
}

}  // namespace

void Arguments::refuse(const Signature& what, const std::string& text) const {
  throw Error(ErrorKind::bad_argument, roster_->here(to_string(what)), text);
}

void Arguments::check_buffer(const Signature& what, const Buffer& buffer) const {
  if (!is_known(buffer.type)) refuse(what, "unknown element type");
  if (buffer.count > std::size_t{1} << 56) refuse(what, "too many elements");
  if (!buffer.data && buffer.count > 0) refuse(what, "the array is null");
  if (reinterpret_cast<std::uintptr_t>(buffer.data) % alignment_of(buffer.type) != 0) {
    refuse(what, "the array is not aligned to its elements");
  }
}

void Arguments::check_op(const Signature& what) const {
  if (what.op > kLastReduceOp) refuse(what, "unknown reduction");
  if (is_defined(what.type, what.op)) return;
  const bool average = what.op == ReduceOp::avg;
  refuse(what,
         average ? "an average of integers is not defined"
                 : std::string(name_of(what.op)) + " of " + name_of(what.type) + " is not defined");
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

void Arguments::check_parts(const Signature& what, const Buffer& part, const PartsBuffer& whole,
                            const char* name) const {
  check_buffer(what, part);
  const auto n = static_cast<std::size_t>(roster_->size());
  if (whole.is_apart()) {
    check_apart(what, whole.parts, part.type);
    if (are_equal(whole.parts) && whole.parts.front().count == part.count) return;
  } else {
    check_buffer(what, whole.whole);
    if (whole.whole.type == part.type && whole.whole.count == part.count * n) return;
  }
  refuse(what, std::string("the ") + name + " must hold world_size * " +
                   std::to_string(part.count) + " elements of the same type");
}

void Arguments::check_apart(const Signature& what, const std::vector<Buffer>& parts,
                            DataType type) const {
  if (parts.size() != static_cast<std::size_t>(roster_->size())) {
    refuse(what, "there are " + std::to_string(parts.size()) + " arrays for " +
                     std::to_string(roster_->size()) + " ranks");
  }
  for (const Buffer& part : parts) {
    check_buffer(what, part);
    if (part.type != type) refuse(what, "the arrays are not of one type");
  }
}

void Arguments::list_parts(Signature& what, const std::vector<Buffer>& parts,
                           const Buffer& mine) const {
  check_buffer(what, mine);
  check_apart(what, parts, mine.type);
  const std::size_t place = parts[static_cast<std::size_t>(roster_->rank)].count;
  if (place != mine.count) {
    refuse(what, "the array for this rank has " + std::to_string(place) + " elements, not " +
                     std::to_string(mine.count));
  }
  if (are_equal(parts)) return;
  what.parts = list_number(parts);
  what.count = 0;
  for (const Buffer& part : parts) what.count += part.count;
}

Operation Arguments::all_reduce(const Buffer& inout, ReduceOp op) const {
  const Signature what = signature(OpKind::kAllReduce, inout, -1, op);
  check_buffer(what, inout);
  check_op(what);
  return {what, {inout, inout}};
}

Operation Arguments::reduce(const Buffer& in, const Buffer& out, int root, ReduceOp op) const {
  const Signature what = signature(OpKind::kReduce, in, root, op);
  check_rank(what);
  check_buffer(what, in);
  check_op(what);
  if (root != roster_->rank) return {what, {in, {}}};
  check_buffer(what, out);
  if (out.type != in.type || out.count != in.count) {
    refuse(what, "the output must hold as many elements as the input, of the same type");
  }
  return {what, {in, out}};
}

Operation Arguments::reduce_scatter(const PartsBuffer& in, const Buffer& out, ReduceOp op) const {
  Signature what = signature(OpKind::kReduceScatter, out, -1, op);
  check_op(what);
  if (!in.is_apart()) check_parts(what, out, in, "input");
  if (in.is_apart()) list_parts(what, in.parts, out);
  return {what, arrays_of(in, out)};
}

Operation Arguments::broadcast(const Buffer& inout, int root) const {
  const Signature what = signature(OpKind::kBroadcast, inout, root);
  check_buffer(what, inout);
  check_rank(what);
  return {what, {inout, inout}};
}

Operation Arguments::all_gather(const Buffer& in, const PartsBuffer& out) const {
  Signature what = signature(OpKind::kAllGather, in);
  if (!out.is_apart()) check_parts(what, in, out, "output");
  if (out.is_apart()) list_parts(what, out.parts, in);
  return {what, arrays_of(in, out)};
}

Operation Arguments::all_to_all(const PartsBuffer& in, const PartsBuffer& out) const {
  if (in.is_apart() || out.is_apart()) return all_to_all_apart(in, out);
  const auto n = static_cast<std::size_t>(roster_->size());
  Signature what = signature(OpKind::kAllToAll, in.whole);
  what.count /= n;
  check_buffer(what, in.whole);
  check_buffer(what, out.whole);
  if (in.whole.count % n != 0) {
    refuse(what, "the " + std::to_string(in.whole.count) + " elements cannot be divided by " +
                     std::to_string(n) + " ranks");
  }
  if (out.whole.type != in.whole.type || out.whole.count != in.whole.count) {
    refuse(what, "the output must hold as many elements as the input, of the same type");
  }
  return {what, arrays_of(in, out)};
}

// Each rank has its own lists; whether they fit together is checked when they meet.
Operation Arguments::all_to_all_apart(const PartsBuffer& in, const PartsBuffer& out) const {
  const DataType type = in.parts.empty() ? in.whole.type : in.parts.front().type;
  const Signature what{.kind = OpKind::kAllToAll, .type = type, .parts = kOwnParts};
  check_apart(what, in.parts, type);
  check_apart(what, out.parts, type);
  const auto me = static_cast<std::size_t>(roster_->rank);
  if (in.parts[me].count != out.parts[me].count) {
    refuse(what, "this rank sends itself " + std::to_string(in.parts[me].count) +
                     " elements, and expects " + std::to_string(out.parts[me].count));
  }
  for (const Buffer& from : in.parts) {
    for (const Buffer& to : out.parts) {
      if (overlap(from, to)) refuse(what, "an input and an output share memory");
    }
  }
  return {what, arrays_of(in, out)};
}

Operation Arguments::gather(const Buffer& in, const PartsBuffer& out, int root) const {
  const Signature what = signature(OpKind::kGather, in, root);
  check_rank(what);
  check_buffer(what, in);
  if (root != roster_->rank) return {what, {in, {}}};
  check_parts(what, in, out, "output");
  return {what, arrays_of(in, out)};
}

Operation Arguments::scatter(const PartsBuffer& in, const Buffer& out, int root) const {
  const Signature what = signature(OpKind::kScatter, out, root);
  check_rank(what);
  check_buffer(what, out);
  if (root != roster_->rank) return {what, {{}, out}};
  check_parts(what, out, in, "input");
  return {what, arrays_of(in, out)};
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
