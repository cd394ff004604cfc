// Serves a store as rank 0 does if no other process hosts one, until standard input ends; prints
// the port. For interop tests, as store_serve, which serves the agent's.

#include <cstdio>
#include <iostream>

#include "worker_sdk/store/store_host.h"

int main() {
  using namespace ddprun::worker_sdk;
  const StoreHost host("127.0.0.1", 0, Clock::now() + std::chrono::seconds(10));
  std::cout << host.port() << std::endl;
  while (std::getchar() != EOF) {
  }
}
