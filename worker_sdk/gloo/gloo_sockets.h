#pragma once
// Gloo's connections, which it does not give away: found among this process's descriptors and
// duplicated, to tune them, to hang up on all peers at once, and to know which peer an error is
// about. Only gloo_backend.cc uses this.

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "common/system/descriptors.h"

namespace gloo {
class Context;
}

namespace ddprun::worker_sdk {

struct GlooConnection {
  UniqueFd socket;      // A duplicate: shutting it down can never hit a reused descriptor.
  std::string address;  // Of the peer's end, as Gloo words it in its messages.
};

// By rank; that of this rank is empty. `context` must be connected.
std::vector<GlooConnection> find_connections(gloo::Context& context);

// An address as Gloo gives it to peers, in the words of its messages.
std::string address_text(const std::vector<char>& address);
// Those that are connected so far and have one of `addresses` at either end, in no order.
std::vector<GlooConnection> find_connections(const std::set<std::string>& addresses);

// The rank whose peer's address stands in Gloo's words, or nobody's (-1).
int rank_named(const std::vector<GlooConnection>& connections, std::string_view text) noexcept;

// The first rank whose connection has ended, or nobody's (-1).
int first_ended(const std::vector<GlooConnection>& connections) noexcept;

// Makes every pending operation of ours and of our peers fail now.
void hang_up(const std::vector<GlooConnection>& connections) noexcept;

// To be called when Gloo's own descriptors are closed. It sets them up so that what the kernel has
// not sent yet would be dropped with the last descriptor, and a peer that is a little behind in the
// last operation would fail; this lets the kernel finish.
void close_gently(std::vector<GlooConnection>& connections) noexcept;

}  // namespace ddprun::worker_sdk
