// ddprun-rendezvous: the daemon. `ddprun` starts it where this node hosts the endpoint; an operator
// starts it by hand or under systemd where it serves many runs.

#include <fcntl.h>
#include <signal.h>

#include <CLI/CLI.hpp>
#include <boost/asio/ip/host_name.hpp>
#include <boost/asio/signal_set.hpp>
#include <fstream>
#include <iostream>

#include "common/descriptor_limit.h"
#include "common/log.h"
#include "rendezvous/etcd_log.h"
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
  std::string etcd;
  std::string etcd_prefix = "/ddprun";
  int etcd_lease = 2;
  int listen_fd = -1;
  int token_fd = -1;
  bool end_when_over = false;
  bool verbose = false;
  char** argv = nullptr;
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

// How the daemon remembers its runs.
void add_memory_options(CLI::App& app, DaemonOptions& o) {
  auto* dir = app.add_option("--state-dir", o.state_dir,
                             "Remember runs here across restarts of the daemon");
  app.add_flag("--journal-sync", o.journal_sync,
               "Survive a power cut too: wait for the disk with each decision")
      ->needs(dir);
  auto* etcd = app.add_option("--etcd", o.etcd,
                              "Remember runs in etcd: http://HOST:PORT, several with commas. Start "
                              "a daemon on each of two hosts; one leads, the other stands by")
                   ->excludes(dir);
  app.add_option("--etcd-prefix", o.etcd_prefix, "Keys in etcd begin with this")
      ->capture_default_str()
      ->needs(etcd);
  app.add_option("--etcd-lease", o.etcd_lease, "Seconds after which a silent leader is replaced")
      ->capture_default_str()
      ->check(CLI::Range(2, 600))
      ->needs(etcd);
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
                 "Take over this listening socket (--address, --port unused)")
      ->excludes("--etcd");
  app.add_option("--token-fd", o.token_fd, "Read the token from this descriptor")
      ->excludes("--etcd");
  app.add_flag("--end-when-over", o.end_when_over,
               "End once all runs have ended and all agents left");
  app.add_flag("-v,--verbose", o.verbose, "Say what is heard and sent");
  app.footer(
      "Example:\n  DDPRUN_TOKEN=$(openssl rand -hex 16) ddprun-rendezvous --address 0.0.0.0 "
      "--state-dir /var/lib/ddprun");
}

ServerOptions server_options(const DaemonOptions& options, std::string token) {
  ServerOptions server;
  server.listen.address = options.address;
  server.listen.port = static_cast<std::uint16_t>(options.port);
  server.listen.listening_fd = options.listen_fd;
  server.listen.token = std::move(token);
  server.end_when_over = options.end_when_over;
  return server;
}

// Opens the port once this daemon knows what was before it; ends it where that fails.
class Service {
 public:
  Service(const DaemonOptions& options, std::string token)
      : options_(options), server_options_(server_options(options, std::move(token))) {}

  int run() {
    await_signal();
    if (options_.etcd.empty()) {
      auto memory = open_memory(io_, options_);
      if (!memory) return fail(memory.error().context), 1;
      begin(std::move(*memory));
    } else if (const auto campaigning = campaign(); !campaigning) {
      return fail(campaigning.error().context), 2;
    }
    io_.run();
    return status_;
  }

 private:
  void begin(Memory memory) {
    auto server = Server::open(io_, server_options_, std::move(memory), [this] { io_.stop(); });
    if (!server) return fail(to_string(server.error()));
    server_ = std::move(*server);
    if (options_.listen_fd < 0) {
      log::info("listening on " + options_.address + ":" + std::to_string(server_->port()));
    }
  }

  Result<void> campaign() {
    auto endpoints = parse_etcd_endpoints(options_.etcd);
    if (!endpoints) return endpoints.error();
    EtcdOptions etcd{std::move(*endpoints), options_.etcd_prefix,
                     std::chrono::seconds(options_.etcd_lease), who_we_are()};
    auto log = std::make_unique<EtcdLog>(io_, etcd);
    EtcdLog& campaigner = *log;
    candidate_ = std::move(log);
    campaigner.start({.on_lead =
                          [this](Journal journal) {
                            log::info("this daemon leads now");
                            begin({std::move(candidate_), std::move(journal)});
                          },
                      .on_over = [this](const std::string& why) { begin_anew(why); }});
    return {};
  }

  // Nothing that a former leader believes may be of any use to anybody: all of it goes, connections
  // too, and the same program stands by from now on.
  void begin_anew(const std::string& why) {
    if (!server_) return fail(why);
    log::warning("leads no more: " + why + "; standing by");
    ::execv("/proc/self/exe", options_.argv);
    fail(to_string(errno_failure("starting again")));
  }

  std::string who_we_are() const {
    return options_.address + ":" + std::to_string(options_.port) + " of " +
           boost::asio::ip::host_name() + ", process " + std::to_string(::getpid());
  }

  void fail(const std::string& why) {
    log::error(why);
    status_ = 1;
    io_.stop();
  }

  void await_signal() {
    signals_.async_wait([this](const boost::system::error_code& ec, int signal) {
      if (ec) return;
      await_signal();
      if (!server_ || !options_.etcd.empty()) {
        log::info("told to end; another daemon may take over");
        return io_.stop();
      }
      log::info("told to end; ending the runs");
      server_->shut_down(signal);
    });
  }

  const DaemonOptions& options_;
  const ServerOptions server_options_;
  boost::asio::io_context io_{1};
  boost::asio::signal_set signals_{io_, SIGTERM, SIGINT};
  std::unique_ptr<RecordLog> candidate_;  // Until it leads.
  std::unique_ptr<Server> server_;
  int status_ = 0;
};

int run(int argc, char** argv) {
  DaemonOptions options;
  options.argv = argv;
  CLI::App app;
  add_options(app, options);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  log::start("ddprun-rendezvous", options.verbose ? log::Level::kDebug : log::Level::kInfo);
  ::signal(SIGPIPE, SIG_IGN);
  ::signal(SIGXFSZ, SIG_IGN);  // A file that may not grow is a failure like a full disk.
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
  return Service(options, std::move(*token)).run();
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
