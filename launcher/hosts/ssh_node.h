#pragma once
// One node that ssh runs for us: its process, its pipes, and their interpretation. Does not wait
// and decides nothing. Used by fleet.cc.

#include <poll.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "agent/lines/lines.h"
#include "common/system/child_process.h"
#include "launcher/hosts/own_copy.h"
#include "launcher/hosts/remote_node.h"
#include "launcher/options/options.h"
#include "launcher/plan/plan.h"

namespace ddprun::launcher {

// How a host of --hosts is reached, and reasons known beforehand why it cannot be:

// The command that starts the far end on `host`: ssh's, or our own program if that is this machine.
std::vector<std::string> far_end_command(const HostEntry& host, const std::vector<std::string>& ssh,
                                         const MachineFacts& facts);

// The command of ssh alone, without what it runs there; empty if `host` is this machine.
std::vector<std::string> way_to(const HostEntry& host, const std::vector<std::string>& ssh,
                                const MachineFacts& facts);

// The port at which the nodes of a run of --hosts meet: of --port-range, or below the ephemeral
// ports, as under Slurm.
std::uint16_t random_meeting_port(const PortRange& range = {});

// Names that denote another machine on each other host.
std::optional<Failure> unreachable_names(const std::vector<HostEntry>& hosts);

// For --env.
std::optional<Failure> missing_variable(const std::vector<std::string>& names,
                                        const Environment& environment);

// Whole lines of one stream of one node, each under the node's name.
class NamedLines : public agent::LineSink {
 public:
  NamedLines(std::string name, std::function<bool(std::string_view)> is_shown)
      : name_("[" + std::move(name) + "] "), is_shown_(std::move(is_shown)) {}

  void on_line(std::string_view line) override;
  void on_piece(std::string_view piece) override;
  void on_progress(std::string_view) override {}  // Only the last state is shown, as a line.

  void feed(std::string_view bytes) { splitter_.feed(bytes, *this); }
  void finish() { splitter_.finish(*this); }
  std::string take() { return std::exchange(text_, {}); }

 private:
  const std::string name_;
  const std::function<bool(std::string_view)> is_shown_;
  agent::LineSplitter splitter_;
  std::string text_;
};

class SshNode {
 public:
  // `take` sees the lines of its standard output that are not ddprun's own; those for which it
  // returns true are not shown.
  SshNode(HostEntry entry, const std::string& program, ChildProcess started,
          std::function<bool(std::string_view)> take = {});

  void add_polls(std::vector<pollfd>& polls) const;
  void queue(std::string_view body);  // To be sent as a frame.

  // Reads, writes and shows what can be without waiting. True if the process has ended by now; it
  // is reaped then.
  bool serve();

  void hang_up() { process_.input.reset(); }
  void kill();  // Kills ssh itself only.

  const HostEntry host;
  RemoteNode remote;

 private:
  void give_copy();
  void send();
  void end();

  NamedLines output_, errors_;
  ChildProcess process_;
  std::string to_send_;
  std::shared_ptr<const OwnCopy> offer_;  // The far end may request it.
  std::shared_ptr<const OwnCopy> copy_;   // Being sent, and how much of it has been.
  std::size_t copied_ = 0;
};

}  // namespace ddprun::launcher
