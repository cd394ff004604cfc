// GlooBackend's collectives that only move bytes.

#include <algorithm>
#include <cstring>

#include "worker_sdk/gloo/gloo_backend.h"
#include "worker_sdk/gloo/gloo_tags.h"
#include "worker_sdk/gloo/gloo_transfers.h"

namespace ddprun::worker_sdk {
namespace {

std::byte* bytes_of(const Buffer& buffer) { return static_cast<std::byte*>(buffer.data); }

void move_bytes(void* to, const void* from, std::size_t bytes) {
  if (bytes > 0 && to != from) std::memmove(to, from, bytes);
}

}  // namespace

void GlooBackend::broadcast(const Call& call, const Arrays& arrays) {
  spread(call, everybody_, arrays.out, call.what.rank);
}

// A binomial tree: in round k, those that have it send it to the rank 2^k further on.
void GlooBackend::spread(const Call& call, const std::vector<int>& ranks, Buffer inout, int root) {
  const std::size_t n = ranks.size();
  const auto index = [&](int rank) {
    return static_cast<std::size_t>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
  };
  const std::size_t first = index(root);
  const std::size_t me = (index(roster_->rank) + n - first) % n;  // Counted from the root.
  const auto rank_at = [&](std::size_t i) { return ranks[(i + first) % n]; };
  GlooTransfers messages = transfers(collective_slot(call), call);
  for (std::size_t step = 1; step < n; step *= 2) {
    if (me >= step && me < 2 * step) {
      messages.recv(rank_at(me - step), inout.data, inout.bytes());
      messages.wait_received();
    }
    if (me < step && me + step < n) {
      messages.send(rank_at(me + step), inout.data, inout.bytes());
    }
  }
  messages.wait();
}

void GlooBackend::barrier(const Call& call, const Arrays&) { meet(call, everybody_); }

// In round k, each tells the rank 2^k further on that it and 2^k - 1 others have come.
void GlooBackend::meet(const Call& call, const std::vector<int>& ranks) {
  const std::size_t n = ranks.size();
  const auto me = static_cast<std::size_t>(std::find(ranks.begin(), ranks.end(), roster_->rank) -
                                           ranks.begin());
  const char token = 1;
  char theirs = 0;
  GlooTransfers messages = transfers(collective_slot(call), call);
  std::uint32_t round = 0;
  for (std::size_t step = 1; step < n; step *= 2, ++round) {
    messages.recv(ranks[(me + n - step) % n], &theirs, 1, round);
    messages.send(ranks[(me + step) % n], &token, 1, round);
    messages.wait_received();
  }
  messages.wait();
}

void GlooBackend::all_gather(const Call& call, const Arrays& arrays) {
  const Buffer in = arrays.in, out = arrays.out;
  GlooTransfers messages = transfers(collective_slot(call), call);
  for (const int r : everybody_) {
    std::byte* to = bytes_of(out) + static_cast<std::size_t>(r) * in.bytes();
    if (r == roster_->rank) {
      move_bytes(to, in.data, in.bytes());
    } else {
      messages.recv(r, to, in.bytes());
      messages.send(r, in.data, in.bytes());
    }
  }
  messages.wait();
}

void GlooBackend::send(const Call& call, const Arrays& arrays) {
  const Buffer in = arrays.in;
  const int to = call.what.rank;
  const std::uint32_t number = sent_[static_cast<std::size_t>(to)]++;
  GlooTransfers messages = transfers(message_slot(call, roster_->rank, to, number), call);
  messages.send(to, in.data, in.bytes());
  messages.wait();
}

void GlooBackend::recv(const Call& call, const Arrays& arrays) {
  const Buffer out = arrays.out;
  const int from = call.what.rank;
  const std::uint32_t number = received_[static_cast<std::size_t>(from)]++;
  GlooTransfers messages = transfers(message_slot(call, from, roster_->rank, number), call);
  messages.recv(from, out.data, out.bytes());
  messages.wait();
}

void GlooBackend::all_to_all(const Call& call, const Arrays& arrays) {
  const Buffer in = arrays.in, out = arrays.out;
  const std::size_t part = in.bytes() / everybody_.size();
  const std::byte* from = bytes_of(in);
  if (in.data == out.data && in.bytes() > 0) {
    from = static_cast<std::byte*>(std::memcpy(scratch(in.bytes()), in.data, in.bytes()));
  }
  GlooTransfers messages = transfers(collective_slot(call), call);
  for (const int r : everybody_) {
    const std::size_t at = static_cast<std::size_t>(r) * part;
    if (r == roster_->rank) {
      move_bytes(bytes_of(out) + at, from + at, part);
      continue;
    }
    messages.recv(r, bytes_of(out) + at, part);
    messages.send(r, from + at, part);
  }
  messages.wait();
}

void GlooBackend::gather(const Call& call, const Arrays& arrays) {
  const Buffer in = arrays.in, out = arrays.out;
  const int root = call.what.rank;
  GlooTransfers messages = transfers(collective_slot(call), call);
  if (root != roster_->rank) messages.send(root, in.data, in.bytes());
  for (const int r : everybody_) {
    if (root != roster_->rank) break;
    std::byte* to = bytes_of(out) + static_cast<std::size_t>(r) * in.bytes();
    if (r == root) {
      move_bytes(to, in.data, in.bytes());
    } else {
      messages.recv(r, to, in.bytes());
    }
  }
  messages.wait();
}

void GlooBackend::scatter(const Call& call, const Arrays& arrays) {
  const Buffer in = arrays.in, out = arrays.out;
  const int root = call.what.rank;
  GlooTransfers messages = transfers(collective_slot(call), call);
  if (root != roster_->rank) messages.recv(root, out.data, out.bytes());
  for (const int r : everybody_) {
    if (root != roster_->rank) break;
    const std::byte* from = bytes_of(in) + static_cast<std::size_t>(r) * out.bytes();
    if (r == root) {
      move_bytes(out.data, from, out.bytes());
    } else {
      messages.send(r, from, out.bytes());
    }
  }
  messages.wait();
}

}  // namespace ddprun::worker_sdk
