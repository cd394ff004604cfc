#pragma once
// A Listener and the links that are made to it, all on one loop.

#include <catch2/catch.hpp>
#include <deque>

#include "rendezvous/net/connect.h"
#include "rendezvous/net/link.h"
#include "rendezvous/net/listener.h"
#include "tests/support/loop.h"

namespace ddprun::rendezvous::test_links {

using test::run_until;

inline constexpr char kToken[] = "0123456789abcdef";

// One end of a link and what came of it.
struct End {
  explicit End(std::shared_ptr<Link> made) : link(std::move(made)) {
    link->start({[this](std::string body) {
                   if (on_message) on_message(body);
                   messages.push_back(std::move(body));
                 },
                 [this](const Failure& failure) {
                   ++closings;
                   why = failure;
                 }});
  }

  std::shared_ptr<Link> link;
  std::vector<std::string> messages;
  std::function<void(const std::string&)> on_message;
  int closings = 0;
  Failure why;
};

struct Fixture {
  explicit Fixture(ListenOptions options) {
    options.address = "127.0.0.1";
    listener = Listener::open(io, options, [this](std::shared_ptr<Link> link) {
                 servers.emplace_back(std::move(link));
               }).value();
    connect_options = {.host = "127.0.0.1", .port = listener->port(), .token = options.token};
  }
  explicit Fixture(const std::string& token = kToken) : Fixture(ListenOptions{.token = token}) {}

  Result<std::shared_ptr<Link>> try_connect(ConnectOptions options) {
    std::optional<Result<std::shared_ptr<Link>>> outcome;
    const auto handle =
        async_connect(io, std::move(options), [&](auto result) { outcome = std::move(result); });
    REQUIRE_FALSE(outcome.has_value());
    REQUIRE(run_until(io, [&] { return outcome.has_value(); }));
    return *outcome;
  }

  End& connect() { return clients.emplace_back(try_connect(connect_options).value()); }

  // Where a token is wanted, the daemon's end exists a moment after the client's; without one, only
  // once the client has spoken.
  End& server() {
    REQUIRE(run_until(io, [&] { return !servers.empty(); }));
    return servers.back();
  }

  bool closed(End& end) {
    return run_until(io, [&] { return end.closings > 0; });
  }

  boost::asio::io_context io{1};
  std::deque<End> servers, clients;
  std::unique_ptr<Listener> listener;
  ConnectOptions connect_options;
};

}  // namespace ddprun::rendezvous::test_links
