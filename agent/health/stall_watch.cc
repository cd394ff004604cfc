#include "agent/health/stall_watch.h"

#include <algorithm>
#include <utility>

#include "common/assert.h"
#include "common/text/figures.h"

namespace ddprun::agent {
namespace {

std::string text(Duration duration) {
  return seconds_text(std::chrono::duration_cast<Milliseconds>(duration));
}

std::string collective(const ProgressSample& sample) {
  return sample.phase + " #" + std::to_string(sample.number);
}

}  // namespace

StallWatch::Findings StallWatch::check(const std::vector<ProgressSample>& samples, TimePoint now) {
  DDPRUN_ASSERT(!last_check_ || now >= *last_check_);
  workers_.resize(samples.size());
  // We stood still, or all did: whatever seems to have lasted long has not been watched.
  if (last_check_ && now - *last_check_ > 3 * options_.interval) {
    for (Worker& worker : workers_) worker.since += now - *last_check_;
  }
  last_check_ = now;
  Findings findings;
  learn(samples);
  follow(samples, now, findings);

  std::optional<std::size_t> waiting;
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    if (!is_late(i, now)) continue;
    if (!workers_[i].last.in_collective) {
      report(i, what(i, now) + awaited_by(i), now, findings);
    } else if (!sibling_missing(i, now)) {
      waiting = i;
    }
  }
  if (!waiting) reported_waiting_ = false;
  if (waiting && !std::exchange(reported_waiting_, true)) {
    findings.waiting = "workers here have waited in " + collective(workers_[*waiting].last) +
                       " for " + text(age(*waiting, now)) +
                       ", and none of this node is missing: check the other nodes";
  }
  return findings;
}

void StallWatch::start_over() {
  workers_.clear();
  last_check_.reset();
  reported_waiting_ = false;
}

std::string StallWatch::key_of(const ProgressSample& sample) const {
  return (sample.in_collective ? "in " : "at ") + sample.phase;
}

Duration StallWatch::limit_of(const ProgressSample& sample) const {
  const auto known = history_.find(key_of(sample));
  const History history = known == history_.end() ? History{} : known->second;
  Duration least = options_.floor;
  if (history.count == 0) {
    least = options_.first;
  } else if (history.count < options_.history) {
    least = std::max(options_.early, options_.factor * history.seen);
  }
  return std::max(
      {least, options_.factor * history.longest, history.outlier + history.outlier / 2});
}

void StallWatch::learn(const std::vector<ProgressSample>& samples) {
  for (const ProgressSample& sample : samples) {
    if (!sample.reports) continue;
    const bool usual = sample.longest <= limit_of(sample);
    History& history = history_[key_of(sample)];
    history.count = std::max(history.count, sample.count);
    Duration& learned = usual ? history.longest : history.outlier;
    if (usual || sample.longest > history.outlier) learned = std::max(learned, sample.longest);
  }
}

// Notes which workers have moved since the last check.
void StallWatch::follow(const std::vector<ProgressSample>& samples, TimePoint now,
                        Findings& findings) {
  DDPRUN_ASSERT(samples.size() == workers_.size());
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    Worker& worker = workers_[i];
    const bool stands = samples[i].reports && worker.last.reports &&
                        samples[i].beats == worker.last.beats && worker.since != TimePoint{};
    if (!stands && worker.reported) {
      const std::string after =
          samples[i].reports ? "continues after " : "no longer reports, after ";
      findings.going_on.push_back({static_cast<int>(i), age(i, now), after + text(age(i, now))});
      worker.reported = false;
    }
    if (!stands && worker.last.reports && worker.since != TimePoint{}) {
      const Duration stay = age(i, now);
      Duration& seen = history_[key_of(worker.last)].seen;
      if (stay <= limit_of(worker.last)) seen = std::max(seen, stay);
    }
    if (!stands) worker.since = now;
    worker.last = samples[i];
  }
}

bool StallWatch::is_late(std::size_t worker, TimePoint now) const {
  DDPRUN_ASSERT(worker < workers_.size());
  const Worker& w = workers_[worker];
  return w.last.reports && age(worker, now) >= limit_of(w.last);
}

std::string StallWatch::what(std::size_t worker, TimePoint now) const {
  const ProgressSample& at = workers_[worker].last;
  const auto known = history_.find(key_of(at));
  const bool has_history = known != history_.end() && known->second.count >= options_.history;
  std::string where = at.phase.empty() ? "has made no progress" : "has been in " + at.phase;
  if (at.phase.empty() && at.number > 0) where += " since collective #" + std::to_string(at.number);
  where += " for " + text(age(worker, now));
  const bool is_first = known == history_.end() || known->second.count == 0;
  if (is_first) return where + ", and there is no history of it yet";
  if (!has_history) where += ", early in the run";
  return where + "; its longest so far was " + text(known->second.longest);
}

// Whether a worker of this node has not come to the collective that this worker is in, or only a
// short time ago.
bool StallWatch::sibling_missing(std::size_t worker, TimePoint now) const {
  const ProgressSample& in = workers_[worker].last;
  DDPRUN_ASSERT(in.reports && in.in_collective);
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    if (!workers_[i].last.reports) continue;
    if (workers_[i].last.number < in.number || age(i, now) < limit_of(in)) return true;
  }
  return false;
}

// "; local ranks 0, 2 wait for it in all_reduce #18", or empty.
std::string StallWatch::awaited_by(std::size_t worker) const {
  std::string ranks, name;
  int count = 0;
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    const ProgressSample& other = workers_[i].last;
    if (!other.reports || !other.in_collective || other.number <= workers_[worker].last.number)
      continue;
    ranks += (count++ > 0 ? ", " : "") + std::to_string(i);
    name = collective(other);
  }
  if (count == 0) return {};
  return "; local rank" + std::string(count > 1 ? "s " : " ") + ranks +
         (count > 1 ? " wait" : " waits") + " for it in " + name;
}

void StallWatch::report(std::size_t worker, std::string text, TimePoint now, Findings& findings) {
  if (std::exchange(workers_[worker].reported, true)) return;
  findings.stuck.push_back({static_cast<int>(worker), age(worker, now), std::move(text)});
}

}  // namespace ddprun::agent
