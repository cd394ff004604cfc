#pragma once
// DDPRUN_PORT_RANGE=A-B: the ports at which all that ddprun opens on a node listens, apart from the
// daemon's own: the workers' store, memory servers, and each rank's ends of Gloo's connections. The
// launcher's processes and the workers inherit the variable. Pure.

#include <charconv>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace ddprun {

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

}  // namespace ddprun
