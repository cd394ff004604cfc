#pragma once
// The messages of links that belong to no agent, and their JSON form (docs/protocol.md): such a
// link begins with a Command, a Dial or a Meet in place of a Hello. Pure.

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>

#include "common/error.h"
#include "rendezvous/protocol/wire.h"

namespace ddprun::rendezvous {

// Of an operator (ddprunctl): the first and only message of a link, which gets its answer and is
// closed.
struct Command {
  enum class Verb {
    kStatus,   // Where all runs stand, or the one named.
    kDrain,    // The run goes on without `node`; the node's launcher ends with success.
    kCancel,   // The run ends.
    kReport,   // The account of the run (rendezvous/ledger/account.h).
    kResize,   // The run goes on with at most `nodes`.
    kWatch,    // As kStatus, with the ranks and the events of each run.
    kHistory,  // The runs that have ended, or the one named, by its id or its number.
  };
  int version = kProtocolVersion;
  Verb verb = Verb::kStatus;
  std::string run_id{};  // May be empty for kStatus, kWatch, kHistory and kDrain only.
  std::string node{};    // kDrain: a node's id, or a host name that only one node has.
  std::string reason{};  // kDrain, kCancel, kResize: the reason given to the nodes.
  int nodes = 0;         // kResize.
  bool force = false;    // kDrain: although the state of a job goes with the node.
};

// The answer, in as many pieces as it takes.
struct Answer {
  std::string error{};  // Not empty: why not. There is nothing else then.
  std::string text{};   // The next piece of a status, of an account, or of a sentence.
  bool more = false;    // Another Answer follows.
};

const char* name_of(Command::Verb verb);  // "status", "drain", ...

std::string encode(const Command& command);
std::string encode(const Answer& answer);

// Anything but a well-formed message within limits is Errc::kBadMessage, with the name of the
// field.
Result<Command> decode_command(std::string_view body);
Result<Answer> decode_answer(std::string_view body);

// The messages by which two nodes that cannot reach each other get a stream of bytes through the
// daemon's port. A Dial or a Meet is the first and only message of a link; the only answer is
// Joined, after which the link carries the bytes of the other one.
//
//   process of a node              daemon               agent of the other node
//     Dial (node, port) ─────────────▶
//                                       Relay ─────────────▶  on its own link; it connects to the
//                                       ◀────────────── Meet  port, and to the daemon once more
//     ◀──────────────────────── Joined  Joined ────────────▶
//     ◀═══════════════════════════ bytes ══════════════════▶

// Wants a stream to `port` of `node`, of a run of which there are nodes here.
struct Dial {
  static constexpr const char* kName = "dial";
  int version = kProtocolVersion;
  std::string run_id;
  NodeId node;
  int port = 0;
  bool operator==(const Dial&) const = default;
};
// The other end of the stream that a Relay has named.
struct Meet {
  static constexpr const char* kName = "meet";
  int version = kProtocolVersion;
  std::string run_id;
  NodeId node;  // Whose agent it is.
  std::uint64_t stream = 0;
  std::string error{};  // Not empty: why there will be no stream.
  bool operator==(const Meet&) const = default;
};
using RelayRequest = std::variant<Dial, Meet>;

struct Joined {
  std::string error{};  // Not empty: there is no stream, and why.
  bool again = false;   // Another dial may succeed, such as once the node is back.
  bool operator==(const Joined&) const = default;
};

std::string encode(const RelayRequest& request);
std::string encode(const Joined& joined);

// Anything but a well-formed message within limits is Errc::kBadMessage, with the name of the
// field.
Result<RelayRequest> decode_relay_request(std::string_view body);
Result<Joined> decode_joined(std::string_view body);

}  // namespace ddprun::rendezvous
