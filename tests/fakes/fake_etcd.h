#pragma once
// As much of etcd's JSON gateway as the daemon uses, in this process, over real sockets: keys,
// leases that end on the test's command, and guarded writes. It can refuse, break and fall silent.

#include <boost/asio/ip/tcp.hpp>
#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "rendezvous/etcd/etcd_client.h"

namespace ddprun::tests {

class FakeEtcd {
 public:
  explicit FakeEtcd(boost::asio::io_context& io);

  rendezvous::EtcdEndpoint endpoint() const;
  std::map<std::string, std::string> keys;      // What is stored.
  std::map<std::string, std::int64_t> created;  // The revision that created it.
  std::size_t largest_request = 0;
  int requests = 0;
  // Asked before each request is looked at; what it returns, unless empty, is answered instead.
  std::function<std::string(const std::string& path)> instead = [](auto&) { return ""; };

  void put(const std::string& key, const std::string& value);

 private:
  struct Session;
  void accept();
  std::string answer(const std::string& path, const std::string& body);

  boost::asio::ip::tcp::acceptor acceptor_;
  std::int64_t revision_ = 1;
};

}  // namespace ddprun::tests
