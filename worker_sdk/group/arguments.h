#pragma once
// Checks a caller's arguments of a collective, and returns an Operation. Wrong arguments leave the
// group alive: nothing has been communicated. Used by process_group.cc.

#include <memory>

#include "ddprun/process_group.h"
#include "worker_sdk/base/operation.h"

namespace ddprun::worker_sdk {

// All functions throw Error(bad_argument) with a sentence about the mistake.
class Arguments {
 public:
  explicit Arguments(std::shared_ptr<const Roster> roster) : roster_(std::move(roster)) {}

  Operation all_reduce(const Buffer& inout, ReduceOp op) const;
  Operation reduce(const Buffer& in, const Buffer& out, int root, ReduceOp op) const;
  Operation reduce_scatter(const PartsBuffer& in, const Buffer& out, ReduceOp op) const;
  Operation broadcast(const Buffer& inout, int root) const;
  Operation all_gather(const Buffer& in, const PartsBuffer& out) const;
  Operation all_to_all(const PartsBuffer& in, const PartsBuffer& out) const;
  Operation all_to_all_apart(const PartsBuffer& in, const PartsBuffer& out) const;
  Operation gather(const Buffer& in, const PartsBuffer& out, int root) const;
  Operation scatter(const PartsBuffer& in, const Buffer& out, int root) const;
  Operation send(const Buffer& in, int destination) const;
  Operation recv(const Buffer& out, int source) const;

 private:
  [[noreturn]] void refuse(const Signature& what, const std::string& text) const;
  void check_buffer(const Signature& what, const Buffer& buffer) const;
  void check_op(const Signature& what) const;
  void check_rank(const Signature& what) const;
  void check_not_self(const Signature& what) const;
  // `whole` has a part of `part`'s size for each rank.
  void check_parts(const Signature& what, const Buffer& part, const PartsBuffer& whole,
                   const char* name) const;
  void check_apart(const Signature& what, const std::vector<Buffer>& parts, DataType type) const;
  // For parts that lie apart: adds all ranks' counts; this rank's own part is `mine`.
  void list_parts(Signature& what, const std::vector<Buffer>& parts, const Buffer& mine) const;

  std::shared_ptr<const Roster> roster_;
};

}  // namespace ddprun::worker_sdk
