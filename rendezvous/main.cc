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
#include "rendezvous/file_log.h"
#include "rendezvous/server.h"

namespace ddprun::rendezvous {
namespace {

struct DaemonOptions {
  std::string address = "127.0.0.1";
  int port = 29400;
  std::string token_file;
  bool no_auth = false;
  std::string state_dir;
  bool journal_sync = false;
  int listen_fd = -1;
  int token_fd = -1;
  bool end_when_over = false;
  bool verbose = false;
};

constexpr std::size_t kTokenBytesMax = 4096;

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

// How the daemon remembers its runs.
void add_memory_options(CLI::App& app, DaemonOptions& o) {
  auto* dir = app.add_option("--state-dir", o.state_dir,
                             "Remember runs here across restarts of the daemon");
  app.add_flag("--journal-sync", o.journal_sync,
               "Survive a power cut too: wait for the disk with each decision")
      ->needs(dir);
}

Result<Memory> open_memory(boost::asio::io_context& io, const DaemonOptions& options) {
  if (options.state_dir.empty()) return Memory{};
  auto log = FileLog::open(io, {.folder = options.state_dir, .sync = options.journal_sync});
  if (!log) return log.error();
  Journal journal = (*log)->take_journal();
  return Memory{std::move(*log), std::move(journal)};
}

void add_options(CLI::App& app, DaemonOptions& o) {
  app.description(
      "Decides who takes part in ddprun runs. Agents connect to it; see docs/protocol.md.");
  app.add_option("--address", o.address, "Address to listen on")->capture_default_str();
  app.add_option("--port", o.port, "Port to listen on; 0 for any")
      ->capture_default_str()
      ->check(CLI::Range(0, 65535));
  app.add_option("--token-file", o.token_file,
                 "File whose first line is the token (else DDPRUN_TOKEN)");
  app.add_flag("--no-auth", o.no_auth, "Neither encryption nor authentication: anybody may join");
  add_memory_options(app, o);
  app.add_option("--listen-fd", o.listen_fd,
                 "Take over this listening socket (--address, --port unused)");
  app.add_option("--token-fd", o.token_fd, "Read the token from this descriptor");
  app.add_flag("--end-when-over", o.end_when_over,
               "End once all runs have ended and all agents left");
  app.add_flag("-v,--verbose", o.verbose, "Say what is heard and sent");
  app.footer(
      "Example:\n  DDPRUN_TOKEN=$(openssl rand -hex 16) ddprun-rendezvous --address 0.0.0.0 "
      "--state-dir /var/lib/ddprun");
}

int serve(const DaemonOptions& options, std::string token) {
  boost::asio::io_context io(1);
  ServerOptions server_options;
  server_options.listen.address = options.address;
  server_options.listen.port = static_cast<std::uint16_t>(options.port);
  server_options.listen.listening_fd = options.listen_fd;
  server_options.listen.token = std::move(token);
  server_options.end_when_over = options.end_when_over;

  auto memory = open_memory(io, options);
  if (!memory) {
    log::error(memory.error().context);
    return 1;
  }
  auto server =
      Server::open(io, std::move(server_options), std::move(*memory), [&io] { io.stop(); });
  if (!server) {
    log::error(to_string(server.error()));
    return 1;
  }
  if (options.listen_fd < 0) {
    log::info("listening on " + options.address + ":" + std::to_string((*server)->port()));
  }
  boost::asio::signal_set signals(io, SIGTERM, SIGINT);
  std::function<void()> await_signal = [&] {
    signals.async_wait([&](const boost::system::error_code& ec, int signal) {
      if (ec) return;
      log::info("told to end; ending the runs");
      (*server)->shut_down(signal);
      await_signal();
    });
  };
  await_signal();
  io.run();
  return 0;
}

int run(int argc, char** argv) {
  DaemonOptions options;
  CLI::App app;
  add_options(app, options);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  log::start("ddprun-rendezvous", options.verbose ? log::Level::kDebug : log::Level::kInfo);
  ::signal(SIGPIPE, SIG_IGN);
  raise_descriptor_limit();
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
