#pragma once
// DDPRUN_RELAY=PORT NONCE NODE always|needed: where a worker gets streams to other nodes that go
// through the rendezvous daemon (rendezvous/relay/relay_entry.h). The agent sets the variable for
// its workers; the SDK reads it. Pure.

#include <charconv>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace ddprun {

inline constexpr const char* kRelayVariable = "DDPRUN_RELAY";

struct RelayPlace {
  std::uint16_t port = 0;  // Of loopback; 0: there are no such streams.
  std::string nonce{};
  std::string node{};   // This one, as the daemon calls it.
  bool always = false;  // No other node is connected to directly: --one-port.
  bool operator==(const RelayPlace&) const = default;
};

inline std::string to_text(const RelayPlace& place) {
  return std::to_string(place.port) + " " + place.nonce + " " + place.node +
         (place.always ? " always" : " needed");
}

// Nothing if the text is anything else.
inline std::optional<RelayPlace> relay_place_of(std::string_view text) {
  RelayPlace place;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), place.port);
  if (error != std::errc() || place.port == 0) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  for (std::string* word : {&place.nonce, &place.node}) {
    if (!text.starts_with(' ')) return std::nullopt;
    text.remove_prefix(1);
    *word = text.substr(0, text.find(' '));
    if (word->empty()) return std::nullopt;
    text.remove_prefix(word->size());
  }
  place.always = text == " always";
  if (!place.always && text != " needed") return std::nullopt;
  return place;
}

}  // namespace ddprun
