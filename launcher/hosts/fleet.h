#pragma once
// The far ends that this ddprun runs, one per host: starts them by ssh, sends them orders and
// further frames, waits until something happens, and reports what did. Decides nothing:
// hosts_run.cc
// (--hosts), discovery_run.cc (--host-discovery) and doctor/host_check.cc (doctor --hosts) do.

#include <poll.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/error.h"
#include "common/system/descriptors.h"
#include "common/system/limits.h"
#include "common/system/own_process.h"
#include "common/system/secrets.h"
#include "common/time.h"
#include "launcher/guard/guarded_process.h"
#include "launcher/hosts/remote_node.h"
#include "launcher/hosts/ssh_node.h"
#include "launcher/options/options.h"
#include "launcher/plan/plan.h"

namespace ddprun::launcher {

class Fleet {
 public:
  // `ssh` is the command of --ssh; `facts` show which hosts are this machine.
  Fleet(std::vector<std::string> ssh, MachineFacts facts)
      : ssh_(std::move(ssh)), facts_(std::move(facts)) {}

  // Takes the signals that are passed on to far ends: from now on they are blocked, and
  // next_signal() returns them.
  Result<void> take_signals();
  ReceivedSignal next_signal() const { return read_signal(signals_.get()); }

  // Starts the far end on `host`. A far end on this machine starts with `limits`, if they are
  // given. `take` sees the lines of standard output that are not ddprun's own, and returns true for
  // a line that is not to be shown.
  Result<SshNode*> start(const HostEntry& host, const std::optional<Limits>& limits = {},
                         std::function<bool(std::string_view)> take = {});

  // Sends its orders to a far end that is ready. The fleet's nonce is filled in. False: the orders
  // are longer than ssh's input can carry.
  bool order(SshNode& node, Orders orders);

  // Sends a signal to all that run, or the request to kill their workers at once.
  void pass_on(int signal, bool now);

  void hang_up();  // Ends the input of all.
  void kill();     // Kills ssh only: the far ends notice that their connections are gone, and end.

  // Waits until something can be read, written or reaped, one of `others` is ready, or `until`.
  void wait(std::optional<TimePoint> until, std::vector<pollfd> others = {}) const;

  // Reads, writes, shows and reaps what can be without waiting. Returns the far ends that have just
  // requested a copy, become ready or ended, in the order in which they were started.
  struct News {
    SshNode* node;
    bool is_copying = false;
    bool is_ready = false;
    bool has_ended = false;
  };
  std::vector<News> serve();
  void remove(const SshNode& node);

  const std::vector<std::unique_ptr<SshNode>>& nodes() const { return nodes_; }
  SshNode* find(std::string_view host) const;  // Null: there is no such node.
  bool any(RemoteNode::State state) const;
  bool all_ended() const;

 private:
  const std::vector<std::string> ssh_;
  const MachineFacts facts_;
  const std::string nonce_ = random_hex(8);
  const std::string self_ = own_program();
  std::vector<std::unique_ptr<SshNode>> nodes_;
  UniqueFd signals_;
};

}  // namespace ddprun::launcher
