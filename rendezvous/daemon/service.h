#pragma once
// The daemon as a whole, from its options to its exit status: finds out what was before it, leads
// or stands by, serves, and ends. Called by main.cc.

#include <memory>
#include <optional>
#include <string>

#include "common/system/log.h"
#include "rendezvous/daemon/http_server.h"
#include "rendezvous/daemon/metrics_page.h"
#include "rendezvous/daemon/pages.h"
#include "rendezvous/daemon/server.h"
#include "rendezvous/daemon/service_notifier.h"

namespace ddprun::rendezvous {

// What makes the daemon a service that can be operated: its pages over HTTP, its numbers, and its
// service manager's watchdog. Built by main.cc around a Server; nothing here decides.
class Operations {
 public:
  // Without `http` there are no pages. If others than this machine's users reach them, those for
  // people need a key, which is made of `token`. `server` must outlive it.
  static Result<std::unique_ptr<Operations>> open(boost::asio::io_context& io, const Server& server,
                                                  std::optional<HttpOptions> http,
                                                  const std::string& token);
  Operations(const Operations&) = delete;
  Operations& operator=(const Operations&) = delete;

  std::optional<std::uint16_t> http_port() const;
  const std::string& page_key() const { return pages_.key; }

  void notify_ready() const;     // To the service manager.
  void notify_stopping() const;  // The same.

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

struct DaemonOptions {
  std::string address = "127.0.0.1";
  int port = 29400;
  std::string token_file;
  bool token_from_environment = false;  // It has been taken from there.
  bool no_auth = false;
  std::string state_dir;
  bool journal_sync = false;
  std::string etcd;
  std::string etcd_prefix = "/ddprun";
  int etcd_lease = 2;
  std::string etcd_ca, etcd_cert, etcd_key;
  std::string etcd_user;
  std::string etcd_password_file;
  std::string etcd_password;
  bool etcd_password_from_environment = false;  // It has been taken from there.
  int listen_fd = -1;
  int token_fd = -1;
  int store_fd = -1;
  bool end_when_over = false;
  std::string only_run;  // Empty: all that come.
  bool end_runs_on_exit = false;
  std::string http_address = "127.0.0.1";
  int http_port = -1;  // None.
  log::Format log_format = log::Format::kText;
  bool verbose = false;
  C10dOptions c10d;
  char** argv = nullptr;
};

constexpr const char* kEtcdPasswordVariable = "DDPRUN_ETCD_PASSWORD";
constexpr const char* kEtcdPasswordFileVariable = "DDPRUN_ETCD_PASSWORD_FILE";

int serve(const DaemonOptions& options, std::string token);

}  // namespace ddprun::rendezvous
