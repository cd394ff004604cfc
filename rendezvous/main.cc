// ddprun-rendezvous: the daemon. `ddprun` starts it where this node hosts the endpoint; an operator
// starts it by hand or under systemd where it serves many runs.

#include <fcntl.h>
#include <signal.h>

#include <CLI/CLI.hpp>
#include <boost/asio/signal_set.hpp>
#include <fstream>
#include <iostream>

#include "common/descriptor_limit.h"
#include "common/log.h"
#include "rendezvous/c10d_port.h"
#include "rendezvous/operations.h"
#include "rendezvous/server.h"

namespace ddprun::rendezvous {
namespace {

struct DaemonOptions {
  std::string address = "127.0.0.1";
  int port = 29400;
  std::string token_file;
  bool no_auth = false;
  std::string state_dir;
  int listen_fd = -1;
  int token_fd = -1;
  bool end_when_over = false;
  bool end_runs_on_exit = false;
  std::string http_address = "127.0.0.1";
  int http_port = -1;  // None.
  log::Format log_format = log::Format::kText;
  bool verbose = false;
  C10dOptions c10d;
};

constexpr std::size_t kTokenBytesMax = 4096;
constexpr std::size_t kDescriptorsWanted =
    100'000;  // For 65,536 links and as much again in handshakes.

std::string trimmed(std::string text) {
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back()))) text.pop_back();
  return text;
}

// The token never comes by argv, which everybody on the machine can read.
Result<std::string> read_token(const DaemonOptions& options) {
  if (options.no_auth) return std::string();
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
  if (!options.token_file.empty()) {
    std::ifstream in(options.token_file);
    std::string token;
    if (!std::getline(in, token)) {
      return Failure{Errc::kNotFound, "reading a token from " + options.token_file};
    }
    return trimmed(std::move(token));
  }
  if (const char* token = std::getenv("DDPRUN_TOKEN"); token && *token) return std::string(token);
  return Failure{Errc::kBadOption,
                 "no token: give --token-file FILE or DDPRUN_TOKEN, or say --no-auth"};
}

void add_c10d_options(CLI::App& app, C10dOptions& o) {
  app.add_option("--c10d-port", o.port,
                 "Also serve unmodified torchrun (--rdzv-backend c10d) on this port, 0 for any; it "
                 "has no token, as torchrun cannot give one")
      ->check(CLI::Range(0, 65535));
  app.add_option("--c10d-address", o.address, "Address that --c10d-port listens on")
      ->capture_default_str();
  app.add_option("--c10d-allow", o.allow,
                 "Who may use --c10d-port beside this machine (default: everybody who reaches it)")
      ->delimiter(',');
}

void add_options(CLI::App& app, DaemonOptions& o) {
  app.description(
      "Decides who takes part in ddprun runs. Agents connect to it; see docs/protocol.md.");
  // Whoever starts a service adds to a unit file's options.
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  app.add_option("--address", o.address, "Address to listen on")->capture_default_str();
  app.add_option("--port", o.port, "Port to listen on; 0 for any")
      ->capture_default_str()
      ->check(CLI::Range(0, 65535));
  app.add_option("--token-file", o.token_file,
                 "File whose first line is the token (else DDPRUN_TOKEN)");
  app.add_flag("--no-auth", o.no_auth, "Neither encryption nor authentication: anybody may join");
  app.add_option("--state-dir", o.state_dir, "Remember runs here across restarts of the daemon");
  app.add_option("--listen-fd", o.listen_fd,
                 "Take over this listening socket (--address, --port unused)");
  app.add_option("--token-fd", o.token_fd, "Read the token from this descriptor");
  app.add_flag("--end-when-over", o.end_when_over,
               "End once all runs have ended and all agents left");
  app.add_flag("--end-runs-on-exit", o.end_runs_on_exit,
               "End all runs when told to end by SIGTERM or SIGINT, as without --state-dir; else "
               "they go on and wait for the next daemon");
  add_c10d_options(app, o.c10d);
  app.add_flag("-v,--verbose", o.verbose, "Say what is heard and sent");
  app.footer(
      "Example:\n  DDPRUN_TOKEN=$(openssl rand -hex 16) ddprun-rendezvous --address 0.0.0.0 "
      "--state-dir /var/lib/ddprun");
}

