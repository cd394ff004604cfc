// The store under bytes that no client would send. A piece of input begins with a byte for its
// connection (low 2 bits) and its length (the rest); connection 3 means: close another one and open
// it again.

#include "tests/fuzz/store_fuzz.h"

#include <array>
#include <string_view>
#include <vector>

#include "common/assert.h"
#include "common/store/store_machine.h"

namespace ddprun::fuzz {
namespace {

using store::StoreLimits;
using store::StoreMachine;
using store::StoreReply;

constexpr int kConnections = 3;

// Small enough for the fuzzer to reach.
StoreLimits limits() {
  StoreLimits small;
  small.key_bytes_max = 40;
  small.value_bytes_max = 100;
  small.request_keys_max = 8;
  small.request_bytes_max = 400;
  small.reply_bytes_max = 2000;
  small.keys_max = 12;
  small.store_bytes_max = 2000;
  return small;
}

class Clients {
 public:
  Clients() : store_(limits()) {
    for (int connection = 0; connection < kConnections; ++connection) store_.open(connection);
  }

  void send(int connection, std::string_view bytes) {
    const bool fine = store_.feed(connection, bytes, replies_).has_value();
    check_replies();
    if (!fine) reopen(connection);
  }

  void reopen(int connection) {
    store_.close(connection, replies_);
    store_.open(connection);
    check_replies();
  }

 private:
  void check_replies() {
    for (const StoreReply& reply : replies_) {
      DDPRUN_ASSERT(reply.connection >= 0 && reply.connection < kConnections);
      DDPRUN_ASSERT(reply.bytes.size() <= 4000);
    }
    replies_.clear();
    DDPRUN_ASSERT(store_.key_count() <= 12);
    DDPRUN_ASSERT(store_.connection_count() == kConnections);
    store_.check_invariants();
  }

  StoreMachine store_;
  std::vector<StoreReply> replies_;
};

}  // namespace

void fuzz_store(const std::uint8_t* data, std::size_t size) {
  Clients clients;
  std::string_view rest(reinterpret_cast<const char*>(data), size);
  while (!rest.empty()) {
    const auto head = static_cast<unsigned char>(rest.front());
    rest.remove_prefix(1);
    const int connection = head & 3;
    if (connection == kConnections) {
      clients.reopen((head >> 2) % kConnections);
      continue;
    }
    const std::string_view piece = rest.substr(0, head >> 2);
    rest.remove_prefix(piece.size());
    clients.send(connection, piece);
  }
}

}  // namespace ddprun::fuzz

#ifdef DDPRUN_LIBFUZZER
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  ddprun::fuzz::fuzz_store(data, size);
  return 0;
}
#endif
