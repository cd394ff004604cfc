#pragma once
// What the clients of bench_store_barrier send to pass a barrier, in each server's language: they
// arrive and learn how many have, the last one releases all, and everyone waits to be released.

#include <optional>
#include <string>
#include <string_view>

namespace ddprun::bench {

struct BarrierMessages {
  std::string hello;  // Once connected; its reply has so many bytes.
  std::size_t hello_reply_bytes = 0;
  std::string arrive;
  std::string wait;
  std::string release_and_wait;  // Sent by the last.

  // How many have arrived, once the reply to `arrive` is whole.
  std::optional<long> (*arrived)(std::string_view reply) = nullptr;
  // Whether the reply to `wait` or `release_and_wait` shows it.
  bool (*released)(std::string_view reply) = nullptr;
};

// `protocol` is "old" (PyTorch 1.13), "new" (2.2+), "redis", or "etcd" (3.4's JSON gateway); `name`
// is of one barrier, `client` of one client that passes it.
BarrierMessages barrier_messages(std::string_view protocol, const std::string& name, int client);

}  // namespace ddprun::bench
