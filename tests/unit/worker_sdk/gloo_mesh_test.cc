#include "worker_sdk/gloo/gloo_mesh.h"

#include <gloo/common/error.h>
#include <gloo/transport/address.h>
#include <gloo/transport/tcp/device.h>

#include <catch2/catch.hpp>
#include <future>
#include <map>
#include <mutex>
#include <thread>

namespace ddprun::worker_sdk {
namespace {

using namespace std::chrono_literals;
using Addresses = std::vector<char>;

// Has what all but rank 0 have said. Says when rank 0 has asked for the first time.
class KnownAddresses : public gloo::rendezvous::Store {
 public:
  void set(const std::string& key, const Addresses& value) override { values_[key] = value; }
  Addresses get(const std::string& key) override {
    std::call_once(once_, [this] { asked.set_value(); });
    return values_.at(key);
  }
  void wait(const std::vector<std::string>&) override {}
  void wait(const std::vector<std::string>&, const std::chrono::milliseconds&) override {}

  std::promise<void> asked;

 private:
  std::map<std::string, Addresses> values_;
  std::once_flag once_;
};

// Of `rank`, which then stays where it is: it connects to nobody.
Addresses addresses_of(gloo::transport::Context& idle, int rank, int size) {
  Addresses all;
  for (int peer = 0; peer < size; ++peer) {
    if (peer == rank) continue;
    const auto bytes = idle.createPair(peer)->address().bytes();
    all.insert(all.end(), bytes.begin(), bytes.end());
  }
  return all;
}

TEST_CASE("Gloo mesh: who waits for a peer that will never connect is freed by the fence") {
  constexpr int kRanks = 8;  // Some of them listen, and so wait; others connect at once.
  gloo::transport::tcp::attr attributes;
  attributes.hostname = "127.0.0.1";
  std::shared_ptr<gloo::transport::Device> device = gloo::transport::tcp::CreateDevice(attributes);
  KnownAddresses store;
  std::vector<std::shared_ptr<gloo::transport::Context>> idle;
  for (int rank = 1; rank < kRanks; ++rank) {
    idle.push_back(device->createContext(rank, kRanks));
    idle.back()->setTimeout(60s);  // Gloo has no default.
    store.set(std::to_string(rank), addresses_of(*idle.back(), rank, kRanks));
  }
  GlooMesh mesh(0, kRanks);
  mesh.setTimeout(60s);
  const auto fence = std::make_shared<RoundFence>();
  auto outcome = std::async(std::launch::async, [&]() -> std::string {
    try {
      mesh.connect(store, device, fence.get());
      return "connected";
    } catch (const gloo::IoException& error) {
      return error.what();
    }
  });
  store.asked.get_future().wait();
  fence->raise({});
  REQUIRE(outcome.wait_for(60s) == std::future_status::ready);
  const std::string text = outcome.get();
  INFO(text);
  CHECK(text.find("the round is over") != std::string::npos);
}

}  // namespace
}  // namespace ddprun::worker_sdk
