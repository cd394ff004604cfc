// Serves a store on a loopback port until standard input ends; prints the port. For interop tests,
// which talk to it with PyTorch's own client.

#include <boost/asio/posix/stream_descriptor.hpp>
#include <cstdio>
#include <iostream>

#include "rendezvous/store/store_server.h"

int main(int argc, char** argv) {
  boost::asio::io_context io(1);
  ddprun::rendezvous::StoreServerOptions options;
  options.address = argc > 1 ? argv[1] : "127.0.0.1";
  auto server = ddprun::rendezvous::StoreServer::listen(io, options);
  if (!server) {
    std::cerr << to_string(server.error()) << "\n";
    return 1;
  }
  std::cout << (*server)->port() << std::endl;
  boost::asio::posix::stream_descriptor input(io, ::dup(0));
  input.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                   [&](boost::system::error_code) { io.stop(); });
  io.run();
  return 0;
}
