#include "rendezvous/protocol/refusal.h"

#include <numeric>

namespace ddprun::rendezvous {

const char* name_of(Refusal refusal) {
  switch (refusal) {
    case Refusal::kWrongToken: return "wrong_token";
    case Refusal::kHandshakeTimeout: return "handshake_timeout";
    case Refusal::kHungUp: return "hung_up";
    case Refusal::kTooMany: return "too_many";
    case Refusal::kNotOurs: return "not_ours";
    case Refusal::kBadMessage: return "bad_message";
    case Refusal::kNoHello: return "no_hello";
    case Refusal::kOtherVersion: return "other_version";
    case Refusal::kBadHello: return "bad_hello";
  }
  return "?";
}

Refusal refusal_of(const std::error_code& code) {
  if (code == Errc::kBadToken) return Refusal::kWrongToken;
  if (code == Errc::kPeerSilent) return Refusal::kHandshakeTimeout;
  if (code == Errc::kBadMessage) return Refusal::kNotOurs;
  return Refusal::kHungUp;  // End of stream, reset, broken pipe: the network's words for it.
}

std::uint64_t RefusalCounts::total() const {
  return std::accumulate(counts_.begin(), counts_.end(), std::uint64_t{0});
}

RefusalCounts& RefusalCounts::operator+=(const RefusalCounts& other) {
  for (std::size_t i = 0; i < counts_.size(); ++i) counts_[i] += other.counts_[i];
  return *this;
}

}  // namespace ddprun::rendezvous
