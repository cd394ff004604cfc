#pragma once
// What one client of bench_store_load asks its server again and again, in the server's language,
// and how it knows that an answer is whole. Each contestant is asked as its own clients ask:
// PyTorch's `get` is a WAIT and a GET, its `set` has no answer, so that a CHECK follows it.

#include <cstddef>
#include <string>
#include <vector>

namespace ddprun::bench {

struct Step {
  std::vector<std::string> sends;  // Each is handed to the kernel on its own, as the clients do.
  std::size_t reply_bytes = 0;     // 0: the reply is one line.
};
using Script = std::vector<Step>;

struct Scripts {
  Script hello;  // Once, after connecting.
  Script begin;  // Once, so that what is asked for is there.
  Script turn;   // Again and again.
};

// A command in redis's language.
std::string resp(const std::vector<std::string>& words);

// `protocol` is "old" (PyTorch 1.13), "new" (2.2+) or "redis"; `operation` is set, get, add or
// wait. An empty turn: there is no such thing.
Scripts scripts_of(const std::string& protocol, const std::string& operation, int client,
                   std::size_t value_bytes);

}  // namespace ddprun::bench