void add_operators_options(CLI::App& app, DaemonOptions& o) {
  app.add_option("--http-port", o.http_port,
                 "Port for /healthz, /status and /metrics; 0 for any [no such port]")
      ->check(CLI::Range(0, 65535));
  app.add_option("--http-address", o.http_address, "Address for them; whoever reaches it may read")
      ->capture_default_str();
  const std::map<std::string, log::Format> formats = {{"text", log::Format::kText},
                                                      {"json", log::Format::kJson}};
  app.add_option("--log-format", o.log_format, "text, or json: one object a line [text]")
      ->transform(CLI::CheckedTransformer(formats).description("text|json"));
}

std::optional<HttpOptions> http_options(const DaemonOptions& options) {
  if (options.http_port < 0) return std::nullopt;
  HttpOptions http;
  http.address = options.http_address;
  http.port = static_cast<std::uint16_t>(options.http_port);
  return http;
}

// Waits for SIGTERM and SIGINT for as long as the loop runs.
void end_on_signal(boost::asio::signal_set& signals, Server& server, const Operations& operations,
                   bool end_runs) {
  signals.async_wait(
      [&signals, &server, &operations, end_runs](const boost::system::error_code& ec, int signal) {
        if (ec) return;
        operations.say_stopping();
        if (end_runs) {
          log::info("told to end; ending the runs");
          server.shut_down(signal);
        } else {
          log::info("told to end; the runs go on and wait for the next daemon");
          server.leave();
        }
        end_on_signal(signals, server, operations, end_runs);
      });
}

int serve(const DaemonOptions& options, std::string token) {
  boost::asio::io_context io(1);
  ServerOptions server_options;
  server_options.listen.address = options.address;
  server_options.listen.port = static_cast<std::uint16_t>(options.port);
  server_options.listen.listening_fd = options.listen_fd;
  server_options.listen.token = std::move(token);
  server_options.end_when_over = options.end_when_over;
  server_options.log_news = !options.end_when_over;  // Else a launcher speaks to the user.
  if (!options.state_dir.empty()) server_options.journal_path = options.state_dir + "/journal";

  auto server = Server::open(io, std::move(server_options), [&io] { io.stop(); });
  if (!server) {
    log::error(to_string(server.error()));
    return 1;
  }
  auto operations = Operations::open(io, **server, http_options(options));
  if (!operations) {
    log::error(to_string(operations.error()));
    return 1;
  }
  if (options.listen_fd < 0) {
    log::info("listening on " + options.address + ":" + std::to_string((*server)->port()));
  }
  const auto c10d = open_c10d_port(io, options.c10d);
  if (!c10d) {
    log::error(to_string(c10d.error()));
    return 1;
  }
  if (const auto port = (*operations)->http_port()) {
    log::info("pages for operators on http://" + options.http_address + ":" +
              std::to_string(*port));
  }
  boost::asio::signal_set signals(io, SIGTERM, SIGINT);
  end_on_signal(signals, **server, **operations,
                options.state_dir.empty() || options.end_runs_on_exit);
  (*operations)->say_ready();
  io.run();
  return 0;
}

int run(int argc, char** argv) {
  DaemonOptions options;
  CLI::App app;
  add_options(app, options);
  add_operators_options(app, options);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  log::start("ddprun-rendezvous", options.verbose ? log::Level::kDebug : log::Level::kInfo,
             options.log_format);
  ::signal(SIGPIPE, SIG_IGN);
  raise_descriptor_limit(kDescriptorsWanted);
  for (const int fd : {options.listen_fd, options.token_fd}) {
    if (fd >= 0) ::fcntl(fd, F_SETFD, FD_CLOEXEC);
  }
  auto token = read_token(options);
  if (!token) {
    log::error(token.error().context);
    return 2;
  }
  if (token->empty() && !options.no_auth) {
    log::error("the token is empty; say --no-auth if that is meant");
    return 2;
  }
  return serve(options, std::move(*token));
}

}  // namespace
}  // namespace ddprun::rendezvous

int main(int argc, char** argv) {
  try {
    return ddprun::rendezvous::run(argc, argv);
  } catch (const std::exception& bug) {
    std::cerr << "ddprun-rendezvous: " << bug.what() << "\n";
    return 1;
  }
}
