// DistributedDataParallel before its first pass: arguments, agreement with the other ranks, memory;
// and the rebuilding of the buckets after it.

#include <cstdio>
#include <exception>
#include <utility>

#include "worker_sdk/ddp/agreement.h"
#include "worker_sdk/ddp/ddp_impl.h"
#include "worker_sdk/group/group_inside.h"

namespace ddprun {
namespace {

[[noreturn]] void refuse_for(const ProcessGroup& group, const std::string& text) {
  throw Error(ErrorKind::bad_argument,
              {.rank = group.rank(),
               .host = group.host_of(group.rank()),
               .operation = "DistributedDataParallel"},
              text);
}

void check_parameter(const ProcessGroup& group, const Parameter& p, bool needs_value) {
  const DataType type = p.value.type;
  if (!is_floating(type)) {
    refuse_for(group, "parameter " + p.name + " is of type " + name_of(type) +
                          "; only floating-point gradients can be averaged");
  }
  std::size_t count = 1;
  for (const std::int64_t extent : p.shape) count *= static_cast<std::size_t>(extent);
  if (count != p.value.count) {
    refuse_for(group, "parameter " + p.name + " has " + std::to_string(p.value.count) +
                          " elements, but its shape " + std::to_string(count));
  }
  if (needs_value && count > 0 && p.value.data == nullptr) {
    refuse_for(group, "parameter " + p.name + " has no value to broadcast");
  }
}

std::vector<Parameter> checked(const ProcessGroup& group, std::vector<Parameter> parameters,
                               const DdpOptions& options) {
  if (options.uneven_inputs && options.checksum_every > 0) {
    refuse_for(group,
               "uneven_inputs and checksum_every exclude each other: a rank that has joined "
               "no longer steps its values");
  }
  if (options.checksum_every < 0 || options.timer.window < 0) {
    refuse_for(group, "checksum_every and timer.window must not be negative");
  }
  if (parameters.empty()) refuse_for(group, "there are no parameters to train");
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (parameters[i].name.empty()) parameters[i].name.append("#").append(std::to_string(i));
    check_parameter(group, parameters[i], true);
  }
  return parameters;
}

std::vector<std::string> names_of(const std::vector<Parameter>& parameters) {
  std::vector<std::string> names;
  for (const Parameter& p : parameters) names.push_back(p.name);
  return names;
}

worker_sdk::ReducerRules rules_of(const DdpOptions& options) {
  const bool find_unused = options.find_unused && !options.static_graph;
  return {
      .hold_first = !find_unused, .find_unused = find_unused, .static_graph = options.static_graph};
}

}  // namespace

DistributedDataParallel::Impl::Impl(ProcessGroup& g, std::vector<Parameter> given,
                                    const DdpOptions& wanted)
    : options(wanted),
      group(g.share()),
      parameters(checked(g, std::move(given), wanted)),
      reducer(worker_sdk::expected_order(parameters, options), names_of(parameters),
              rules_of(options)),
      touched(parameters.size(), false) {
  connect(g);
}

void DistributedDataParallel::Impl::connect(ProcessGroup& g) {
  group = g.share();
  auto hook = (options.hook ? options.hook : hooks::all_reduce())(group);
  if (!hook) refuse_for(g, "DdpOptions::hook returns no hook");
  const CommHookTraits& traits = hook->traits();
  if (traits.computes_on_host && g.backend() == "nccl") {
    refuse_for(g, "the hook " + traits.name +
                      " computes on the host, which the arrays of nccl are not on");
  }
  if (group.world_size() > 1) {
    worker_sdk::require_agreement(group, worker_sdk::signature(parameters, options, traits.name));
  }
  flow.use(std::move(hook));
  const auto order = worker_sdk::expected_order(parameters, options);
  reducer.reset(order);
  auto next = make_buckets(order);
  flow.use(group, *next);
  buckets = std::move(next);
  if (options.broadcast_at_start && group.world_size() > 1) {
    buckets->broadcast_values(group, parameters, 0);
  }
  buckets->zero(group);
  timer = std::make_unique<worker_sdk::TimerShell>(group, options.timer);
  touched.assign(parameters.size(), false);
  rebuilt = options.find_unused && !options.static_graph;  // Then there is nothing to rebuild from.
  pass = Pass::kNone;
  passes = 0;
}

std::unique_ptr<worker_sdk::BucketSet> DistributedDataParallel::Impl::make_buckets(
    worker_sdk::BucketOrder order) {
  const bool tail = options.find_unused || options.static_graph;
  return std::make_unique<worker_sdk::BucketSet>(group, parameters, std::move(order), tail);
}

// Rank 0's order is everybody's: ranks may have seen different ones.
bool DistributedDataParallel::Impl::rebuild() {
  if (rebuilt || !reducer.knows_order() || pass != Pass::kNone) return false;
  rebuilt = true;
  std::vector<std::int64_t> arrival;
  for (const std::size_t p : reducer.arrival()) arrival.push_back(static_cast<std::int64_t>(p));
  if (group.world_size() > 1) {
    group.broadcast(buffer(arrival.data(), arrival.size()), 0, {.on_host = true});
  }
  auto order = worker_sdk::order_of_arrival(parameters, options, {arrival.begin(), arrival.end()});
  if (order == buckets->order()) return false;
  // The old ones stay until the new ones have everything: a peer may be lost meanwhile.
  auto next = make_buckets(order);
  next->take_over(group, *buckets);
  reducer.regroup(order);
  flow.use(group, *next);
  buckets = std::move(next);
  // There the memory goes only when all ranks have let go of it (nccl_memory.h).
  if (worker_sdk::GroupInside::device(group)) group.barrier();
  return true;
}

// Not where an exception ends the program's scopes, or a failure the group: these speak themselves.
void DistributedDataParallel::Impl::complain_if_unfinished() const noexcept {
  if (pass == Pass::kNone || std::uncaught_exceptions() > 0) return;
  if (worker_sdk::GroupInside::is_dead(group)) return;
  std::fprintf(
      stderr,
      "ddprun: rank %d: a DistributedDataParallel has ended inside a backward pass: without "
      "finish_backward() its gradients are not averaged\n",
      group.rank());
}

void DistributedDataParallel::Impl::refuse(const std::string& text) const {
  refuse_for(group, text);
}

void DistributedDataParallel::Impl::require_parameter(std::size_t i) const {
  if (i < parameters.size()) return;
  refuse("there is no parameter " + std::to_string(i) + ", only " +
         std::to_string(parameters.size()));
}

}  // namespace ddprun
