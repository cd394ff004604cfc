#pragma once
// The two variables by which processes of a node learn of ports: at which they listen, and through
// which they reach other nodes. Pure.

#include <charconv>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace ddprun {

// DDPRUN_PORT_RANGE=A-B: the ports at which all that ddprun opens on a node listens, apart from the
// daemon's own: the workers' store, memory servers, and each rank's ends of Gloo's connections. The
// launcher's processes and the workers inherit the variable.

inline constexpr const char* kPortRangeVariable = "DDPRUN_PORT_RANGE";

struct PortRange {
  std::uint16_t first = 0, last = 0;  // 0: any port.

  bool is_any() const { return first == 0; }
  int size() const { return is_any() ? 0 : last - first + 1; }
  // The ports in turn for 0 <= i < size(), from one that depends on `start`, so that processes that
  // choose at the same time try different ones first.
  std::uint16_t port(std::uint64_t start, int i) const {
    const auto count = static_cast<std::uint64_t>(size());
    const auto offset = (start + static_cast<std::uint64_t>(i)) % count;
    return static_cast<std::uint16_t>(first + offset);
  }
  std::string text() const { return std::to_string(first) + "-" + std::to_string(last); }
  bool operator==(const PortRange&) const = default;
};

// "29500-29599"; std::nullopt if the text is anything else.
inline std::optional<PortRange> port_range_of(std::string_view text) {
  constexpr unsigned kPortMax = 65'535;
  unsigned ports[2] = {0, 0};
  const char* at = text.data();
  const char* const end = text.data() + text.size();
  for (unsigned& port : ports) {
    if (&port == &ports[1] && (at == end || *at++ != '-')) return std::nullopt;
    const auto [stop, error] = std::from_chars(at, end, port);
    if (error != std::errc() || port == 0 || port > kPortMax) return std::nullopt;
    at = stop;
  }
  if (at != end || ports[0] > ports[1]) return std::nullopt;
  return PortRange{static_cast<std::uint16_t>(ports[0]), static_cast<std::uint16_t>(ports[1])};
}

// DDPRUN_RELAY=PORT NONCE NODE always|needed: where a worker gets streams to other nodes that go
// through the rendezvous daemon (rendezvous/relay/relay_entry.h). The agent sets the variable for
// its workers; the SDK reads it.

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
