#include "rendezvous/net/resolve.h"

#include <netdb.h>

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <cstring>
#include <mutex>
#include <system_error>
#include <thread>

#include "common/system/threads.h"

namespace ddprun::rendezvous {
namespace {

// Blocks, as long as the resolver likes.
Result<Addresses> resolve(const std::string& host) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_ADDRCONFIG;
  addrinfo* list = nullptr;
  const int error = ::getaddrinfo(host.c_str(), nullptr, &hints, &list);
  if (error != 0) {
    return Failure{Errc::kNotFound,
                   "cannot resolve host '" + host + "' (" + ::gai_strerror(error) + ")"};
  }
  Addresses addresses;
  for (const addrinfo* entry = list; entry; entry = entry->ai_next) {
    boost::asio::ip::tcp::endpoint endpoint;
    if (entry->ai_addrlen > endpoint.capacity()) continue;
    std::memcpy(endpoint.data(), entry->ai_addr, entry->ai_addrlen);
    endpoint.resize(entry->ai_addrlen);
    addresses.push_back(endpoint.address());
  }
  ::freeaddrinfo(list);
  return addresses;
}

// Shared by the loop and the resolving thread. The thread may outlive everybody's interest, so it
// posts only while the lock shows that somebody still waits and hence that the loop is alive.
struct Lookup {
  std::mutex mutex;
  bool wanted = true;
  boost::asio::any_io_executor executor;
  std::function<void(Result<Addresses>)> handler;  // Touched by the loop's thread only.
};

void deliver(const std::shared_ptr<Lookup>& lookup, Result<Addresses> addresses) {
  const std::lock_guard lock(lookup->mutex);
  if (!lookup->wanted) return;
  boost::asio::post(lookup->executor, [lookup, addresses = std::move(addresses)]() mutable {
    if (!lookup->wanted) return;
    const auto handler = std::move(lookup->handler);
    handler(std::move(addresses));
  });
}

class ResolveHandle {
 public:
  explicit ResolveHandle(std::shared_ptr<Lookup> lookup) : lookup_(std::move(lookup)) {}
  ResolveHandle(const ResolveHandle&) = delete;
  ResolveHandle& operator=(const ResolveHandle&) = delete;
  ~ResolveHandle() {
    const std::lock_guard lock(lookup_->mutex);
    lookup_->wanted = false;
    lookup_->executor = {};
    lookup_->handler = nullptr;  // Else the thread might be the one to destroy what it captures.
  }

 private:
  const std::shared_ptr<Lookup> lookup_;
};

void start_thread(const std::shared_ptr<Lookup>& lookup, const std::string& host) {
  try {
    own_thread("resolve", [lookup, host] { deliver(lookup, resolve(host)); }).detach();
  } catch (const std::system_error& error) {
    deliver(lookup, Failure{error.code(), "starting a thread to resolve host '" + host + "'"});
  }
}

}  // namespace

std::shared_ptr<void> async_resolve(const boost::asio::any_io_executor& executor,
                                    const std::string& host,
                                    std::function<void(Result<Addresses>)> handler) {
  const auto lookup = std::make_shared<Lookup>();
  lookup->executor = executor;
  lookup->handler = std::move(handler);
  auto handle = std::make_shared<ResolveHandle>(lookup);
  boost::system::error_code not_numeric;
  const auto numeric = boost::asio::ip::make_address(host, not_numeric);
  if (!not_numeric) {
    deliver(lookup, Addresses{numeric});
  } else {
    start_thread(lookup, host);
  }
  return handle;
}

}  // namespace ddprun::rendezvous
