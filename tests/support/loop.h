#pragma once
// Drives an io_context from a test: until something holds, but not for ever.

#include <boost/asio/io_context.hpp>
#include <chrono>

namespace ddprun::test {

// Runs handlers until `done()`; false if that takes longer than `limit`.
template <class Done>
bool run_until(boost::asio::io_context& io, Done done,
               std::chrono::milliseconds limit = std::chrono::seconds(60)) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  while (!done()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    io.restart();
    io.run_one_for(std::chrono::milliseconds(20));
  }
  return true;
}

}  // namespace ddprun::test
