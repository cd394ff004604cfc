#pragma once
// The daemon as a whole, from its options to its exit status: finds out what was before it, leads
// or stands by, serves, and ends. Called by main.cc.

#include <string>

#include "common/system/log.h"
#include "rendezvous/daemon/c10d_port.h"

namespace ddprun::rendezvous {

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
