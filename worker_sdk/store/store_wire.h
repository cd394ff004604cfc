#pragma once
// Bytes of the TCPStore protocol (PyTorch 2.2 and later): operation codes, limits, and how integers
// and strings are laid out. Shared by the client (tcp_store.cc) and the small server
// (store_host.cc). Pure.
//
// A request is one byte of operation and its fields; there is no length around it. Integers are in
// host order, which is little-endian on every platform PyTorch runs on.

#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace ddprun::worker_sdk::wire {

static_assert(std::endian::native == std::endian::little);

enum class Op : std::uint8_t {
  kValidate = 0,
  kSet,
  kCompareSet,
  kGet,
  kAdd,
  kCheck,
  kWait,
  kGetNumKeys,
  kDeleteKey,
  kAppend,
  kMultiGet,
  kMultiSet,
  kCancelWait,
  kPing,
};

constexpr std::uint32_t kMagic = 0x3C85F7CE;  // The argument of kValidate.
constexpr char kReady = 0;                    // Answer to kCheck: all are there; 1: not.
constexpr char kStopWaiting = 0;              // Answer to kWait.
constexpr char kWaitCanceled = 1;             // Answer to kCancelWait.

constexpr std::size_t kKeyBytesMax = 8 << 10;
constexpr std::size_t kValueBytesMax = 8 << 20;
constexpr std::size_t kKeysMax = 128 << 10;  // In a store, and in one request.

template <class Integer>
void put(std::string& out, Integer value) {
  char bytes[sizeof(value)];
  std::memcpy(bytes, &value, sizeof(value));
  out.append(bytes, sizeof(value));
}

inline void put_op(std::string& out, Op op) { out.push_back(static_cast<char>(op)); }

inline void put_string(std::string& out, std::string_view text) {
  put(out, std::uint64_t{text.size()});
  out.append(text);
}

}  // namespace ddprun::worker_sdk::wire
