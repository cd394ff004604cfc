#include "agent/placement/binding.h"

#include <algorithm>
#include <cstddef>

#include "common/assert.h"

namespace ddprun::agent {
namespace {

using Processors = std::vector<int>;

void append(Processors& all, const Processors& more) {
  all.insert(all.end(), more.begin(), more.end());
}

Processors all_of(const NumaNode& node) {
  Processors all;
  for (const Processors& core : node.cores) append(all, core);
  return all;
}

Processors socket_of(const Machine& machine, int socket) {
  Processors all;
  for (const NumaNode& node : machine.nodes) {
    if (node.socket == socket) append(all, all_of(node));
  }
  return all;
}

// Of `sharers` workers the one of this place gets as many cores as the others, or one more.
Result<Processors> share_of(const NumaNode& node, std::size_t place, std::size_t sharers) {
  const std::size_t each = node.cores.size() / sharers, over = node.cores.size() % sharers;
  if (each == 0) {
    return Failure{Errc::kBadOption, "--numa-binding exclusive: NUMA node " +
                                         std::to_string(node.number) + " has " +
                                         std::to_string(node.cores.size()) + " cores for " +
                                         std::to_string(sharers) + " workers; try node"};
  }
  const std::size_t begin = place * each + std::min(place, over);
  const std::size_t end = begin + each + (place < over ? 1 : 0);
  Processors share;
  for (std::size_t core = begin; core < end; ++core) append(share, node.cores[core]);
  return share;
}

// The largest first, then by their first processor.
Processors cache_of(const NumaNode& node, std::size_t place) {
  if (node.caches.empty()) return all_of(node);
  std::vector<Processors> caches = node.caches;
  std::sort(caches.begin(), caches.end(), [](const Processors& a, const Processors& b) {
    return a.size() != b.size() ? a.size() > b.size() : a < b;
  });
  return caches[place % caches.size()];
}

// Indices into machine.nodes.
std::vector<std::size_t> nodes_of_workers(const Machine& machine, const std::vector<int>& numbers) {
  std::vector<std::size_t> nodes;
  for (std::size_t worker = 0; worker < numbers.size(); ++worker) {
    const auto found = std::find_if(machine.nodes.begin(), machine.nodes.end(),
                                    [&](const NumaNode& n) { return n.number == numbers[worker]; });
    nodes.push_back(found != machine.nodes.end()
                        ? static_cast<std::size_t>(found - machine.nodes.begin())
                        : worker * machine.nodes.size() / numbers.size());
  }
  return nodes;
}

}  // namespace

Result<std::vector<Processors>> bind_workers(const Machine& machine, NumaBinding binding,
                                             const std::vector<int>& node_of_worker) {
  std::vector<Processors> bound(node_of_worker.size());
  if (binding == NumaBinding::kNone || machine.nodes.empty()) return bound;
  const std::vector<std::size_t> nodes = nodes_of_workers(machine, node_of_worker);
  for (std::size_t worker = 0; worker < nodes.size(); ++worker) {
    const NumaNode& node = machine.nodes[nodes[worker]];
    const auto here = static_cast<std::ptrdiff_t>(worker);
    const auto place =
        static_cast<std::size_t>(std::count(nodes.begin(), nodes.begin() + here, nodes[worker]));
    const auto sharers =
        static_cast<std::size_t>(std::count(nodes.begin(), nodes.end(), nodes[worker]));
    Processors& own = bound[worker];
    if (binding == NumaBinding::kNode) own = all_of(node);
    if (binding == NumaBinding::kSocket) own = socket_of(machine, node.socket);
    if (binding == NumaBinding::kCoreComplex) own = cache_of(node, place);
    if (binding == NumaBinding::kExclusive) {
      auto share = share_of(node, place, sharers);
      if (!share) return share.error();
      own = std::move(*share);
    }
    std::sort(own.begin(), own.end());
  }
  return bound;
}

int count_cores(const Machine& machine, const Processors& processors) {
  int count = 0;
  for (const NumaNode& node : machine.nodes) {
    count += static_cast<int>(
        std::count_if(node.cores.begin(), node.cores.end(), [&](const Processors& core) {
          return std::any_of(core.begin(), core.end(), [&](int cpu) {
            return std::find(processors.begin(), processors.end(), cpu) != processors.end();
          });
        }));
  }
  return count;
}

std::string processors_text(const Processors& processors) {
  std::string text;
  for (std::size_t i = 0; i < processors.size();) {
    std::size_t end = i + 1;
    while (end < processors.size() && processors[end] == processors[end - 1] + 1) ++end;
    if (!text.empty()) text += ',';
    text += std::to_string(processors[i]);
    if (end - i > 1) text.append(1, '-').append(std::to_string(processors[end - 1]));
    i = end;
  }
  return text;
}

namespace {

template <class T>
std::vector<T> slice(const std::vector<T>& all, int index, int workers) {
  if (all.empty()) return {};
  DDPRUN_ASSERT(index >= 0 && std::ssize(all) >= std::ptrdiff_t{index + 1} * workers);
  const auto begin = all.begin() + static_cast<std::ptrdiff_t>(index) * workers;
  return {begin, begin + workers};
}

}  // namespace

WorkerPlacement WorkerPlacement::of_node(int index, int workers) const {
  return {.processors = slice(processors, index, workers),
          .omp_threads = slice(omp_threads, index, workers),
          .devices = slice(devices, index, workers),
          .shared_gpus = shared_gpus};
}

}  // namespace ddprun::agent
