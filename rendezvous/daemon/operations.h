#pragma once
// What makes the daemon a service that can be operated: its pages over HTTP, its numbers, and its
// service manager's watchdog. Built by main.cc around a Server; nothing here decides.

#include <memory>
#include <optional>
#include <string>

#include "rendezvous/daemon/http_server.h"
#include "rendezvous/daemon/loop_probe.h"
#include "rendezvous/daemon/pages.h"
#include "rendezvous/daemon/server.h"
#include "rendezvous/daemon/service_notifier.h"

namespace ddprun::rendezvous {

class Operations {
 public:
  // Without `http` there are no pages. Where others than this machine's users reach them, those for
  // people want a key, which is made of `token`. `server` must outlive it.
  static Result<std::unique_ptr<Operations>> open(boost::asio::io_context& io, const Server& server,
                                                  std::optional<HttpOptions> http,
                                                  const std::string& token);
  Operations(const Operations&) = delete;
  Operations& operator=(const Operations&) = delete;

  std::optional<std::uint16_t> http_port() const;
  const std::string& page_key() const { return pages_.key; }

  void say_ready() const;     // To the service manager.
  void say_stopping() const;  // The same.

 private:
  Operations(boost::asio::io_context& io, const Server& server);

  std::string complaint() const;
  std::string metrics() const;
  std::string events(std::int64_t after) const;

  const Server& server_;
  ServiceNotifier notifier_;
  Pages pages_;
  LoopProbe probe_;
  std::unique_ptr<HttpServer> http_;
};

}  // namespace ddprun::rendezvous
