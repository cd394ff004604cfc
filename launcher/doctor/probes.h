#pragma once
// Gathers the facts of this node. Each probe runs in a process of its own, which is killed when its
// time is over: a folder of a server that is gone, or a GPU that hangs, costs no more than that.
// Nothing is judged here. Called by launcher/doctor.

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/time.h"
#include "launcher/doctor/node_facts.h"

namespace ddprun::doctor {

struct ProbeRequest {
  std::string program = {};  // Whose file and libraries are looked at; empty: none.
  std::uint16_t port = 0;    // That should be free; 0: none.
};

struct Probe {
  std::string_view name;  // As checks name it.
  Milliseconds limit;
  bool fast;   // Part of --preflight fast.
  bool alone;  // Measures speed: runs once all others have ended.
  void (*gather)(const ProbeRequest& request, Facts& facts);
};

std::span<const Probe> all_probes();

enum class Depth { kFast, kFull };

// Runs the probes of this depth, all at once but those that want to be alone. What a probe could
// not find out is in the facts as a reason under its name.
Facts gather_facts_of_node(Depth depth, const ProbeRequest& request);

// By file.
void probe_node(const ProbeRequest& request, Facts& facts);
void probe_limits(const ProbeRequest& request, Facts& facts);
void probe_storage(const ProbeRequest& request, Facts& facts);
void probe_cpu(const ProbeRequest& request, Facts& facts);
void probe_names(const ProbeRequest& request, Facts& facts);
void probe_network(const ProbeRequest& request, Facts& facts);
void probe_gpu(const ProbeRequest& request, Facts& facts);
void probe_leftovers(const ProbeRequest& request, Facts& facts);
void probe_program(const ProbeRequest& request, Facts& facts);
void probe_speed(const ProbeRequest& request, Facts& facts);

}  // namespace ddprun::doctor
