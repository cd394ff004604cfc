// GlooBackend's collectives that only move bytes: Gloo's own where it has a good one, else
// messages.

#include <gloo/allgather.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>

#include <cstring>

#include "worker_sdk/gloo_backend.h"
#include "worker_sdk/gloo_tags.h"
#include "worker_sdk/gloo_transfers.h"

namespace ddprun::worker_sdk {
namespace {

std::byte* bytes_of(const Buffer& buffer) { return static_cast<std::byte*>(buffer.data); }

void move_bytes(void* to, const void* from, std::size_t bytes) {
  if (bytes > 0 && to != from) std::memmove(to, from, bytes);
}

// Gloo's options only want to know the size of an element.
template <class Options>
void set_buffers(Options& options, DataType type, void* in, std::size_t in_count, void* out,
                 std::size_t out_count) {
  const auto set = [&]<class T>(T) {
    if (in) options.setInput(static_cast<T*>(in), in_count);
    if (out) options.setOutput(static_cast<T*>(out), out_count);
  };
  switch (size_of(type)) {
    case 1: return set(std::uint8_t{});
    case 2: return set(std::uint16_t{});
    case 4: return set(std::uint32_t{});
    default: return set(std::uint64_t{});
  }
}

}  // namespace

void GlooBackend::broadcast(const Call& call, Buffer inout) {
  guarded(call, [&] {
    if (inout.count == 0) return;
    gloo::BroadcastOptions options(context_);
    set_buffers(options, inout.type, nullptr, 0, inout.data, inout.count);
    options.setRoot(call.what.rank);
    options.setTag(tag_of(call));
    options.setTimeout(left_until(call.deadline));
    gloo::broadcast(options);
  });
}

void GlooBackend::all_gather(const Call& call, Buffer in, Buffer out) {
  guarded(call, [&] {
    if (in.count == 0) return;
    gloo::AllgatherOptions options(context_);
    set_buffers(options, in.type, in.data, in.count, out.data, out.count);
    options.setTag(tag_of(call));
    options.setTimeout(left_until(call.deadline));
    gloo::allgather(options);
  });
}

void GlooBackend::barrier(const Call& call) {
  guarded(call, [&] {
    gloo::BarrierOptions options(context_);
    options.setTag(tag_of(call));
    options.setTimeout(left_until(call.deadline));
    gloo::barrier(options);
  });
}

void GlooBackend::send(const Call& call, Buffer in) {
  guarded(call, [&] {
    const int to = call.what.rank;
    const std::uint32_t number = sent_[static_cast<std::size_t>(to)]++;
    GlooTransfers transfers(*context_, message_slot(call, roster_->rank, to, number),
                            call.deadline);
    transfers.send(to, in.data, in.bytes());
    transfers.wait();
  });
}

void GlooBackend::recv(const Call& call, Buffer out) {
  guarded(call, [&] {
    const int from = call.what.rank;
    const std::uint32_t number = received_[static_cast<std::size_t>(from)]++;
    GlooTransfers transfers(*context_, message_slot(call, from, roster_->rank, number),
                            call.deadline);
    transfers.recv(from, out.data, out.bytes());
    transfers.wait();
  });
}

void GlooBackend::all_to_all(const Call& call, Buffer in, Buffer out) {
  guarded(call, [&] {
    const std::size_t part = in.bytes() / everybody_.size();
    const std::byte* from = bytes_of(in);
    if (in.data == out.data && in.bytes() > 0) {
      from = static_cast<std::byte*>(std::memcpy(scratch(in.bytes()), in.data, in.bytes()));
    }
    GlooTransfers transfers(*context_, collective_slot(call), call.deadline);
    for (const int r : everybody_) {
      const std::size_t at = static_cast<std::size_t>(r) * part;
      if (r == roster_->rank) {
        move_bytes(bytes_of(out) + at, from + at, part);
        continue;
      }
      transfers.recv(r, bytes_of(out) + at, part);
      transfers.send(r, from + at, part);
    }
    transfers.wait();
  });
}

void GlooBackend::gather(const Call& call, Buffer in, Buffer out) {
  guarded(call, [&] {
    const int root = call.what.rank;
    GlooTransfers transfers(*context_, collective_slot(call), call.deadline);
    if (root != roster_->rank) transfers.send(root, in.data, in.bytes());
    for (const int r : everybody_) {
      if (root != roster_->rank) break;
      std::byte* to = bytes_of(out) + static_cast<std::size_t>(r) * in.bytes();
      if (r == root) {
        move_bytes(to, in.data, in.bytes());
      } else {
        transfers.recv(r, to, in.bytes());
      }
    }
    transfers.wait();
  });
}

void GlooBackend::scatter(const Call& call, Buffer in, Buffer out) {
  guarded(call, [&] {
    const int root = call.what.rank;
    GlooTransfers transfers(*context_, collective_slot(call), call.deadline);
    if (root != roster_->rank) transfers.recv(root, out.data, out.bytes());
    for (const int r : everybody_) {
      if (root != roster_->rank) break;
      const std::byte* from = bytes_of(in) + static_cast<std::size_t>(r) * out.bytes();
      if (r == root) {
        move_bytes(out.data, from, out.bytes());
      } else {
        transfers.send(r, from, out.bytes());
      }
    }
    transfers.wait();
  });
}

void GlooBackend::broadcast_among(const Call& call, const std::vector<int>& ranks, Buffer inout,
                                  int root) {
  guarded(call, [&] {
    GlooTransfers transfers(*context_, collective_slot(call), call.deadline);
    if (root != roster_->rank) transfers.recv(root, inout.data, inout.bytes());
    for (const int r : ranks) {
      if (root == roster_->rank && r != root) transfers.send(r, inout.data, inout.bytes());
    }
    transfers.wait();
  });
}

void GlooBackend::barrier_among(const Call& call, const std::vector<int>& ranks) {
  guarded(call, [&] {
    const char token = 1;
    std::vector<char> tokens(ranks.size());
    GlooTransfers transfers(*context_, collective_slot(call), call.deadline);
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      if (ranks[i] == roster_->rank) continue;
      transfers.recv(ranks[i], &tokens[i], 1);
      transfers.send(ranks[i], &token, 1);
    }
    transfers.wait();
  });
}

}  // namespace ddprun::worker_sdk
