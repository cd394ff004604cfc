#include "launcher/hosts/host_watch.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "common/assert.h"
#include "common/exit_status.h"
#include "common/text/figures.h"
#include "launcher/options/hosts.h"

namespace ddprun::launcher {
namespace {

constexpr std::size_t kNameBytesMax = 255;
constexpr std::size_t kShownMax = 60;

Failure wrong(std::string what) { return {Errc::kBadMessage, std::move(what)}; }

std::string_view without_blanks(std::string_view line) {
  constexpr std::string_view kBlanks = " \t\r";
  const std::size_t begin = line.find_first_not_of(kBlanks);
  if (begin == std::string_view::npos) return {};
  return line.substr(begin, line.find_last_not_of(kBlanks) - begin + 1);
}

// In quotes, cut, and without control characters.
std::string quoted(std::string_view line) {
  std::string safe(line.substr(0, kShownMax));
  for (char& letter : safe) {
    if (static_cast<unsigned char>(letter) < ' ' || letter == '\x7f') letter = '?';
  }
  return "'" + safe + (line.size() > kShownMax ? "...'" : "'");
}

}  // namespace

Result<std::vector<HostEntry>> hosts_in_lines(std::string_view output) {
  std::vector<HostEntry> hosts;
  std::set<std::string> names;
  for (int number = 1; !output.empty(); ++number) {
    const std::size_t end = output.find('\n');
    const std::string_view line = without_blanks(output.substr(0, end));
    output.remove_prefix(end == std::string_view::npos ? output.size() : end + 1);
    if (line.empty()) continue;
    const std::string place = "line " + std::to_string(number) + " ";
    Result<HostEntry> host = parse_host(line);
    if (!host) return wrong(place + quoted(line) + " is not a host: " + host.error().context);
    if (host->name.size() > kNameBytesMax) return wrong(place + "is longer than a host's name");
    if (!names.insert(host->name).second) return wrong(place + "has " + host->name + " twice");
    hosts.push_back(std::move(*host));
    if (hosts.size() > kListedHostsMax) {
      return wrong("there are more than " + std::to_string(kListedHostsMax) + " hosts");
    }
  }
  return hosts;
}

namespace {

using namespace std::chrono_literals;
using Level = HostWatch::Report::Level;

constexpr Duration kStartLimit = 30s;   // ssh's own limit is 10 s for the connection alone.
constexpr Duration kSettle = 10s;       // From the end of a run's first node to the last one's.
constexpr Duration kStopSlack = 30s;    // Beyond the grace that workers get.
constexpr Duration kNowLimit = 3s;      // For nodes that kill their workers at once.
constexpr Duration kPauseMax = 10min;   // For a host that has failed.
constexpr Duration kGoodSpell = 10min;  // After such a run, a host's pauses begin anew.

std::string seconds(Duration duration) {
  return seconds_text(std::chrono::duration_cast<Milliseconds>(duration));
}

}  // namespace

HostWatch::HostWatch(Rules rules, TimePoint now)
    : rules_(std::move(rules)), now_(now), run_script_at_(now), alone_since_(now) {
  DDPRUN_ASSERT(rules_.nnodes.min >= 1 && rules_.nnodes.min <= rules_.nnodes.max);
  DDPRUN_ASSERT(rules_.period > Duration::zero());
}

std::vector<HostWatch::Action> HostWatch::step(const Event& event, TimePoint now) {
  DDPRUN_ASSERT(now >= now_ && actions_.empty() && !is_over_);
  now_ = now;
  std::visit([&](const auto& what) { on(what); }, event);
  if (!is_over_) advance();
  return std::exchange(actions_, {});
}

void HostWatch::advance() {
  if (any_runs()) alone_since_ = now_;
  end_if_over();
  if (is_over_) return;
  settle();
  run_script();
  start_nodes();
  enforce_deadlines();
}

// Nodes.

bool HostWatch::may_start(const std::string& name) const {
  if (nodes_.contains(name)) return false;
  const auto found = troubles_.find(name);
  if (found == troubles_.end()) return true;
  return !found->second.has_left && now_ >= found->second.until;
}

void HostWatch::start_nodes() {
  if (interrupted_ || settle_at_) return;
  const auto leaving = std::count_if(nodes_.begin(), nodes_.end(), [](const auto& entry) {
    return entry.second.state == State::kLeaving;
  });
  auto places = rules_.nnodes.max - (std::ssize(nodes_) - leaving);
  std::size_t surplus = 0;
  for (const HostEntry& host : listed_) {
    if (!may_start(host.name)) continue;
    if (places <= 0) {
      ++surplus;
      continue;
    }
    --places;
    nodes_.emplace(
        host.name,
        Node{.host = host, .state = State::kStarting, .since = now_, .start_limit = kStartLimit});
    nodes_.at(host.name).reported_workers = host.workers;
    actions_.push_back(StartNode{host});
  }
  if (std::exchange(reported_surplus_, surplus) == surplus || surplus == 0) return;
  report(Level::kInfo, number_of(static_cast<int>(surplus), "host") + " more than --nnodes " +
                           to_string(rules_.nnodes) + " allows: listed, but without a node");
}

void HostWatch::on(const NodeReady& ready) {
  Node& node = nodes_.at(ready.host);
  if (node.state != State::kStarting) return;  // It was killed since.
  if (interrupted_) return kill(node);
  node.state = State::kRunning;
  node.since = now_;
  actions_.push_back(OrderNode{ready.host});
}

void HostWatch::on(const NodeEnded& ended) {
  const auto found = nodes_.find(ended.host);
  DDPRUN_ASSERT(found != nodes_.end());
  const Node node = found->second;
  nodes_.erase(found);
  const bool has_left = node.state == State::kLeaving;
  if (has_left && ended.exit_code.value_or(kExitPreempted) == kExitPreempted) return;
  const Duration ran = node.state == State::kStarting ? Duration::zero() : now_ - node.since;
  if (!ended.exit_code) {
    if (!interrupted_) fail_host(ended.host, ended.why, ran);
    return;
  }
  ended_.push_back({ended.host, *ended.exit_code, ran});
  settle_at_ = now_ + kSettle;
}

void HostWatch::fail_host(const std::string& name, const std::string& why, Duration ran) {
  if (!is_listed(name)) return report(Level::kWarning, why);
  Trouble& trouble = troubles_[name];
  if (ran >= kGoodSpell) trouble.failures = 0;
  const Duration first = 2 * rules_.period;
  Duration pause = first;
  for (int i = 0; i < trouble.failures && pause < kPauseMax; ++i) pause *= 2;
  pause = std::min(pause, std::max(kPauseMax, first));
  trouble.until = now_ + pause;
  ++trouble.failures;
  const std::string again =
      trouble.failures == 1 ? "" : " has failed " + std::to_string(trouble.failures) + " times and";
  report(Level::kWarning, name + again + " gets no node for " + seconds(pause) + ": " + why);
}

// Judges nodes that have ended by themselves while others continue.
void HostWatch::settle() {
  if (!settle_at_ || now_ < *settle_at_ || interrupted_) return;
  settle_at_.reset();
  for (const EndedNode& ended : std::exchange(ended_, {})) {
    if (ended.exit_code != 0) {
      fail_host(ended.host,
                "the node on " + ended.host + " ended with " + std::to_string(ended.exit_code),
                ended.ran);
    } else if (is_listed(ended.host)) {
      troubles_[ended.host].has_left = true;
      report(Level::kInfo, "the node on " + ended.host +
                               " has left the run; it gets another when it is listed anew");
    }
  }
}

void HostWatch::end_if_over() {
  if (any_runs() || (ended_.empty() && !interrupted_)) return;
  int code = ended_.empty() ? exit_code_of_signal(*interrupted_) : kExitOk;
  for (const EndedNode& ended : ended_) {
    if (code == kExitOk) code = ended.exit_code;
  }
  is_over_ = true;
  actions_.push_back(End{code});
}

void HostWatch::on(const Interrupted& interrupted) {
  const TimePoint ends = now_ + (interrupted.now ? kNowLimit : rules_.grace + kStopSlack);
  if (interrupted_ && !interrupted.now) return;
  if (!interrupted_) interrupted_ = interrupted.signal;
  interrupt_ends_ = std::min(interrupt_ends_.value_or(ends), ends);
}

// Deadlines.

std::optional<TimePoint> HostWatch::deadline_of(const Node& node) const {
  if (node.was_killed) return std::nullopt;
  if (interrupt_ends_) return interrupt_ends_;
  if (node.state == State::kStarting) return node.since + node.start_limit;
  if (node.state == State::kRunning) return std::nullopt;
  return node.since + 2 * rules_.grace + kStopSlack;  // Until the boundary, and its workers' end.
}

void HostWatch::enforce_deadlines() {
  for (auto& [name, node] : nodes_) {
    const auto deadline = deadline_of(node);
    if (!deadline || now_ < *deadline) continue;
    if (node.state == State::kLeaving)
      report(Level::kWarning, name + " does not leave: closing ssh");
    kill(node);
  }
  if (interrupted_ || now_ < alone_since_ + rules_.wait_max) return;
  report(Level::kError,
         "no host could be used for " + seconds(rules_.wait_max) + ": " + in_force());
  is_over_ = true;
  actions_.push_back(End{kExitRendezvous});
}

void HostWatch::kill(Node& node) {
  node.was_killed = true;
  actions_.push_back(KillNode{node.host.name});
}

std::optional<TimePoint> HostWatch::next_deadline() const {
  std::optional<TimePoint> next;
  const auto consider = [&](const std::optional<TimePoint>& at) {
    if (at && (!next || *at < *next)) next = at;
  };
  consider(answer_by_);
  if (!interrupted_) {
    consider(run_script_at_);
    consider(settle_at_);
    if (!any_runs()) consider(alone_since_ + rules_.wait_max);
  }
  for (const auto& [name, node] : nodes_) consider(deadline_of(node));
  for (const auto& [name, trouble] : troubles_) {
    if (trouble.until > now_) consider(trouble.until);
  }
  return next;
}

void HostWatch::report(Level level, std::string text) {
  actions_.push_back(Report{level, std::move(text)});
}

bool HostWatch::is_listed(const std::string& name) const {
  return std::any_of(listed_.begin(), listed_.end(),
                     [&](const HostEntry& host) { return host.name == name; });
}

bool HostWatch::any_runs() const {
  return std::any_of(nodes_.begin(), nodes_.end(), [](const auto& entry) {
    return entry.second.state == State::kRunning ||
           (entry.second.state == State::kLeaving && !entry.second.was_killed);
  });
}

// The script: when it runs, and how its answers are used.

namespace {

using Level = HostWatch::Report::Level;

constexpr int kGoodLists = 12;        // After so many in a row, complaints are reported anew.
constexpr std::size_t kNamesMax = 8;  // Per line.

std::string workers_text(const std::optional<int>& workers) {
  return workers ? number_of(*workers, "worker") : "no number of workers";
}

}  // namespace

void HostWatch::run_script() {
  if (answer_by_ && now_ >= *answer_by_) {
    answer_by_.reset();
    run_script_at_ = now_ + rules_.period;
    actions_.push_back(KillScript{});
    complain(Complaint::kHung,
             "has not ended within " +
                 seconds_text(std::chrono::duration_cast<Milliseconds>(patience())));
  }
  if (interrupted_ || !run_script_at_ || now_ < *run_script_at_) return;
  run_script_at_.reset();
  answer_by_ = now_ + patience();
  actions_.push_back(RunScript{});
}

void HostWatch::on(const Listed& listed) {
  if (!answer_by_) return;  // The answer arrived with the event that ended its time.
  answer_by_.reset();
  run_script_at_ = now_ + rules_.period;
  const HostListing& listing = listed.listing;
  const std::string words = listing.last_words.empty() ? "" : " (" + listing.last_words + ")";
  if (!listing.cannot_start.empty()) {
    return miss_script(listing.cannot_start);
  }
  if (listing.is_too_long) {
    return complain(Complaint::kTooLong,
                    "printed more than " + std::to_string(kHostLinesBytesMax) + " bytes");
  }
  if (listing.exit_code != 0) {
    return complain(Complaint::kFailed, "exited with " + std::to_string(listing.exit_code) + words);
  }
  auto hosts = hosts_in_lines(listing.output);
  if (!hosts) return complain(Complaint::kGarbage, "printed no list: " + hosts.error().context);
  if (hosts->empty()) return complain(Complaint::kEmpty, "printed no host" + words);
  accept(std::move(*hosts));
}

// The first start fails at once, because the name may be mistyped.
void HostWatch::miss_script(const std::string& why) {
  if (!listed_.empty()) return complain(Complaint::kNotStarted, "cannot be started: " + why);
  report(Level::kError, "--host-discovery: " + rules_.script + " cannot be started: " + why);
  is_over_ = true;
  actions_.push_back(End{kExitUsage});
}

void HostWatch::complain(Complaint kind, const std::string& text) {
  good_lists_ = 0;
  if (interrupted_ || !reported_.insert(kind).second) return;
  complained_ = true;
  report(Level::kWarning, rules_.script + " " + text + "; " + in_force());
}

std::string HostWatch::in_force() const {
  if (listed_.empty()) return "no host is known yet";
  std::string names;
  for (std::size_t i = 0; i < std::min(listed_.size(), kNamesMax); ++i) {
    names += (names.empty() ? "" : ", ") + listed_[i].name;
  }
  if (listed_.size() > kNamesMax) {
    names += " and " + std::to_string(listed_.size() - kNamesMax) + " more";
  }
  return "the last list stays in force: " + names;
}

void HostWatch::accept(std::vector<HostEntry> hosts) {
  if (std::exchange(complained_, false)) report(Level::kInfo, rules_.script + " lists hosts again");
  if (++good_lists_ >= kGoodLists) reported_.clear();
  listed_ = std::move(hosts);
  std::erase_if(troubles_, [this](const auto& trouble) { return !is_listed(trouble.first); });
  for (const HostEntry& host : listed_) compare_workers(host);
  for (auto& [name, node] : nodes_) {
    if (!is_listed(name) && node.state != State::kLeaving) withdraw(node);
  }
}

// A node keeps the number of workers that it was started with.
void HostWatch::compare_workers(const HostEntry& host) {
  const auto found = nodes_.find(host.name);
  if (found == nodes_.end()) return;
  Node& node = found->second;
  const bool is_news = host.workers != node.reported_workers;
  node.reported_workers = host.workers;
  if (!is_news || host.workers == node.host.workers) return;
  report(Level::kWarning, host.name + " is listed with " + workers_text(host.workers) +
                              " now; its node keeps what it has until it is started again");
}

void HostWatch::withdraw(Node& node) {
  if (node.state == State::kStarting) {
    kill(node);
  } else {
    report(Level::kInfo, node.host.name + " is not listed any more: its node leaves the run");
    actions_.push_back(WithdrawNode{node.host.name});
  }
  node.state = State::kLeaving;
  node.since = now_;
}

}  // namespace ddprun::launcher
