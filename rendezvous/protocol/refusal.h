#pragma once
// Why a connection was turned away, for counting: each reason is a label of the metric
// ddprun_connections_refused_total (docs/operations.md). Pure.

#include <array>
#include <cstdint>

#include "common/error.h"

namespace ddprun::rendezvous {

enum class Refusal {
  kWrongToken,        // It has another token, or none.
  kHandshakeTimeout,  // It did not finish the handshake in time, or made way for a newer one.
  kHungUp,            // It went away during the handshake.
  kTooMany,           // There were too many connections already.
  kNotOurs,           // It speaks something else, or the handshake failed in another way.
  kBadMessage,        // Its message is malformed or too large.
  kNoHello,           // Its first message was not a hello.
  kOtherVersion,      // It speaks another version of the protocol.
  kBadHello,          // Its hello or command makes no sense.
};
constexpr std::size_t kRefusals = static_cast<std::size_t>(Refusal::kBadHello) + 1;

const char* name_of(Refusal refusal);  // "wrong_token", ...

// What the failure of a handshake counts as.
Refusal refusal_of(const std::error_code& code);

class RefusalCounts {
 public:
  void add(Refusal refusal) { ++counts_[static_cast<std::size_t>(refusal)]; }
  std::uint64_t of(Refusal refusal) const { return counts_[static_cast<std::size_t>(refusal)]; }
  std::uint64_t total() const;
  RefusalCounts& operator+=(const RefusalCounts& other);

 private:
  std::array<std::uint64_t, kRefusals> counts_{};
};

}  // namespace ddprun::rendezvous
