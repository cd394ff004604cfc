// The part of HostWatch that is about the script: when it is asked, and what its answers mean.

#include <algorithm>
#include <utility>

#include "common/assert.h"
#include "common/exit_status.h"
#include "common/text/figures.h"
#include "launcher/hosts/host_lines.h"
#include "launcher/hosts/host_watch.h"

namespace ddprun::launcher {
namespace {

using Level = HostWatch::Say::Level;

constexpr int kGoodLists = 12;        // So many in a row, and what was wrong before is forgotten.
constexpr std::size_t kNamesMax = 8;  // In one line.

std::string workers_text(const std::optional<int>& workers) {
  return workers ? number_of(*workers, "worker") : "no number of workers";
}

}  // namespace

void HostWatch::ask() {
  if (answer_by_ && now_ >= *answer_by_) {
    answer_by_.reset();
    ask_at_ = now_ + rules_.period;
    actions_.push_back(KillScript{});
    complain(Complaint::kHung,
             "has not ended within " +
                 seconds_text(std::chrono::duration_cast<Milliseconds>(patience())));
  }
  if (interrupted_ || !ask_at_ || now_ < *ask_at_) return;
  ask_at_.reset();
  answer_by_ = now_ + patience();
  actions_.push_back(AskScript{});
}

void HostWatch::on(const Listed& listed) {
  if (!answer_by_) return;  // It came with the event before which its time was over.
  answer_by_.reset();
  ask_at_ = now_ + rules_.period;
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

// A name that was mistyped is not waited for.
void HostWatch::miss_script(const std::string& why) {
  if (!listed_.empty()) return complain(Complaint::kNotStarted, "cannot be started: " + why);
  say(Level::kError, "--host-discovery: " + rules_.script + " cannot be started: " + why);
  is_over_ = true;
  actions_.push_back(End{kExitUsage});
}

void HostWatch::complain(Complaint kind, const std::string& text) {
  good_lists_ = 0;
  if (interrupted_ || !reported_.insert(kind).second) return;
  complained_ = true;
  say(Level::kWarning, rules_.script + " " + text + "; " + in_force());
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
  if (std::exchange(complained_, false)) say(Level::kInfo, rules_.script + " lists hosts again");
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
  say(Level::kWarning, host.name + " is listed with " + workers_text(host.workers) +
                           " now; its node keeps what it has until it is started again");
}

void HostWatch::withdraw(Node& node) {
  if (node.state == State::kStarting) {
    kill(node);
  } else {
    say(Level::kInfo, node.host.name + " is not listed any more: its node leaves the run");
    actions_.push_back(WithdrawNode{node.host.name});
  }
  node.state = State::kLeaving;
  node.since = now_;
}

}  // namespace ddprun::launcher
