#pragma once
// The messages between an agent and the fork server of its workers (python/startup/ddprun_preload),
// one packet each: fields of bytes, each ended by a NUL. Pure. Used by ForkServer.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/error.h"

namespace ddprun::agent {

// With a larger command and environment a worker is started cold.
constexpr std::size_t kForkRequestMax = std::size_t{96} << 10;
constexpr std::size_t kForkReplyMax = 4096;  // Of bytes that a fork server may send at once.

// A worker to be forked. Its descriptors go with the packet, in this order: the pipe on which it
// waits for its agent, standard output, standard error, and its link if it has one.
struct ForkRequest {
  std::uint64_t number = 0;  // Counts the requests; the reply repeats it.
  int agent = 0;             // The process that has to be the worker's parent.
  const std::vector<std::string>& argv;
  const std::vector<std::string>& environment;
};

// A failure: it is too large.
Result<std::string> encode(const ForkRequest& request);

struct ForkReply {
  enum class Kind {
    kReady,    // The modules are imported; `text` counts them. Sent once.
    kRefused,  // There will be no forks, for the reason in `text`. Sent once, and last.
    kForked,   // The worker of request `number` is the process `pid`.
    kCold,     // The worker of request `number` is not forked, for the reason in `text`.
    kResumed,  // As kReady: it is the server of an earlier run, and has imported nothing more.
    kUnfit,    // That server is not used, or this one cannot be saved, for the reason in `text`.
    kSaved,    // It has been saved; `text` is how many modules it has imported.
    kAbsent,   // What --preload names cannot be imported, `text` has the reason. Before the others.
    kFailed,   // As its end, which follows: `text` is that of an exception in the server itself.
  };
  Kind kind = Kind::kRefused;
  std::uint64_t number = 0;
  int pid = 0;
  std::string text = {};  // One line without control characters.
  bool operator==(const ForkReply&) const = default;
};

// The server has run code of the modules that it has imported, so its bytes are checked. Anything
// but a reply is Errc::kBadMessage.
Result<ForkReply> decode_fork_reply(std::string_view packet);

// Why a fork of a server with the environment `server` cannot be a worker with `worker`: a variable
// that modules may have read when they were imported differs. Empty: none does. Those that differ
// from rank to rank and from round to round are left out, see is_of_rank().
std::string environment_difference(const std::vector<std::string>& server,
                                   const std::vector<std::string>& worker);

// What has to be equal for a server with this command and environment to serve a later run, too: in
// the folder `folder`, of these modules; in short. Arguments of the program may differ, and
// variables of a login or a terminal.
std::string kept_key(const std::vector<std::string>& argv,
                     const std::vector<std::string>& environment, const std::string& modules,
                     const std::string& folder);

// Where in a command as is_python_command() accepts it the program is.
std::size_t place_of_program(const std::vector<std::string>& argv);

// A variable that is a rank's, or the run's, and no setting of a library's.
bool is_of_rank(std::string_view variable);
// The same as the fork server gets it: names, and beginnings of names with a '*' behind.
std::string variables_of_ranks();

// Whether a fork server can serve workers with this command: `python -u`, then a program. The
// interpreter itself is checked by the caller.
bool is_python_command(const std::vector<std::string>& argv);

}  // namespace ddprun::agent
