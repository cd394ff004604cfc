// The fuzz target's body with seeded bytes, so that it runs in every build.

#include <catch2/catch.hpp>
#include <random>

#include "tests/fuzz/store_fuzz.h"
#include "tests/support/store_requests.h"

namespace ddprun {
namespace {

using test::StoreRequests;

std::string random_request(std::mt19937& random) {
  const StoreRequests to(random() % 4 != 0);
  const std::string key = "/" + std::to_string(random() % 5);
  const std::string value(random() % 110, 'v');
  switch (random() % 14) {
    case 0: return StoreRequests::validate();
    case 1: return to.set(key, value);
    case 2: return to.compare_set(key, "", value);
    case 3: return to.add(key, 1);
    case 4: return to.wait({key, "/3", "/4"});
    case 5: return to.remove(key);
    case 6: return StoreRequests::watch(key);
    case 7: return StoreRequests::append(key, value);
    case 8: return StoreRequests::multi_set({{key, value}, {"/2", value}});
    case 9: return StoreRequests::queue_push(key, value);
    case 10: return StoreRequests::queue_pop(key);
    case 11: return StoreRequests::list_keys();
    case 12: return StoreRequests::barrier(key, 3);
    default: return std::string(random() % 9, static_cast<char>(random()));
  }
}

TEST_CASE("Store: random bytes break no promise", "[store][fuzz]") {
  std::mt19937 random(11);
  for (int round = 0; round < 5'000; ++round) {
    std::string input;
    for (int i = 0; i < 30; ++i) {
      const int connection = static_cast<int>(random() % 4);
      const std::string request = random_request(random);
      for (std::size_t at = 0; at < request.size(); at += 63) {
        const std::string piece = request.substr(at, 63);
        input += static_cast<char>(piece.size() << 2 | static_cast<unsigned>(connection));
        input += piece;
      }
    }
    fuzz::fuzz_store(reinterpret_cast<const std::uint8_t*>(input.data()), input.size());
  }
}

TEST_CASE("Store: bytes that are nearly requests break no promise", "[store][fuzz]") {
  for (std::uint32_t seed = 0; seed < 2'000; ++seed) {
    std::mt19937 random(seed);
    const std::string hello = StoreRequests::validate();
    std::string input = static_cast<char>(hello.size() << 2) + hello;
    for (int i = 0; i < 50; ++i) {
      std::string piece(1 + random() % 40, '\0');
      // Mostly small numbers, so that some requests are well-formed.
      for (char& c : piece) c = static_cast<char>(random() % 3 == 0 ? random() % 19 : 0);
      input += static_cast<char>(piece.size() << 2) + piece;
    }
    fuzz::fuzz_store(reinterpret_cast<const std::uint8_t*>(input.data()), input.size());
  }
}

}  // namespace
}  // namespace ddprun
