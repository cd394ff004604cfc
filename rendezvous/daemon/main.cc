// ddprun-rendezvous: the daemon. `ddprun` starts it if this node hosts the endpoint; an operator
// starts it by hand or under systemd to serve many runs.

#include <fcntl.h>
#include <signal.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <optional>
#include <sstream>

#include "common/error.h"
#include "common/exit_status.h"
#include "common/system/descriptors.h"
#include "common/system/limits.h"
#include "common/system/log.h"
#include "common/system/secrets.h"
#include "common/system/standard_output.h"
#include "common/system/start_signals.h"
#include "common/text/words.h"
#include "rendezvous/daemon/service.h"

#ifndef DDPRUN_VERSION
#define DDPRUN_VERSION "0.0.0"
#endif

namespace ddprun::rendezvous {
namespace {

constexpr std::size_t kTokenBytesMax = 4096;
constexpr std::size_t kDescriptorsWanted =
    100'000;  // For 65,536 links and as much again in handshakes.

// The command line wins over the environment, but the user must know that the token is not used.
void warn_of_unused_token(const char* variable, const DaemonOptions& options) {
  log::warning(std::string("--no-auth: the token in ") + variable +
               " is not used; everyone who reaches " + options.address + " can join");
}

// The token never comes by argv, which every user of the machine can read.
Result<std::string> read_token(DaemonOptions& options) {
  const std::optional<std::string> given = take_variable(kTokenVariable);
  const char* file_variable = std::getenv(kTokenFileVariable);
  const bool file_given = file_variable != nullptr && *file_variable != '\0';
  if (options.no_auth) {
    if (given && !given->empty()) {
      warn_of_unused_token(kTokenVariable, options);
    } else if (file_given) {
      warn_of_unused_token(kTokenFileVariable, options);
    }
    return std::string();
  }
  hide_memory();
  if (options.token_fd >= 0) {
    UniqueFd fd(options.token_fd);
    std::string token(kTokenBytesMax, '\0');
    // A memory file can be read again by the next daemon, a pipe only once.
    ssize_t n = ::pread(fd.get(), token.data(), token.size(), 0);
    if (n < 0 && errno == ESPIPE) n = ::read(fd.get(), token.data(), token.size());
    if (n <= 0) return errno_failure("reading the token from --token-fd");
    token.resize(static_cast<std::size_t>(n));
    return trimmed(std::move(token));
  }
  if (!options.token_file.empty()) return secret_in_file(options.token_file, "token");
  if (given && !given->empty()) {
    options.token_from_environment = true;
    return *given;
  }
  if (file_given) return secret_in_file(file_variable, "token");
  return Failure{Errc::kBadOption,
                 "no token: give --token-file FILE, DDPRUN_TOKEN or DDPRUN_TOKEN_FILE, or give "
                 "--no-auth"};
}

// On an address where others can record the traffic and try tokens against it at leisure.
void warn_of_short_token(const std::string& token, const DaemonOptions& options) {
  if (options.listen_fd >= 0 || is_loopback(options.address)) return;  // Else the launcher does.
  if (const auto warning = short_token_warning(token)) log::warning(*warning);
}

// It never comes by argv either.
Result<std::string> read_etcd_password(DaemonOptions& options) {
  const std::optional<std::string> given = take_variable(kEtcdPasswordVariable);
  if (options.etcd_user.empty()) return std::string();
  hide_memory();
  if (!options.etcd_password_file.empty()) {
    return secret_in_file(options.etcd_password_file, "password");
  }
  if (given && !given->empty()) {
    options.etcd_password_from_environment = true;
    return *given;
  }
  if (const char* file = std::getenv(kEtcdPasswordFileVariable); file && *file) {
    return secret_in_file(file, "password");
  }
  return Failure{Errc::kBadOption,
                 "no password for --etcd-user: give --etcd-password-file FILE, "
                 "DDPRUN_ETCD_PASSWORD or DDPRUN_ETCD_PASSWORD_FILE"};
}

// The token, and the password for etcd into `options`.
Result<std::string> read_secrets(DaemonOptions& options) {
  auto token = read_token(options);
  if (!token) return token.error();
  if (token->empty() && !options.no_auth) {
    return Failure{Errc::kBadOption, "the token is empty; give --no-auth to run without a token"};
  }
  if (!options.no_auth) warn_of_short_token(*token, options);
  auto password = read_etcd_password(options);
  if (!password) return password.error();
  options.etcd_password = std::move(*password);
  if (!options.etcd_key.empty()) hide_memory();
  return token;
}

void add_etcd_options(CLI::App& app, CLI::Option* etcd, DaemonOptions& o) {
  app.add_option("--etcd-prefix", o.etcd_prefix, "Keys in etcd begin with this")
      ->capture_default_str()
      ->needs(etcd);
  app.add_option("--etcd-lease", o.etcd_lease, "Seconds after which a silent leader is replaced")
      ->capture_default_str()
      ->check(CLI::Range(2, 600))
      ->needs(etcd);
  app.add_option("--etcd-ca", o.etcd_ca,
                 "Certificates of the authorities that sign etcd's certificates [the system's]")
      ->needs(etcd);
  auto* cert = app.add_option("--etcd-cert", o.etcd_cert,
                              "The daemon's certificate, for an etcd that requires one");
  cert->needs(etcd);
  auto* key = app.add_option("--etcd-key", o.etcd_key, "Private key of that certificate");
  key->needs(cert);
  cert->needs(key);
  auto* user = app.add_option("--etcd-user", o.etcd_user, "Log in to etcd as this user");
  user->needs(etcd);
  app.add_option("--etcd-password-file", o.etcd_password_file,
                 "File whose first line is the user's password (else DDPRUN_ETCD_PASSWORD, else "
                 "DDPRUN_ETCD_PASSWORD_FILE)")
      ->needs(user);
}

// How the daemon remembers its runs.
void add_memory_options(CLI::App& app, DaemonOptions& o) {
  auto* dir =
      app.add_option("--state-dir", o.state_dir,
                     "Keep runs here across restarts of the daemon, and records of ended runs");
  app.add_flag("--journal-sync", o.journal_sync,
               "Survive a power cut too: wait for the disk with each decision")
      ->needs(dir);
  auto* etcd = app.add_option("--etcd", o.etcd,
                              "Keep runs in etcd: http[s]://HOST:PORT, several with commas. "
                              "Start a daemon on each of two hosts; one leads, the other stands by")
                   ->excludes(dir);
  add_etcd_options(app, etcd, o);
}

void add_c10d_options(CLI::App& app, C10dOptions& o) {
  app.add_option("--c10d-port", o.port,
                 "Also serve unmodified torchrun (--rdzv-backend c10d) on this port, 0 for any; it "
                 "has no token, as torchrun cannot give one")
      ->check(CLI::Range(0, 65535));
  app.add_option("--c10d-address", o.address, "Address that --c10d-port listens on")
      ->capture_default_str();
  app.add_option("--c10d-allow", o.allow,
                 "Other machines that may use --c10d-port [all that reach it]")
      ->delimiter(',');
}

void add_options(CLI::App& app, DaemonOptions& o) {
  app.description(
      "Decides membership and ranks of ddprun runs. Agents connect to it; see docs/protocol.md.");
  // The last value wins, so that options can be added to those of a unit file.
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  app.add_option("--address", o.address, "Address to listen on")->capture_default_str();
  app.add_option("--port", o.port, "Port to listen on; 0 for any")
      ->capture_default_str()
      ->check(CLI::Range(0, 65535));
  auto* token_file = app.add_option("--token-file", o.token_file,
                                    "File whose first line is the token (else DDPRUN_TOKEN, else "
                                    "DDPRUN_TOKEN_FILE)");
  app.add_flag("--no-auth", o.no_auth, "No encryption and no authentication: all clients can join")
      ->excludes(token_file);
  add_memory_options(app, o);
  app.add_option("--listen-fd", o.listen_fd,
                 "Take over this listening socket (--address, --port unused)")
      ->excludes("--etcd");
  app.add_option("--token-fd", o.token_fd, "Read the token from this descriptor")
      ->excludes("--etcd")
      ->excludes("--no-auth");
  app.add_option("--only-run", o.only_run, "Turn away agents of all runs but this one");
  app.add_flag("--end-when-over", o.end_when_over,
               "End once all runs have ended and all agents left");
  app.add_flag("--end-runs-on-exit", o.end_runs_on_exit,
               "End all runs on SIGTERM or SIGINT, as without --state-dir; otherwise they "
               "continue and wait for the next daemon");
  add_c10d_options(app, o.c10d);
  app.add_flag("-v,--verbose", o.verbose, "Log every message");
  app.footer(
      "Example:\n  DDPRUN_TOKEN=$(openssl rand -hex 16) ddprun-rendezvous --address 0.0.0.0 "
      "--state-dir /var/lib/ddprun");
}

void add_operators_options(CLI::App& app, DaemonOptions& o) {
  app.add_option("--http-port", o.http_port,
                 "Port of the pages: /, /healthz, /status, /metrics; 0 for any [no pages]")
      ->check(CLI::Range(0, 65535));
  app.add_option("--http-address", o.http_address,
                 "Address of the pages; all that reach it can read most of them")
      ->capture_default_str();
  const std::map<std::string, log::Format> formats = {{"text", log::Format::kText},
                                                      {"json", log::Format::kJson}};
  app.add_option("--log-format", o.log_format, "text, or json: one object per line [text]")
      ->transform(CLI::CheckedTransformer(formats).description("text|json"));
}

// The exit status of a command line that starts no daemon.
std::optional<int> parse(int argc, char** argv, DaemonOptions& options) {
  CLI::App app;
  add_options(app, options);
  add_operators_options(app, options);
  app.set_version_flag("--version", "ddprun-rendezvous " DDPRUN_VERSION);
  try {
    app.parse(argc, argv);
    return std::nullopt;
  } catch (const CLI::Success& help_or_version) {
    std::ostringstream text;
    const int status = app.exit(help_or_version, text, text);
    write_output(text.str());
    return after_output(status);
  } catch (const CLI::ExtrasError&) {
    log::error("unknown argument '" + app.remaining().front() + "'; see ddprun-rendezvous --help");
    return kExitUsage;
  } catch (const CLI::ParseError& error) {
    log::error(std::string(error.what()) + "; see ddprun-rendezvous --help");
    return kExitUsage;
  }
}

int run(int argc, char** argv) {
  DaemonOptions options;
  options.argv = argv;
  log::start("ddprun-rendezvous", log::Level::kInfo);
  if (const auto status = parse(argc, argv, options)) return *status;
  log::start("ddprun-rendezvous", options.verbose ? log::Level::kDebug : log::Level::kInfo,
             options.log_format);
  ::signal(SIGPIPE, SIG_IGN);
  raise_soft_limits(kDescriptorsWanted);
  for (const int fd : {options.listen_fd, options.token_fd}) {
    if (fd >= 0) ::fcntl(fd, F_SETFD, FD_CLOEXEC);
  }
  auto token = read_secrets(options);
  if (!token) {
    log::error(token.error().context);
    return kExitUsage;
  }
  return serve(options, std::move(*token));
}

}  // namespace
}  // namespace ddprun::rendezvous

int main(int argc, char** argv) {
  ddprun::occupy_standard_descriptors();
  ddprun::start_signals();
  try {
    return ddprun::rendezvous::run(argc, argv);
  } catch (const std::exception& bug) {
    std::cerr << "ddprun-rendezvous: error: " << bug.what() << "\n";
    return ddprun::kExitFailed;
  }
}
