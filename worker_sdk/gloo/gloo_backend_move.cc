// GlooBackend's collectives that only move bytes.

#include <algorithm>
#include <cstring>

#include "worker_sdk/gloo/gloo_backend.h"
#include "worker_sdk/gloo/gloo_tags.h"
#include "worker_sdk/gloo/gloo_transfers.h"

namespace ddprun::worker_sdk {
namespace {

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
  const Buffer in = arrays.in;
  GlooTransfers messages = transfers(collective_slot(call), call);
  for (const int r : everybody_) {
    const Buffer to = arrays.out_part(r, call.what.count);
    if (r == roster_->rank) {
      move_bytes(to.data, in.data, in.bytes());
    } else {
      messages.recv(r, to.data, to.bytes());
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

// Gloo would end the process over a message of another length than is awaited.
void GlooBackend::exchange_counts(const Call& call, const Arrays& arrays) {
  std::vector<std::uint64_t> mine, theirs(everybody_.size());
  for (const Buffer& part : arrays.ins) mine.push_back(part.count);
  GlooTransfers messages = transfers(collective_slot(call), call);
  for (const int r : everybody_) {
    if (r == roster_->rank) continue;
    const auto at = static_cast<std::size_t>(r);
    messages.recv(r, &theirs[at], sizeof theirs[at]);
    messages.send(r, &mine[at], sizeof mine[at]);
  }
  messages.wait();
  for (const int r : everybody_) {
    const auto at = static_cast<std::size_t>(r);
    const std::size_t awaited = arrays.outs[at].count;
    if (r == roster_->rank || theirs[at] == awaited) continue;
    give_up({.what = call.what, .number = call.number, .suspect = r});
    throw failure(*roster_, call, ErrorKind::mismatch, r,
                  roster_->name(r) + " sends " + std::to_string(theirs[at]) +
                      " elements to this rank, which expects " + std::to_string(awaited));
  }
}

void GlooBackend::all_to_all(const Call& call, const Arrays& arrays) {
  if (call.what.parts == kOwnParts) exchange_counts(call, arrays);
  Arrays given = arrays;
  if (given.ins.empty() && given.in.data == given.out.data && given.in.bytes() > 0) {
    given.in.data = std::memcpy(scratch(given.in.bytes()), given.in.data, given.in.bytes());
  }
  GlooTransfers messages = transfers(collective_slot(call), call);
  for (const int r : everybody_) {
    const Buffer from = given.in_part(r, call.what.count);
    const Buffer to = given.out_part(r, call.what.count);
    if (r == roster_->rank) {
      move_bytes(to.data, from.data, from.bytes());
      continue;
    }
    messages.recv(r, to.data, to.bytes(), 1);
    messages.send(r, from.data, from.bytes(), 1);
  }
  messages.wait();
}

void GlooBackend::gather(const Call& call, const Arrays& arrays) {
  const Buffer in = arrays.in;
  const int root = call.what.rank;
  GlooTransfers messages = transfers(collective_slot(call), call);
  if (root != roster_->rank) messages.send(root, in.data, in.bytes());
  for (const int r : everybody_) {
    if (root != roster_->rank) break;
    const Buffer to = arrays.out_part(r, call.what.count);
    if (r == root) {
      move_bytes(to.data, in.data, in.bytes());
    } else {
      messages.recv(r, to.data, to.bytes());
    }
  }
  messages.wait();
}

void GlooBackend::scatter(const Call& call, const Arrays& arrays) {
  const Buffer out = arrays.out;
  const int root = call.what.rank;
  GlooTransfers messages = transfers(collective_slot(call), call);
  if (root != roster_->rank) messages.recv(root, out.data, out.bytes());
  for (const int r : everybody_) {
    if (root != roster_->rank) break;
    const Buffer from = arrays.in_part(r, call.what.count);
    if (r == root) {
      move_bytes(out.data, from.data, from.bytes());
    } else {
      messages.send(r, from.data, from.bytes());
    }
  }
  messages.wait();
}

}  // namespace ddprun::worker_sdk
