#include "rendezvous/etcd/etcd_client.h"

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <catch2/catch.hpp>
#include <memory>

namespace ddprun::rendezvous {
namespace {

using namespace std::chrono_literals;
using boost::asio::ip::tcp;

TEST_CASE("Etcd client: one that is gone calls nobody", "[etcd]") {
  boost::asio::io_context io;
  // Takes the request and never answers.
  tcp::acceptor silent(io, {boost::asio::ip::address_v4::loopback(), 0});
  tcp::socket connection(io);
  bool reading = false, called = false;
  char byte = 0;
  silent.async_accept(connection, [&](const boost::system::error_code& error) {
    if (error) return;
    boost::asio::async_read(connection, boost::asio::buffer(&byte, 1),
                            [&](const boost::system::error_code&, std::size_t) { reading = true; });
  });
  auto client = std::make_unique<EtcdClient>(
      io, std::vector<EtcdEndpoint>{{"127.0.0.1", silent.local_endpoint().port()}});
  client->post({"/v3/kv/range", "{}"}, 60s, [&](const Result<std::string>&) { called = true; });
  while (!reading) REQUIRE(io.run_one_for(30s) == 1);
  client.reset();
  io.restart();
  io.run_for(30s);  // Ends when there is nothing left to do.
  CHECK_FALSE(called);
}

}  // namespace
}  // namespace ddprun::rendezvous
