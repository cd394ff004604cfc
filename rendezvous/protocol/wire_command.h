#pragma once
// The messages between operators (ddprunctl) and the daemon on the control link, and their JSON
// form (docs/protocol.md). A link with a Command as its first message does not belong to an agent:
// it gets its answer and is closed. Pure.

#include <string>
#include <string_view>

#include "common/error.h"
#include "rendezvous/protocol/wire.h"

namespace ddprun::rendezvous {

// The first and only message, in place of Hello.
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

}  // namespace ddprun::rendezvous
