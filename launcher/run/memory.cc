#include "launcher/run/memory.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>

#include <cstdint>

#include "agent/memory/memory_files.h"
#include "agent/memory/memory_server.h"
#include "common/exit_status.h"
#include "common/system/folder.h"
#include "common/system/log.h"
#include "launcher/run/launch.h"

namespace ddprun::launcher {
namespace {

constexpr mode_t kOwnerOnly = 0700;
constexpr const char* kDefaultPlace = "/dev/shm";

std::string size_text(std::uint64_t bytes) {
  constexpr std::uint64_t kMebibyte = std::uint64_t{1} << 20;
  return std::to_string(bytes / kMebibyte) + " MiB";
}

Result<void> make_folder(const std::string& path) {
  if (::mkdir(path.c_str(), kOwnerOnly) == 0) return {};
  return errno_failure("making the memory folder " + path);
}

Result<void> open_server(NodeMemory& memory, bool copies) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    return errno_failure("making a socket pair for the memory server");
  }
  memory.agent_end.reset(ends[0]);
  memory.server_end.reset(ends[1]);
  memory.place.server_fd = ends[0];
  if (!copies) return {};
  auto listening = agent::memory::listen_for_memory_servers();
  if (!listening) return listening.error();
  memory.listening = std::move(listening->socket);
  memory.place.port = listening->port;
  return {};
}

}  // namespace

Result<void> check_memory(const MemoryFolder& wanted, int nodes) {
  const std::string place = wanted.at.empty() ? kDefaultPlace : wanted.at;
  struct statvfs there;
  if (::statvfs(place.c_str(), &there) != 0) {
    const Failure failure = errno_failure("--memory-folder: looking at " + place);
    return Failure{Errc::kBadOption, to_string(failure)};
  }
  struct statfs kind;
  if (::statfs(place.c_str(), &kind) == 0 && kind.f_type != TMPFS_MAGIC &&
      kind.f_type != RAMFS_MAGIC) {
    log::warning("--memory-folder: " + place + " is not in memory: its files are on a disk");
  }
  const std::uint64_t room = std::uint64_t{there.f_bavail} * there.f_frsize;
  const std::uint64_t bytes = wanted.bytes * static_cast<std::uint64_t>(nodes);
  if (bytes <= room) return {};
  return Failure{Errc::kBadOption,
                 "--memory-folder: " + place + " has room for " + size_text(room) + ", not for " +
                     size_text(bytes) +
                     "; give it more (docker run --shm-size=SIZE, or on "
                     "Kubernetes an emptyDir with medium: Memory at /dev/shm), ask for less, or "
                     "name another tmpfs: --memory-folder SIZE,at=FOLDER"};
}

namespace {

constexpr const char* kLock = "/lock";

// Of runs all of whose processes were killed at once: none holds the lock of its folder any more.
void remove_leftovers(const std::string& folder) {
  const std::size_t slash = folder.rfind('/');
  const std::string base = folder.substr(0, slash);
  const std::string prefix = folder.substr(slash + 1, folder.rfind('-') - slash);
  for (const std::string& name : names_in(base).names) {
    const std::string other = base + "/" + name;
    if (!name.starts_with(prefix) || other == folder) continue;
    const UniqueFd lock(::open((other + kLock).c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
    if (!lock || ::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) continue;
    log::info("removed the memory folder of a run that was killed: " + other);
    remove_places({other});
  }
}

// Held by all forks of this process. It gets its name once it is locked, so that no other run can
// take the folder for a leftover before.
Result<UniqueFd> lock_folder(const std::string& folder) {
  const std::string hidden = folder + "/.lock", name = folder + kLock;
  UniqueFd lock(::open(hidden.c_str(), O_RDONLY | O_CREAT | O_CLOEXEC, 0600));
  const bool locked = lock && ::flock(lock.get(), LOCK_SH) == 0;
  if (locked && ::rename(hidden.c_str(), name.c_str()) == 0) return lock;
  return errno_failure("locking the memory folder " + folder);
}

}  // namespace

Result<std::vector<NodeMemory>> make_memory(const NodeContext& context, const std::string& folder) {
  std::vector<NodeMemory> nodes(static_cast<std::size_t>(context.plan.local_nodes));
  const MemoryFolder& wanted = *context.options.memory_folder;
  auto lock = lock_folder(folder);
  if (!lock) return lock.error();
  nodes.front().lock = std::move(*lock);
  remove_leftovers(folder);
  const bool copies = wanted.copies && context.plan.mode != RendezvousPlan::Mode::kStandalone;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    nodes[i].place.base = folder + "/node" + std::to_string(i);
    nodes[i].place.bytes = wanted.bytes;
    for (const char* below : {"", "/own", "/copies", "/staging"}) {
      if (const auto made = make_folder(nodes[i].place.base + below); !made) return made.error();
    }
    if (const auto opened = open_server(nodes[i], copies); !opened) return opened.error();
  }
  return nodes;
}

GuardedChild memory_child(const NodeContext& context, const NodeMemory& memory, int index) {
  GuardedChild child;
  child.kind = GuardedChild::Kind::kService;
  child.leave_signal = kLeaveSignal;
  const bool several = context.plan.local_nodes > 1;
  const std::string suffix = several ? " of node " + std::to_string(index) : "";
  child.name = "the memory server" + suffix;
  child.body = [&context, &memory, suffix] {
    start_log("ddprun memory" + suffix, context.options);
    const agent::memory::MemoryServerOptions options{.base = memory.place.base,
                                                     .bytes = memory.place.bytes,
                                                     .rate = context.options.memory_folder->rate,
                                                     .run_id = context.run_id,
                                                     .token = context.token,
                                                     .listening_fd = memory.listening.get(),
                                                     .agent_fd = memory.server_end.get()};
    return agent::memory::serve_memory(options);
  };
  return child;
}

}  // namespace ddprun::launcher
