// ddprun-rendezvous: the daemon. `ddprun` starts it if this node hosts the endpoint; an operator
// starts it by hand or under systemd to serve many runs.

#include <fcntl.h>
#include <signal.h>

#include <iostream>
#include <optional>

#include "common/error.h"
#include "common/exit_status.h"
#include "common/system/descriptors.h"
#include "common/system/limits.h"
#include "common/system/log.h"
#include "common/system/secrets.h"
#include "common/system/standard_output.h"
#include "common/system/start_signals.h"
#include "common/text/words.h"
#include "rendezvous/daemon/daemon_options.h"
#include "rendezvous/daemon/service.h"

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

int run(int argc, char** argv) {
  log::start("ddprun-rendezvous", log::Level::kInfo);
  auto parsed = parse_daemon(argc, argv);
  if (!parsed) {
    log::error(parsed.error().context);
    return kExitUsage;
  }
  if (const auto* text = std::get_if<std::string>(&*parsed)) {
    write_output(*text);
    return after_output(kExitOk);
  }
  auto& options = std::get<DaemonOptions>(*parsed);
  options.argv = argv;
  log::start("ddprun-rendezvous", options.verbose ? log::Level::kDebug : log::Level::kInfo,
             options.log_format);
  ::signal(SIGPIPE, SIG_IGN);
  raise_soft_limits(kDescriptorsWanted);
  for (const int fd : {options.listen_fd, options.token_fd, options.store_fd}) {
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
