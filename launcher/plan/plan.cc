#include "launcher/plan/plan.h"

#include <algorithm>
#include <set>

#include "common/assert.h"
#include "common/text/figures.h"
#include "common/text/words.h"
#include "launcher/options/option_values.h"

namespace ddprun::launcher {

bool has_address(const MachineFacts& facts, std::string_view address) {
  return std::ranges::find(facts.own_addresses, address) != facts.own_addresses.end();
}

bool is_any_address(std::string_view host) { return host == "0.0.0.0" || host == "::"; }

bool names_this_machine(std::string_view host, const MachineFacts& facts) {
  if (is_loopback(host) || is_any_address(host)) return true;
  if (equal_names(host, facts.host_name) || has_address(facts, host)) return true;
  return std::any_of(facts.endpoint_addresses.begin(), facts.endpoint_addresses.end(),
                     [&](const std::string& address) {
                       return is_loopback(address) || has_address(facts, address);
                     });
}

namespace {

using Mode = RendezvousPlan::Mode;
using IfTaken = RendezvousPlan::IfTaken;
using Token = RendezvousPlan::Token;

// --master-addr, --master-port, --node-rank or the static backend, and no endpoint: a command line
// that was written for torchrun's static rendezvous.
bool is_static_habit(const Options& options) {
  return !options.rdzv_endpoint &&
         (options.rdzv_backend == RdzvBackend::kStatic || options.master_addr ||
          options.master_port || options.node_rank);
}

// The host part of the meeting point that the user named; empty if none was.
std::string meeting_host(const Options& options) {
  if (options.rdzv_endpoint) return options.rdzv_endpoint->host;
  return options.master_addr.value_or("");
}

std::optional<Failure> contradiction(const Options& options, const RendezvousPlan& plan) {
  const std::string nnodes = "--nnodes " + to_string(plan.nnodes);
  const std::string local_nodes = "--local-nodes " + std::to_string(plan.local_nodes);
  if (options.standalone && plan.local_nodes > 1) {
    return usage("--standalone and " + local_nodes +
                 " exclude each other: --standalone is one node");
  }
  if (options.standalone && plan.nnodes.max > 1) {
    return usage("--standalone and " + nnodes + " exclude each other: --standalone is one node");
  }
  if (options.node_rank && plan.local_nodes > 1) {
    return usage("--node-rank and " + local_nodes +
                 " exclude each other: it has a rank for each node");
  }
  if (options.node_rank && *options.node_rank >= plan.nnodes.max) {
    return usage("--node-rank " + std::to_string(*options.node_rank) + " must be below " + nnodes);
  }
  if (options.token_file && !options.rdzv_conf.authenticated) {
    return usage("--token-file and --rdzv-conf auth=none exclude each other");
  }
  if (!options.other_endpoints.empty() && options.rdzv_conf.is_host == true) {
    return usage(
        "--rdzv-conf is_host=1 and several --rdzv-endpoint exclude each other: they are "
        "daemons that were started before");
  }
  const bool named = options.rdzv_endpoint || is_static_habit(options);
  if (options.rdzv_conf.is_host == false && plan.others_may_come && !named) {
    return usage("--rdzv-conf is_host=0 needs --rdzv-endpoint: which endpoint is to be joined?");
  }
  return std::nullopt;
}

struct Choice {
  Mode mode;
  IfTaken if_taken;
};

// If other nodes can join, or an endpoint is named: host or join?
Choice host_or_join(const Options& options, const MachineFacts& facts) {
  const std::optional<bool> is_host = options.rdzv_conf.is_host;
  if (!options.other_endpoints.empty()) return {Mode::kJoin, IfTaken::kFail};
  if (is_host) return {*is_host ? Mode::kHost : Mode::kJoin, IfTaken::kFail};
  const std::string host = meeting_host(options);
  const bool habit = is_static_habit(options);
  const bool is_static = habit || options.rdzv_backend == RdzvBackend::kStatic;
  const bool is_c10d = options.rdzv_backend == RdzvBackend::kC10d;
  if (options.node_rank && *options.node_rank > 0 && !is_c10d) return {Mode::kJoin, IfTaken::kFail};
  if (options.node_rank && is_static && !is_c10d) return {Mode::kHost, IfTaken::kFail};
  if (host.empty()) return {Mode::kHost, habit ? IfTaken::kFail : IfTaken::kAnyPort};
  return {names_this_machine(host, facts) ? Mode::kHost : Mode::kJoin, IfTaken::kJoin};
}

std::string first_own_address(const MachineFacts& facts) {
  return facts.own_addresses.empty() ? facts.host_name : facts.own_addresses.front();
}

// Under which number the others reach this node, which hosts the endpoint `host`. The workers'
// store lets in numbers only, and a name may mean something else on another machine.
std::string own_number(const std::string& host, const RendezvousPlan& plan,
                       const MachineFacts& facts) {
  if (!plan.listen_host.empty()) return plan.listen_host;
  for (const std::string& address : facts.endpoint_addresses) {
    if (has_address(facts, address)) return address;
  }
  return is_numeric(host) && !is_any_address(host) ? host : first_own_address(facts);
}

std::string list_of(const std::vector<std::string>& words) {
  std::string list;
  for (const std::string& word : words) list += (list.empty() ? "" : ", ") + word;
  return list;
}

// torchrun only passes it on; here this node's store and agent listen there.
std::optional<Failure> wrong_local_address(const Options& options, const MachineFacts& facts) {
  const std::string own = options.local_addr.value_or("");
  const bool is_of_link = own.starts_with("fe80:");  // Not among own_addresses.
  const bool is_here = own.empty() || !is_numeric(own) || is_loopback(own) || is_any_address(own) ||
                       is_of_link || facts.own_addresses.empty() || has_address(facts, own);
  if (is_here) return std::nullopt;
  return usage("--local-addr " + own + " is no address of this machine (it has " +
               list_of(facts.own_addresses) +
               "); if it leads here from outside, give it as --advertise-addr");
}

// What can be right only among processes of one machine.
void warn_of_places(const Options& options, const MachineFacts& facts, RendezvousPlan& plan) {
  const std::string own = options.advertise_addr.value_or(options.local_addr.value_or(""));
  const bool is_here = plan.mode != Mode::kStandalone && is_loopback(plan.endpoint.host);
  if (plan.others_may_come && is_loopback(own) && !is_here) {
    plan.warnings.push_back(
        std::string(options.advertise_addr ? "--advertise-addr " : "--local-addr ") + own +
        " is each machine's own loopback address: workers on others do not reach this node there" +
        (facts.own_addresses.empty() ? "" : "; it has " + list_of(facts.own_addresses)));
  }
  const std::string& named = facts.socket_interface;
  if (named.empty() || facts.interfaces.empty()) return;
  if (std::ranges::find(facts.interfaces, named) != facts.interfaces.end()) return;
  plan.warnings.push_back("DDPRUN_SOCKET_IFNAME=" + named +
                          ": this machine has no such interface; it has " +
                          list_of(facts.interfaces));
}

void place_standalone(const Options& options, const MachineFacts& facts, RendezvousPlan& plan) {
  plan.mode = Mode::kStandalone;
  plan.local_host = "127.0.0.1";
  plan.node_address = options.local_addr.value_or("127.0.0.1");
  plan.store_port = options.master_port;
  plan.run_id = options.rdzv_id;
  if (options.standalone && options.rdzv_endpoint) {
    plan.warnings.push_back("--standalone is given, so --rdzv-endpoint " +
                            to_string(*options.rdzv_endpoint) + " is not used");
  }
  if (!options.master_addr) return;
  if (names_this_machine(*options.master_addr, facts)) {
    plan.node_address = *options.master_addr;
  } else {
    plan.warnings.push_back("--master-addr " + *options.master_addr +
                            " is not this machine and is not used: the run has one node");
  }
}

void advertise(const Options& options, RendezvousPlan& plan) {
  if (!options.advertise_addr) return;
  plan.node_address = *options.advertise_addr;
  plan.store_listen_host = options.local_addr.value_or("");
}

void place_host(const Options& options, const MachineFacts& facts, RendezvousPlan& plan) {
  DDPRUN_ASSERT(plan.mode == Mode::kHost && plan.listen_host.empty());
  const std::string host = meeting_host(options);
  const bool is_own_number = has_address(facts, host);
  if (!plan.others_may_come && host.empty()) {
    plan.listen_host = "127.0.0.1";
  } else if (is_loopback(host)) {
    plan.listen_host = is_numeric(host) ? host : "127.0.0.1";
  } else if (is_own_number) {
    plan.listen_host = host;
  } else if ((host.empty() || options.advertise_addr) && options.local_addr &&
             is_numeric(*options.local_addr)) {
    plan.listen_host = *options.local_addr;
  }
  const std::string shown = plan.listen_host.empty() ? first_own_address(facts) : plan.listen_host;
  const bool nameless = host.empty() || is_any_address(host);
  plan.endpoint.host =
      nameless ? options.advertise_addr.value_or(options.local_addr.value_or(shown)) : host;
  plan.local_host = plan.listen_host.empty() ? "127.0.0.1" : plan.listen_host;
  plan.node_address = options.local_addr.value_or(own_number(plan.endpoint.host, plan, facts));
  advertise(options, plan);
}

void place_join(const Options& options, RendezvousPlan& plan) {
  DDPRUN_ASSERT(plan.mode == Mode::kJoin);
  plan.endpoint.host = meeting_host(options);
  plan.other_endpoints = options.other_endpoints;
  for (Endpoint& other : plan.other_endpoints) other.port = other.port.value_or(kEndpointPort);
  plan.node_address = options.local_addr.value_or("");
  advertise(options, plan);
  if (!plan.endpoint.host.empty()) return;
  plan.endpoint.host = "127.0.0.1";
  plan.warnings.push_back(
      "neither --rdzv-endpoint nor --master-addr gives the address of node rank 0: "
      "looking on this machine, as torchrun does");
}

void choose_ports(const Options& options, RendezvousPlan& plan) {
  if (options.rdzv_endpoint) {
    plan.endpoint.port = options.rdzv_endpoint->port.value_or(kEndpointPort);
    plan.derived_ports = options.derived_ports;
    plan.store_port = options.master_port;
  } else if (is_static_habit(options)) {
    plan.endpoint.port = options.master_port.value_or(kMasterPort);
  } else {
    plan.endpoint.port = plan.others_may_come ? kEndpointPort : 0;
  }
}

// Port 0 of an endpoint on this machine is torchrun's way to request a run alone, with any port.
bool wants_any_port_here(const Options& options) {
  return options.rdzv_endpoint && options.rdzv_endpoint->port == std::uint16_t{0} &&
         is_loopback(options.rdzv_endpoint->host);
}

bool runs_alone(const Options& options, const RendezvousPlan& plan) {
  if (options.standalone) return true;
  if (plan.others_may_come || plan.local_nodes > 1 || options.pages.port) return false;
  return !options.rdzv_endpoint || wants_any_port_here(options);
}

std::optional<Failure> cannot_host(const Options& options, const MachineFacts& facts) {
  const std::string host = meeting_host(options);
  const bool is_number =
      !host.empty() && is_numeric(host) && !options.local_addr && !options.advertise_addr;
  if (!is_number || names_this_machine(host, facts)) return std::nullopt;  // Names may lead here.
  const std::string own = list_of(facts.own_addresses);
  const bool by_rank = options.rdzv_conf.is_host != true;
  return usage(std::string(by_rank ? "node rank 0" : "with --rdzv-conf is_host=1 this node") +
               " hosts at " + (options.rdzv_endpoint ? "--rdzv-endpoint" : "--master-addr") +
               ", but " + host + " is not an address of this machine" +
               (own.empty() ? "" : " (it has " + own + ")") + "; give this node " +
               (by_rank ? "another --node-rank" : "is_host=0") + ", or --advertise-addr " + host +
               " if that leads here from outside");
}

std::optional<Failure> place_among_others(const Options& options, const MachineFacts& facts,
                                          RendezvousPlan& plan) {
  const std::string host = meeting_host(options);
  if (plan.local_nodes > 1 && !host.empty() && !names_this_machine(host, facts)) {
    return usage("--local-nodes " + std::to_string(plan.local_nodes) +
                 " runs all its nodes on this machine, but " + host + " of " +
                 (options.rdzv_endpoint ? "--rdzv-endpoint" : "--master-addr") + " is another one");
  }
  const Choice choice = host_or_join(options, facts);
  plan.mode = choice.mode;
  plan.if_taken = choice.if_taken;
  plan.run_id = options.rdzv_id;
  if (!plan.run_id && (plan.others_may_come || !host.empty())) plan.run_id = "none";
  choose_ports(options, plan);
  if (plan.mode == Mode::kHost) {
    if (auto failure = cannot_host(options, facts)) return failure;
    place_host(options, facts, plan);
  } else {
    place_join(options, plan);
  }
  if (plan.mode == Mode::kJoin && plan.endpoint.port == std::uint16_t{0}) {
    return usage("port 0 of " + to_string(plan.endpoint) +
                 " means any port, which only the node that hosts the endpoint can choose");
  }
  return std::nullopt;
}

// Without a token the daemon could not know the store's clients from its own.
void place_store(const Options& options, const MachineFacts& facts, RendezvousPlan& plan) {
  const bool several = !plan.other_endpoints.empty() || !plan.derived_ports.empty();
  if (several || plan.token == Token::kNone) return;
  plan.store_at_endpoint = is_static_habit(options) || options.one_port;
  if (options.one_port && plan.store_port && plan.mode != Mode::kStandalone) {
    plan.warnings.push_back("--one-port puts the workers' store at port " +
                            std::to_string(*plan.endpoint.port) + ", that of the endpoint: " +
                            "--master-port " + std::to_string(*plan.store_port) + " is not used");
    plan.store_port.reset();
  }
  const std::string& host = plan.endpoint.host;
  const bool reaches_it = plan.mode == Mode::kJoin || names_this_machine(host, facts);
  const std::string& own = options.advertise_addr ? plan.local_host : plan.node_address;
  plan.store_address = reaches_it ? host : own;
}

// A user giving this node an address has chosen its network; one may name another for data.
bool offers_networks(const Options& options, const MachineFacts& facts,
                     const RendezvousPlan& plan) {
  if (plan.mode == Mode::kStandalone || !plan.others_may_come || options.one_port) return false;
  const bool has_chosen = options.local_addr || options.advertise_addr;
  return !has_chosen || !facts.socket_interface.empty();
}

}  // namespace

std::optional<Failure> choose_token(const Options& options, const MachineFacts& facts,
                                    RendezvousPlan& plan) {
  if (plan.mode == Mode::kStandalone || !options.rdzv_conf.authenticated) return std::nullopt;
  if (options.token_file) {
    plan.token = Token::kFile;
    plan.token_file = *options.token_file;
  } else if (facts.token_in_environment) {
    plan.token = Token::kEnvironment;
  } else if (!facts.token_file.empty()) {
    plan.token = Token::kFile;
    plan.token_file = facts.token_file;
  } else if (plan.mode == Mode::kHost && !(facts.in_pod && plan.others_may_come)) {
    plan.token = Token::kMint;
  } else {
    return missing_token(plan.endpoint, facts.in_pod);
  }
  return std::nullopt;
}

std::string name_to_resolve(const Options& options) {
  const std::string host = meeting_host(options);
  if (options.standalone || host.empty() || is_numeric(host)) return "";
  return is_loopback(host) ? "" : host;
}

Result<RendezvousPlan> make_plan(const Options& options, const MachineFacts& facts) {
  RendezvousPlan plan;
  plan.local_nodes = options.local_nodes.value_or(1);
  plan.nnodes = options.nnodes.value_or(NodeRange{plan.local_nodes, plan.local_nodes});
  plan.others_may_come = plan.nnodes.max > plan.local_nodes;
  plan.node_rank = options.node_rank;
  DDPRUN_ASSERT(plan.local_nodes >= 1);
  DDPRUN_ASSERT(plan.nnodes.min >= 1 && plan.nnodes.min <= plan.nnodes.max);
  if (const auto failure = contradiction(options, plan)) return *failure;
  if (const auto failure = wrong_local_address(options, facts)) return *failure;
  if (runs_alone(options, plan)) {
    place_standalone(options, facts, plan);
  } else if (const auto failure = place_among_others(options, facts, plan)) {
    return *failure;
  }
  if (const auto failure = choose_token(options, facts, plan)) return *failure;
  if (options.one_port && plan.token == Token::kNone && plan.mode != Mode::kStandalone) {
    return usage("--one-port needs the run's token: leave out auth=none of --rdzv-conf");
  }
  place_store(options, facts, plan);
  warn_of_places(options, facts, plan);
  plan.offers_networks = offers_networks(options, facts, plan);
  DDPRUN_ASSERT(plan.mode == Mode::kStandalone || plan.endpoint.port);
  return plan;
}

// Spares have the local ranks after those of the workers.
std::vector<std::string> absent_rank_warnings(const Options& options, int workers_per_node) {
  const int present = workers_per_node + options.spares;
  std::vector<std::string> warnings;
  const auto check = [&](const char* flag, const std::set<int>& named, const char* outcome) {
    const std::vector<int> absent(named.lower_bound(present), named.end());
    if (absent.empty()) return;
    warnings.push_back(std::string(flag) + " names local rank" + (absent.size() > 1 ? "s " : " ") +
                       ranges_text(absent) + ", but this node's last local rank is " +
                       std::to_string(present - 1) +
                       (absent.size() == named.size() ? outcome : ""));
  };
  const auto ranks_of = [](const StreamMap& map) {
    std::set<int> ranks;
    for (const auto& [rank, streams] : map.of_rank) ranks.insert(rank);
    return ranks;
  };
  const std::vector<int>& shown = options.output.local_ranks_filter;
  check("--local-ranks-filter", {shown.begin(), shown.end()}, ": no worker's lines are printed");
  check("--redirects", ranks_of(options.output.redirects), "");
  check("--tee", ranks_of(options.output.tee), "");
  return warnings;
}

// A line cannot be pasted into a pod, and the cluster keeps what a pod prints.
Failure missing_token(const Endpoint& endpoint, bool in_pod) {
  if (in_pod) {
    return usage(
        "the pods of this run need one token: put it into a Secret (kubectl create secret generic "
        "ddprun --from-literal=token=$(openssl rand -hex 16)) that each of them gets as the "
        "variable DDPRUN_TOKEN (env, valueFrom, secretKeyRef), or give --token-file FILE, or "
        "--rdzv-conf auth=none on every node");
  }
  return usage(
      "joining " + to_string(endpoint) +
      " needs the run's token: paste the whole line that the hosting node printed (it begins "
      "with DDPRUN_TOKEN=), or give --token-file, or --rdzv-conf auth=none on every node");
}

// paste_line() of plan.h: how this node's command line reads on another machine.

namespace {

// Flags for this node only, and flags that the endpoint in the line replaces.
constexpr std::string_view kOfThisNode[] = {"--standalone",   "--node-rank",   "--rdzv-endpoint",
                                            "--rdzv-backend", "--local-addr",  "--advertise-addr",
                                            "--master-addr",  "--master-port", "--local-nodes",
                                            "--token-file",   "--dry-run"};

std::string without_is_host(std::string_view conf) {
  std::string kept;
  while (!conf.empty()) {
    const std::size_t comma = conf.find(',');
    const std::string_view pair = conf.substr(0, comma);
    conf.remove_prefix(comma == std::string_view::npos ? conf.size() : comma + 1);
    if (pair.starts_with("is_host=")) continue;
    if (!kept.empty()) kept += ',';
    kept += pair;
  }
  return kept;
}

std::string repeated(const GivenOption& option) {
  if (!option.value) return " " + option.flag;
  std::string value = *option.value;
  if (option.flag == "--rdzv-conf") value = without_is_host(value);
  return value.empty() ? "" : " " + option.flag + " " + shell_quote(value);
}

}  // namespace

std::string paste_line(const RendezvousPlan& plan, const Options& options, std::string_view token) {
  DDPRUN_ASSERT(plan.mode != RendezvousPlan::Mode::kStandalone && plan.endpoint.port);
  DDPRUN_ASSERT(plan.token != RendezvousPlan::Token::kMint || !token.empty());
  std::string line;
  if (plan.token == RendezvousPlan::Token::kMint) line = "DDPRUN_TOKEN=" + shell_quote(token) + " ";
  line += shell_quote(options.invoked_as);
  for (const GivenOption& option : options.given) {
    const auto end = std::end(kOfThisNode);
    if (std::find(std::begin(kOfThisNode), end, option.flag) == end) line += repeated(option);
  }
  line += " --rdzv-endpoint " + shell_quote(to_string(plan.endpoint));
  if (plan.store_port) line += " --master-port " + std::to_string(*plan.store_port);
  if (plan.token == RendezvousPlan::Token::kFile)
    line += " --token-file " + shell_quote(plan.token_file);
  line += " " + shell_quote(options.program);
  for (const std::string& argument : options.program_arguments) line += " " + shell_quote(argument);
  return line;
}

}  // namespace ddprun::launcher
