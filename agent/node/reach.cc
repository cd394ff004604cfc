#include "agent/node/reach.h"

#include <chrono>

namespace ddprun::agent {
namespace {

bool is_loopback(const std::string& address) {
  return address.empty() || address.starts_with("127.") || address == "::1";
}

// This machine reaches itself whatever a firewall lets through.
bool is_elsewhere(const std::string& address, const std::string& own_address) {
  return !is_loopback(address) && address != own_address;
}

constexpr const char* kOpenPorts =
    "give every node --one-port, which leads all through the endpoint, or --port-range A-B and "
    "open these ports";

// Which of the ways is open, as far as it is known, and what to do about the closed one.
std::string explanation(const ReachTarget& target, const ReachView& view) {
  if (!target.device.empty()) {
    return "data goes over " + target.device +
           "; does that network connect them, or does a firewall let nothing in? Another one is "
           "used with DDPRUN_SOCKET_IFNAME=INTERFACE on every node";
  }
  if (!target.seen_at.empty()) {
    return "the rendezvous daemon sees " + target.host + " at " + target.seen_at +
           ": a router translates its address (NAT); give every node --one-port, which leads all "
           "through the endpoint, or " +
           target.host + " --advertise-addr " + target.seen_at +
           " if that router leads its ports there";
  }
  const std::string firewall = "does a firewall let nothing in to " + target.host + "? ";
  if (view.hosts_endpoint) {
    return target.host + " reaches " + view.host + ", but not the other way; " + firewall +
           kOpenPorts + " on " + target.host;
  }
  if (view.daemon_address == target.address) {
    return "port " + std::to_string(view.daemon_port) +
           " there is open; does a firewall let only some ports through? " + kOpenPorts + " on " +
           target.host;
  }
  const bool is_master = target.kind == ReachTarget::Kind::kStore;
  if (is_master && !is_loopback(view.daemon_address)) {
    return "the endpoint is reached at " + view.daemon_address +
           "; if that is a router in front of " + target.host +
           ", give every node --one-port, or " + target.host + " --advertise-addr " +
           view.daemon_address + "; if not, does a firewall let only some ports through?";
  }
  return firewall + kOpenPorts + " there";
}

}  // namespace

std::vector<ReachTarget> reach_targets(const rendezvous::Seat& seat, const std::string& own_address,
                                       bool has_way_to_store) {
  std::vector<ReachTarget> targets;
  if (seat.group_world_size < 2) return targets;
  const bool needs_store = seat.group_rank != 0 && !has_way_to_store;
  const std::string host = seat.master_host.empty() ? seat.master_address : seat.master_host;
  if (needs_store && is_elsewhere(seat.master_address, own_address)) {
    targets.push_back({.kind = ReachTarget::Kind::kStore,
                       .host = host,
                       .address = seat.master_address,
                       .port = seat.master_port});
  }
  const auto& next = seat.neighbour;
  const std::string& own = seat.data ? seat.data->address : own_address;
  if (!next || !is_elsewhere(next->address, own) || next->port == 0) return targets;
  const bool is_same = !targets.empty() && targets.front().address == next->address &&
                       targets.front().port == next->port;
  if (is_same) {
    targets.front().seen_at = next->seen_at;
  } else {
    targets.push_back({.kind = ReachTarget::Kind::kNeighbour,
                       .host = next->host,
                       .address = next->address,
                       .port = next->port,
                       .seen_at = next->seen_at,
                       .device = seat.data ? seat.data->interface : ""});
  }
  return targets;
}

Reached reached(const ReachTarget& target, const std::error_code& error, bool is_late) {
  if (!error) return Reached::kYes;
  const bool is_refused = error == std::errc::connection_refused;
  if (is_refused && target.kind == ReachTarget::Kind::kNeighbour) return Reached::kYes;
  const bool has_no_way =
      error == std::errc::network_unreachable || error == std::errc::host_unreachable;
  return has_no_way || is_late ? Reached::kNo : Reached::kAgain;
}

std::string reach_error(const std::error_code& error, Duration waited) {
  if (error && error != std::errc::timed_out) return error.message();
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(waited);
  return "no answer within " + std::to_string(seconds.count()) + " s";
}

std::string unreachable_text(const ReachTarget& target, const ReachView& view,
                             const std::string& error) {
  const bool is_store = target.kind == ReachTarget::Kind::kStore;
  return view.host + " does not reach " + (is_store ? "the workers' store on " : "") + target.host +
         " at " + target.address + " port " + std::to_string(target.port) + " (" + error +
         "): " + explanation(target, view);
}

}  // namespace ddprun::agent
