#pragma once
// --host-discovery: which hosts have a node of the run, by what a script lists. Pure;
// discovery_run.cc runs the script and the nodes.
//
//   the script   run again `period` after each answer; if it fails, hangs or prints something
//                else, this is reported once, and the last list stays in force
//   a host       listed --StartNode--> starting --its ready line, OrderNode--> running
//                  ^                      |                                       |
//                  |                      | no node             no longer listed, WithdrawNode
//                  '--- its pause ends -- failed <-- its end --'                  v
//                       (twice as long each time)                              leaving --> gone
//   the run      is over when a node has ended with an exit code, and no other is left. One that
//                ends alone, while others run on for `kSettle`, has failed by itself.

#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "common/error.h"
#include "common/time.h"
#include "launcher/hosts/remote_node.h"
#include "launcher/options/options.h"

namespace ddprun::launcher {

// What the script of --host-discovery prints, as in Horovod: one host per line, "host" or
// "host:slots". Pure. Called by host_watch.cc.
inline constexpr std::size_t kHostLinesBytesMax = 1 << 20;
inline constexpr std::size_t kListedHostsMax = 4'096;  // ssh connections from one machine.

// The hosts, in the order of the lines. Ignores blank lines. A failure names the wrong line, as the
// end of a sentence: "line 3 'a b' is not a host: ...".
Result<std::vector<HostEntry>> hosts_in_lines(std::string_view output);

// How the script has ended.
struct HostListing {
  std::string cannot_start = {};  // The reason; empty: the script was started.
  int exit_code = 0;              // 128 + n for signal n.
  bool is_too_long = false;       // The script printed over kHostLinesBytesMax and was killed.
  std::string output = {};
  std::string last_words = {};  // The end of its standard error, as one line.
};

class HostWatch {
 public:
  struct Rules {
    std::string script;     // For messages: "./hosts.sh printed no host".
    NodeRange nnodes;       // Hosts beyond its MAX get no node.
    Milliseconds period;    // From an answer of the script to its next start.
    Milliseconds wait_max;  // The run is given up after so long without a node.
    Milliseconds grace;     // The time that workers have to end.
  };

  // Events.
  struct Tick {};
  struct Listed {
    HostListing listing;
  };
  struct NodeCopies {  // It gets a copy of this ddprun before it is ready.
    std::string host;
  };
  struct NodeReady {
    std::string host;
  };
  struct NodeEnded {
    std::string host;
    std::optional<int> exit_code;  // Of ddprun there; absent: ssh broke, or ddprun never ran.
    std::string why;               // If there is no exit code: a sentence without its end.
  };
  struct Interrupted {
    int signal;
    bool now = false;  // Nodes have been requested to kill their workers at once.
  };
  using Event = std::variant<Tick, Listed, NodeCopies, NodeReady, NodeEnded, Interrupted>;

  // Actions.
  struct RunScript {};
  struct KillScript {};  // The script is late; a Listed that is on its way is ignored.
  struct StartNode {
    HostEntry host;
  };
  struct OrderNode {  // Send its orders.
    std::string host;
  };
  struct WithdrawNode {  // Makes it leave the run when no work is lost.
    std::string host;
  };
  struct KillNode {  // Kills its ssh; NodeEnded follows.
    std::string host;
  };
  struct Report {
    enum class Level { kInfo, kWarning, kError };
    Level level;
    std::string text;
  };
  struct End {  // The last action: kill what is left, and exit.
    int exit_code;
  };
  using Action = std::variant<RunScript, KillScript, StartNode, OrderNode, WithdrawNode, KillNode,
                              Report, End>;

  HostWatch(Rules rules, TimePoint now);

  std::vector<Action> step(const Event& event, TimePoint now);
  // When the next Tick is due.
  std::optional<TimePoint> next_deadline() const;

 private:
  enum class State {
    kStarting,  // ssh has been started.
    kRunning,   // It has received its orders.
    kLeaving,   // It must leave, or was killed before it had orders.
  };
  struct Node {
    HostEntry host;
    State state;
    TimePoint since;                        // In this state.
    Duration start_limit;                   // The time for kStarting.
    bool was_killed = false;                // It will end soon.
    std::optional<int> reported_workers{};  // From the last reported list.
  };
  struct Trouble {
    int failures = 0;
    TimePoint until{};      // No node before.
    bool has_left = false;  // An operator withdrew it; until the host is off the list.
  };
  enum class Complaint { kNotStarted, kHung, kFailed, kTooLong, kGarbage, kEmpty };

  void on(const Tick&) {}
  void on(const Listed& listed);
  void on(const NodeCopies& copies) { nodes_.at(copies.host).start_limit = kCopyLimit; }
  void on(const NodeReady& ready);
  void on(const NodeEnded& ended);
  void on(const Interrupted& interrupted);
  void advance();

  void miss_script(const std::string& why);
  void complain(Complaint kind, const std::string& text);
  std::string in_force() const;
  void accept(std::vector<HostEntry> hosts);
  void compare_workers(const HostEntry& host);
  void withdraw(Node& node);
  void fail_host(const std::string& name, const std::string& why, Duration ran);
  void run_script();
  void end_if_over();
  void settle();
  void start_nodes();
  bool may_start(const std::string& name) const;
  void enforce_deadlines();
  std::optional<TimePoint> deadline_of(const Node& node) const;
  void kill(Node& node);
  void report(Report::Level level, std::string text);
  bool is_listed(const std::string& name) const;
  bool any_runs() const;
  Duration patience() const { return 4 * rules_.period; }  // The time for one answer of the script.

  const Rules rules_;
  TimePoint now_;
  std::vector<Action> actions_;
  std::optional<TimePoint> run_script_at_;  // Absent while the script runs, ...
  std::optional<TimePoint> answer_by_;      // ... whose answer must arrive by then.
  std::vector<HostEntry> listed_;           // From the last good list; empty: there was none.
  std::map<std::string, Node> nodes_;
  std::map<std::string, Trouble> troubles_;  // By host that is listed or has a node.
  std::set<Complaint> reported_;             // Until the script has worked for a while.
  bool complained_ = false;                  // The last report about the script.
  int good_lists_ = 0;                       // In a row.
  std::size_t reported_surplus_ = 0;
  struct EndedNode {
    std::string host;
    int exit_code;
    Duration ran;
  };
  std::vector<EndedNode> ended_;        // By themselves, for a reason not known yet.
  std::optional<TimePoint> settle_at_;  // The others will have ended by then if the run is over.
  std::optional<int> interrupted_;      // By this signal.
  std::optional<TimePoint> interrupt_ends_;  // Then all that is left is killed.
  TimePoint alone_since_;                    // No node has run since.
  bool is_over_ = false;
};

}  // namespace ddprun::launcher
