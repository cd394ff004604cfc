#include "rendezvous/run/seats.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <tuple>

#include "common/assert.h"

namespace ddprun::rendezvous {
namespace {

constexpr std::size_t kFree = std::numeric_limits<std::size_t>::max();

// The order of nodes without a given node rank.
auto natural_key(const Candidate& c) {
  const int before =
      c.group_rank_before < 0 ? std::numeric_limits<int>::max() : c.group_rank_before;
  return std::tuple(before, !c.offer->hosts_endpoint, c.arrival);
}

}  // namespace

std::vector<std::size_t> order_nodes(const std::vector<Candidate>& candidates) {
  std::vector<std::size_t> rest(candidates.size());
  std::iota(rest.begin(), rest.end(), std::size_t{0});
  std::sort(rest.begin(), rest.end(), [&](std::size_t a, std::size_t b) {
    return natural_key(candidates[a]) < natural_key(candidates[b]);
  });

  // Given node ranks first, each in its own place; the others fill what is left in natural order. A
  // given rank beyond the end (the round is smaller than once planned) does not count.
  std::vector<std::size_t> order(candidates.size(), kFree);
  std::erase_if(rest, [&](std::size_t i) {
    const int given = candidates[i].offer->node_rank;
    if (given < 0 || static_cast<std::size_t>(given) >= order.size()) return false;
    std::size_t& place = order[static_cast<std::size_t>(given)];
    if (place != kFree) return false;
    place = i;
    return true;
  });
  auto next = rest.begin();
  for (std::size_t& place : order) {
    if (place != kFree) continue;
    DDPRUN_ASSERT(next != rest.end());
    place = *next++;
  }
  DDPRUN_ASSERT(next == rest.end());
  return order;
}

std::vector<Seat> assign_seats(const std::vector<const NodeOffer*>& offers, int round,
                               int restart_count) {
  DDPRUN_ASSERT(!offers.empty());
  std::map<std::string, int> role_world_size;
  int world_size = 0;
  for (const NodeOffer* offer : offers) {
    world_size += offer->local_world_size;
    role_world_size[offer->role] += offer->local_world_size;
  }

  std::vector<Seat> seats;
  std::map<std::string, int> role_next;
  int rank_next = 0;
  for (const NodeOffer* offer : offers) {
    Seat& seat = seats.emplace_back();
    seat.round = round;
    seat.restart_count = restart_count;
    seat.group_rank = static_cast<int>(seats.size()) - 1;
    seat.group_world_size = static_cast<int>(offers.size());
    seat.base_rank = std::exchange(rank_next, rank_next + offer->local_world_size);
    seat.workers = offer->local_world_size;
    seat.world_size = world_size;
    seat.role_base_rank = role_next[offer->role];
    role_next[offer->role] += offer->local_world_size;
    seat.role_world_size = role_world_size[offer->role];
    seat.master_address = offers.front()->address;
    seat.master_port = offers.front()->store_port;
    seat.master_host = offers.front()->host;
    seat.store_at_endpoint = offers.front()->store_at_endpoint;
  }
  // The ranks of a node behind a router come from the router's address.
  for (const NodeOffer* offer : offers) {
    seats.front().members.push_back(offer->address);
    if (!offer->seen_at.empty()) seats.front().members.push_back(offer->seen_at);
  }
  if (offers.size() > 1) {
    for (std::size_t i = 0; i < offers.size(); ++i) {
      const NodeOffer& next = *offers[(i + 1) % offers.size()];
      seats[i].neighbour = Neighbour{.host = next.host,
                                     .address = next.address,
                                     .port = next.store_port,
                                     .seen_at = next.seen_at};
    }
  }
  return seats;
}

}  // namespace ddprun::rendezvous
