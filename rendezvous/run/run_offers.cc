// The part of Run that compares what the nodes were told by their users.

#include <algorithm>

#include "common/assert.h"
#include "common/text/figures.h"
#include "rendezvous/run/run.h"

namespace ddprun::rendezvous {
namespace {

constexpr int kWorkersMax = 10'000;      // Of a node; those of all nodes fit an int.
constexpr std::size_t kRefusalsMax = 8;  // That are remembered for those who wait.

std::string nnodes_text(const RunConfig& config) {
  return std::to_string(config.nnodes_min) + ":" + std::to_string(config.nnodes_max);
}

bool has_workers(const NodeOffer& offer) {
  return offer.local_world_size >= 1 && offer.local_world_size <= kWorkersMax;
}

bool makes_sense(const NodeOffer& offer) {
  const RunConfig& config = offer.config;
  return config.nnodes_min >= 1 && config.nnodes_max >= config.nnodes_min &&
         config.max_restarts >= 0;
}

// The flag in which an offer differs from a run, as a sentence; nothing if in none.
std::optional<std::string> difference(const NodeOffer& offer, const RunConfig& run,
                                      const std::string& run_from) {
  const auto differs = [&](const std::string& flag, const std::string& runs_value,
                           const std::string& value) {
    return flag + " is " + value + " on " + offer.host + " but " + runs_value + " on " + run_from +
           "; it must be the same on every node";
  };
  if (nnodes_text(offer.config) != nnodes_text(run)) {
    return differs("--nnodes", nnodes_text(run), nnodes_text(offer.config));
  }
  if (offer.config.min_ranks != run.min_ranks) {
    return differs("--min-ranks", std::to_string(run.min_ranks),
                   std::to_string(offer.config.min_ranks));
  }
  if (offer.config.max_restarts == run.max_restarts) return std::nullopt;
  return differs("--max-restarts", std::to_string(run.max_restarts),
                 std::to_string(offer.config.max_restarts));
}

}  // namespace

// What is wrong with an offer, as a sentence for its node; nothing if it may join.
std::optional<std::string> Run::objection(const NodeId& node, const Join& join) const {
  const NodeOffer& offer = join.offer;
  const bool has_none_yet = join.living && offer.local_world_size == 0;
  if (!has_workers(offer) && !has_none_yet) {
    return "it offers " + number_of(offer.local_world_size, "worker") + "; 1 to " +
           std::to_string(kWorkersMax) + " are possible";
  }
  if (!makes_sense(offer)) return "its --nnodes or --max-restarts is invalid";
  if (!config_) return std::nullopt;
  if (auto differs = difference(offer, *config_, config_from_)) return differs;
  const auto taken = node_ranks_.find(offer.node_rank);
  if (taken != node_ranks_.end() && taken->second != node) {
    return "--node-rank " + std::to_string(offer.node_rank) + " is already taken by " +
           members_.at(taken->second).offer.host;
  }
  return std::nullopt;
}

// Before the first round the node that hosts the endpoint says what the run is to be, even if
// another one was quicker: were it sent away, its daemon would go too, with all the others.
bool Run::is_overruled_by(const NodeOffer& offer) const {
  if (!offer.hosts_endpoint || !has_workers(offer) || !makes_sense(offer)) return false;
  if (!config_) return false;
  if (!gathering() || round_ > 0) return false;
  const bool has_host = std::any_of(members_.begin(), members_.end(), [](const auto& one) {
    return one.second.offer.hosts_endpoint;
  });
  return !has_host && difference(offer, *config_, config_from_);
}

void Run::overrule(const NodeOffer& host) {
  DDPRUN_ASSERT(gathering() && round_ == 0 && config_);
  std::vector<NodeId> others;
  for (const auto& [node, member] : members_) {
    if (difference(member.offer, host.config, host.host)) others.push_back(node);
  }
  for (const NodeId& node : others) {
    const auto it = members_.find(node);
    const NodeOffer offer = it->second.offer;
    erase(it);
    refuse(node, offer.host, *difference(offer, host.config, host.host));
  }
  config_ = host.config;
  min_ranks_ = host.config.min_ranks;
  config_from_ = host.host;
  size_ = 0;
  gather_ends_ = now_ + config_->join_timeout;
  state_ = State::kGathering;
}

void Run::refuse(const NodeId& node, const std::string& host, const std::string& why) {
  tell(node, Refuse{why});
  const std::string what = host + " was refused: " + why;
  if (!gathering() || lost_.size() >= kRefusalsMax) return;
  const std::size_t known = lost_.size();
  note_loss(what);
  if (lost_.size() > known) ++roster_;
}

}  // namespace ddprun::rendezvous
