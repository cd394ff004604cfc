#pragma once
// Which node gets which ranks. Pure; used by Run when it seals a round.
//
// Group ranks follow, in this order of weight: the node rank that its user gave it; its group rank
// in the round before; hosting the endpoint; the order of arrival. Ranks are counted through the
// nodes.

#include <vector>

#include "rendezvous/protocol/wire.h"

namespace ddprun::rendezvous {

struct Candidate {
  const NodeOffer* offer = nullptr;
  int group_rank_before = -1;  // -1: was not in the round before.
  int arrival = 0;
};

// The indices into `candidates` in order of their group ranks.
std::vector<std::size_t> order_nodes(const std::vector<Candidate>& candidates);

// One seat per offer; offers are given in order of group rank and are not empty.
std::vector<Seat> assign_seats(const std::vector<const NodeOffer*>& offers, int round,
                               int restart_count);

}  // namespace ddprun::rendezvous
