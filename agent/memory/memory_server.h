#pragma once
// The process that keeps copies of memory folders (docs/memory.md): one per node of a run with
// --memory-folder. It copies its node's folder to another node whenever files in it change, takes
// such copies from others, and fills the folder of a node that replaces a lost one. A process of
// its own, below the workers' priority: what it does, or its death, delays neither the agent's
// heartbeats nor a worker. The launcher starts it, and starts it again.
//
//   <base>/own            the node's folder: DDPRUN_MEMORY of its workers
//   <base>/copies/<node>  of other nodes, as they were when the last copy was complete
//   <base>/staging/<node> of copies that are not complete yet
//   <base>/snapshot-<n>   hard links of what is being sent

#include <cstdint>
#include <string>

#include "common/error.h"
#include "common/system/descriptors.h"

namespace ddprun::agent::memory {

// Where the memory servers of other nodes reach that of this one: any free port of all addresses.
struct MemoryListener {
  UniqueFd socket;
  int port = 0;
};
Result<MemoryListener> listen_for_memory_servers();

struct MemoryServerOptions {
  std::string base;         // Exists, with own/ and copies/ in it.
  std::uint64_t bytes = 0;  // What own/ may have, and each copy.
  std::uint64_t rate = 0;   // Bytes a second that are sent, at most; 0: any number.
  std::string run_id;
  std::string token;      // Empty: no TLS.
  int listening_fd = -1;  // Borrowed, for a successor of this process needs it too. -1: no copies.
  int agent_fd = -1;      // The server's end of the socket pair to the agent, likewise.
};

// Until a signal ends it; after kLeaveSignal, of a node that leaves a run which goes on elsewhere,
// until the last change is copied. Returns an exit status.
int serve_memory(const MemoryServerOptions& options);

}  // namespace ddprun::agent::memory
