#include "rendezvous/daemon/daemon_options.h"

#include <limits>

#include "common/options/command_line.h"
#include "common/release.h"

namespace ddprun::rendezvous {
namespace {

constexpr int kPortMax = 65535;
constexpr int kDescriptorMax = std::numeric_limits<int>::max();

// "10.1.2.3,node7"
Result<std::vector<std::string>> parse_list(std::string_view text) {
  std::vector<std::string> items;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(','), text.size());
    if (end > 0) items.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return items;
}

template <class Value>
auto c10d(Value C10dOptions::*member) {
  return inner<DaemonOptions>(&DaemonOptions::c10d, member);
}

using O = DaemonOptions;
using Row = OptionRow<O>;

std::vector<Row> listening_rows() {
  return {
      {"address",
       &O::address,
       any_text,
       "ADDRESS",
       "Address to listen on",
       {.shows_default = true}},
      {"port",
       &O::port,
       integer_between(0, kPortMax),
       "PORT",
       "Port to listen on; 0 for any",
       {.shows_default = true}},
      {"token-file", &O::token_file, any_text, "FILE",
       "File whose first line is the token (else DDPRUN_TOKEN, else DDPRUN_TOKEN_FILE)"},
      {"no-auth",
       &O::no_auth,
       "No encryption and no authentication: all clients can join",
       {.excludes = "token-file"}},
  };
}

// How the daemon remembers its runs.
std::vector<Row> memory_rows() {
  return {
      {"state-dir", &O::state_dir, any_text, "DIR",
       "Keep runs here across restarts of the daemon, and records of ended runs"},
      {"journal-sync",
       &O::journal_sync,
       "Survive a power cut too: wait for the disk with each decision",
       {.needs = "state-dir"}},
      {"etcd",
       &O::etcd,
       any_text,
       "URL,...",
       "Keep runs in etcd: http[s]://HOST:PORT, several with commas. Start a daemon on each of two "
       "hosts; one leads, the other stands by",
       {.excludes = "state-dir"}},
      {"etcd-prefix",
       &O::etcd_prefix,
       any_text,
       "PREFIX",
       "Keys in etcd begin with this",
       {.needs = "etcd", .shows_default = true}},
      {"etcd-lease",
       &O::etcd_lease,
       integer_between(2, 600),
       "SECONDS",
       "Seconds after which a silent leader is replaced",
       {.needs = "etcd", .shows_default = true}},
      {"etcd-ca",
       &O::etcd_ca,
       any_text,
       "FILE",
       "Certificates of the authorities that sign etcd's certificates [the system's]",
       {.needs = "etcd"}},
      {"etcd-cert",
       &O::etcd_cert,
       any_text,
       "FILE",
       "The daemon's certificate, for an etcd that requires one",
       {.needs = "etcd etcd-key"}},
      {"etcd-key",
       &O::etcd_key,
       any_text,
       "FILE",
       "Private key of that certificate",
       {.needs = "etcd-cert"}},
      {"etcd-user",
       &O::etcd_user,
       any_text,
       "NAME",
       "Log in to etcd as this user",
       {.needs = "etcd"}},
      {"etcd-password-file",
       &O::etcd_password_file,
       any_text,
       "FILE",
       "File whose first line is the user's password (else DDPRUN_ETCD_PASSWORD, else "
       "DDPRUN_ETCD_PASSWORD_FILE)",
       {.needs = "etcd-user"}},
  };
}

// For ddprun, which starts the daemon of a run.
std::vector<Row> launcher_rows() {
  return {
      {"listen-fd",
       &O::listen_fd,
       integer_between(0, kDescriptorMax),
       "FD",
       "Take over this listening socket (--address, --port unused)",
       {.excludes = "etcd", .type = "INT"}},
      {"token-fd",
       &O::token_fd,
       integer_between(0, kDescriptorMax),
       "FD",
       "Read the token from this descriptor",
       {.excludes = "etcd no-auth", .type = "INT"}},
      {"store-fd",
       &O::store_fd,
       integer_between(0, kDescriptorMax),
       "FD",
       "Hand clients of the workers' store, which may come to the same port, over to the agent "
       "there",
       {.needs = "listen-fd", .excludes = "no-auth", .type = "INT"}},
      {"only-run", &O::only_run, any_text, "ID", "Turn away agents of all runs but this one"},
      {"end-when-over", &O::end_when_over, "End once all runs have ended and all agents left"},
      {"end-runs-on-exit", &O::end_runs_on_exit,
       "End all runs on SIGTERM or SIGINT, as without --state-dir; otherwise they continue and "
       "wait for the next daemon"},
  };
}

std::vector<Row> operator_rows() {
  return {
      {"c10d-port", c10d(&C10dOptions::port), integer_between(0, kPortMax), "PORT",
       "Also serve unmodified torchrun (--rdzv-backend c10d) on this port, 0 for any; it has no "
       "token, as torchrun cannot give one"},
      {"c10d-address",
       c10d(&C10dOptions::address),
       any_text,
       "ADDRESS",
       "Address that --c10d-port listens on",
       {.shows_default = true}},
      {"c10d-allow",
       c10d(&C10dOptions::allow),
       parse_list,
       "ADDRESS,...",
       "Other machines that may use --c10d-port [all that reach it]",
       {.several = true}},
      {"verbose", &O::verbose, "Log every message", {.letter = 'v'}},
      {"http-port", &O::http_port, integer_between(0, kPortMax), "PORT",
       "Port of the pages: /, /healthz, /status, /metrics; 0 for any [no pages]"},
      {"http-address",
       &O::http_address,
       any_text,
       "ADDRESS",
       "Address of the pages; all that reach it can read most of them",
       {.shows_default = true}},
      {"log-format",
       &O::log_format,
       one_of<log::Format>({{"text", log::Format::kText}, {"json", log::Format::kJson}}),
       "text|json",
       "text, or json: one object per line [text]",
       {.type = "ENUM:text|json"}},
      {"version", PrintsAndEnds{}, "", "Display program version information and exit"},
      {"help", PrintsAndEnds{}, "", "Print this help message and exit", {.letter = 'h'}},
  };
}

const OptionTable<DaemonOptions>& daemon_table() {
  static const OptionTable<DaemonOptions> kTable = {
      {"", listening_rows()}, {"", memory_rows()}, {"", launcher_rows()}, {"", operator_rows()}};
  return kTable;
}

}  // namespace

Result<std::variant<DaemonOptions, std::string>> parse_daemon(int argc, const char* const* argv) {
  using Outcome = std::variant<DaemonOptions, std::string>;
  const ProgramSpec program = {
      .name = "ddprun-rendezvous",
      .description =
          "Decides membership and ranks of ddprun runs. Agents connect to it; see "
          "docs/protocol.md.",
      .footer =
          "Example:\n  DDPRUN_TOKEN=$(openssl rand -hex 16) ddprun-rendezvous --address 0.0.0.0 "
          "--state-dir /var/lib/ddprun",
      .options = daemon_table().options(),
      .version = std::string("ddprun-rendezvous ") + release(),
      .both_spellings = false};
  const auto line = read_command_line(program, argc, argv);
  if (!line) return line.error();
  if (!line->to_print.empty()) return Outcome(line->to_print);
  DaemonOptions options;
  if (const auto stored = daemon_table().store(line->values, options); !stored) {
    return stored.error();
  }
  return Outcome(std::move(options));
}

}  // namespace ddprun::rendezvous
