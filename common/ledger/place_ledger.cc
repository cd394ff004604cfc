#include "common/ledger/place_ledger.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "common/assert.h"

namespace ddprun {
namespace {

using Time = TimeParts::Time;

// A page may hold anything: no part of `whole` is negative, and none is more than is left of it.
Time take(Time wanted, Time& left) {
  const Time taken = std::clamp(wanted, Time{0}, left);
  left -= taken;
  return taken;
}

}  // namespace

WorkCounts WorkCounts::since(const WorkCounts& before) const {
  const auto more = [](Time now, Time then) { return std::max(now - then, Time{0}); };
  WorkCounts result = *this;
  result.startup = more(startup, before.startup);
  result.checkpoint = more(checkpoint, before.checkpoint);
  result.saved = more(saved, before.saved);
  result.stepped = more(stepped, before.stepped);
  for (std::size_t i = 0; i < kTimeParts; ++i) {
    result.steps.times[i] = more(steps.times[i], before.steps.times[i]);
  }
  return result;
}

PlaceLedger::PlaceLedger(TimePoint began, TimePart before)
    : began_(began), idle_part_(before), idle_since_(began) {}

Time PlaceLedger::since_began(TimePoint now) const { return between(began_, now); }

TimePoint PlaceLedger::computed_until(TimePoint now) const {
  DDPRUN_ASSERT(working_);
  return working_->stopped ? std::min(*working_->stopped, now) : now;
}

void PlaceLedger::add_span(TimePart part, Time from, Time until) {
  if (until <= from || is_kept(part)) return;
  const bool goes_on = !spans_.empty() && spans_.back().part == part && spans_.back().until == from;
  if (goes_on) {
    spans_.back().until = until;
  } else if (spans_.size() < kSpansMax) {
    spans_.push_back({part, from, until});
  }
}

// Whole times are added up, so that rounding loses nothing.
void PlaceLedger::close_idle(TimePoint now) {
  DDPRUN_ASSERT(!working_);
  const Time from = since_began(idle_since_), until = since_began(now);
  past_[idle_part_] += until - from;
  add_span(idle_part_, from, until);
  idle_since_ = now;
}

void PlaceLedger::idle(TimePart part, TimePoint now) {
  close_idle(now);
  idle_part_ = part;
}

void PlaceLedger::start(bool first_round, TimePoint now) {
  close_idle(now);
  working_ = Working{.began = now, .first_round = first_round};
  seen_ = {};
}

void PlaceLedger::start_again(const WorkCounts& before, TimePoint now) {
  close_idle(now);
  working_ = Working{.began = now, .first_round = false, .again = true, .before = before};
  seen_ = before;
}

void PlaceLedger::resume(const WorkCounts& counts, TimePoint now) {
  if (!working_ || !working_->again || working_->resumed) return;
  working_->resumed = now;
  working_->before.saved = counts.saved;
  working_->before.stepped = counts.stepped;
}

void PlaceLedger::stop(TimePoint now) {
  if (working_ && !working_->stopped) working_->stopped = now;
}

bool PlaceLedger::sees_steps(const WorkCounts& counts) const {
  return working_->again || counts.steps_were_seen();
}

Time PlaceLedger::until_first_step(const WorkCounts& counts, TimePoint computed) const {
  if (!working_->again) return counts.startup;
  return between(working_->began, std::min(working_->resumed.value_or(computed), computed));
}

// The time of the worker's part in the round so far. Time that no counter covers lies between steps
// or after the last one: it is kOutside.
PlaceLedger::Attempt PlaceLedger::attempt(TimePoint now) const {
  DDPRUN_ASSERT(working_);
  Attempt result;
  const TimePoint computed = computed_until(now);
  const Time computed_time = since_began(computed) - since_began(working_->began);
  Time left = computed_time;
  result.parts[TimePart::kRestart] = since_began(now) - since_began(computed);
  const WorkCounts counts = seen_.since(working_->before);
  if (!sees_steps(counts)) {
    result.parts[TimePart::kUnknown] = left;
    return result;
  }
  for (const TimePart part : {TimePart::kForward, TimePart::kBackward, TimePart::kTransfer,
                              TimePart::kWaiting, TimePart::kSteps}) {
    result.parts[part] = take(counts.steps[part], left);
  }
  result.parts[TimePart::kCheckpoint] = take(counts.checkpoint, left);
  const Time between_steps = counts.steps[TimePart::kOutside] - counts.checkpoint;
  result.parts[TimePart::kOutside] = take(between_steps, left);
  // Last of what is counted: a process begins a little before its agent knows.
  const TimePart before_steps = working_->first_round ? TimePart::kStartup : TimePart::kRestart;
  const Time until_first = take(until_first_step(counts, computed), left);
  result.parts[before_steps] += until_first;
  const Time since_first_step = computed_time - until_first;
  result.parts[TimePart::kOutside] += left;
  result.unsaved = std::max(since_first_step - counts.saved, Time{0});
  result.uncounted = std::clamp(since_first_step - counts.steps.sum(), Time{0}, left);
  if (counts.stepped.count() > 0) {
    result.tail = std::clamp(since_first_step - counts.stepped, Time{0}, left);
  }
  return result;
}

// What follows the last step is lost first, then of each kept part the same share: it is not known
// which steps were slow.
void PlaceLedger::lose(Attempt& attempt) {
  Time lost = std::min({attempt.unsaved, attempt.uncounted, attempt.parts[TimePart::kOutside]});
  attempt.parts[TimePart::kOutside] -= lost;
  attempt.parts[TimePart::kLost] += lost;
  const Time kept = attempt.parts.kept();
  if (kept.count() == 0) return;
  const Time unsaved = std::min(attempt.unsaved - lost, kept);
  lost = Time{0};
  const double share = static_cast<double>(unsaved.count()) / static_cast<double>(kept.count());
  for (std::size_t i = 0; i < kTimeParts; ++i) {
    if (!is_kept(static_cast<TimePart>(i))) continue;
    Time& part = attempt.parts.times[i];
    const Time taken(static_cast<std::int64_t>(static_cast<double>(part.count()) * share));
    part -= taken;
    lost += taken;
  }
  attempt.parts[TimePart::kLost] += lost;
}

void PlaceLedger::add_attempt_spans(const Attempt& attempt, TimePoint now) {
  const Time from = since_began(working_->began);
  const Time until = since_began(computed_until(now));
  const Time lost = attempt.parts[TimePart::kLost];
  const Time unknown = attempt.parts[TimePart::kUnknown];
  const Time restart = attempt.parts[TimePart::kRestart] - (since_began(now) - until);
  add_span(TimePart::kStartup, from, from + attempt.parts[TimePart::kStartup]);
  add_span(TimePart::kRestart, from, from + restart);
  add_span(TimePart::kUnknown, from, from + unknown);
  add_span(TimePart::kLost, until - lost, until);
  add_span(TimePart::kEnd, until - attempt.parts[TimePart::kEnd], until);
  add_span(TimePart::kRestart, until, since_began(now));
}

void PlaceLedger::undo(double share) {
  for (std::size_t i = 0; i < kTimeParts; ++i) {
    if (!is_kept(static_cast<TimePart>(i))) continue;
    const auto kept = static_cast<double>((past_.times[i] - safe_.times[i]).count());
    const Time lost(static_cast<std::int64_t>(kept * std::clamp(share, 0.0, 1.0)));
    past_.times[i] -= lost;
    past_[TimePart::kLost] += lost;
  }
  safe_ = past_;
}

void PlaceLedger::end(bool keeps, TimePart then, TimePoint now) {
  if (!working_) return idle(then, now);
  Attempt attempt = this->attempt(now);
  if (!keeps) lose(attempt);
  // No step follows any more: the interpreter ends, trackers send their last.
  if (keeps && then == TimePart::kGone) {
    const Time end = std::min(attempt.tail, attempt.parts[TimePart::kOutside]);
    attempt.parts[TimePart::kOutside] -= end;
    attempt.parts[TimePart::kEnd] += end;
  }
  past_.add(attempt.parts);
  add_attempt_spans(attempt, now);
  working_.reset();
  idle_part_ = then;
  idle_since_ = now;
}

TimePart PlaceLedger::at(TimePoint now) const {
  if (!working_) return idle_part_;
  if (working_->stopped && *working_->stopped <= now) return TimePart::kRestart;
  if (working_->again && !working_->resumed) return TimePart::kRestart;
  return sees_steps(seen_.since(working_->before)) ? TimePart::kOutside : TimePart::kUnknown;
}

TimeParts PlaceLedger::parts(TimePoint now) const {
  TimeParts parts = past_;
  if (working_) {
    parts.add(attempt(now).parts);
  } else {
    parts[idle_part_] += since_began(now) - since_began(idle_since_);
  }
  return parts;
}

Time PlaceLedger::at_risk(TimePoint now) const { return working_ ? attempt(now).unsaved : Time{0}; }

std::vector<TimeSpan> PlaceLedger::spans(TimePoint now) const {
  PlaceLedger closed = *this;
  if (closed.working_) {
    closed.add_attempt_spans(closed.attempt(now), now);
  } else {
    closed.close_idle(now);
  }
  return closed.spans_;
}

namespace {

constexpr std::size_t kMost = PlaceLedger::kSpansMax + 4;  // The present may be several.

std::optional<TimeSpan> parse_span(std::string_view text) {
  std::array<std::int64_t, 3> numbers{};
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, numbers[i]);
    if (error != std::errc{} || numbers[i] < 0 || numbers[i] > kTimeMax.count()) return {};
    text.remove_prefix(static_cast<std::size_t>(stop - text.data()));
    const bool last = i + 1 == numbers.size();
    if (last ? !text.empty() : !text.starts_with(',')) return {};
    if (!last) text.remove_prefix(1);
  }
  const bool known = numbers[0] < static_cast<std::int64_t>(kTimeParts);
  if (numbers[2] < numbers[1]) return {};
  return TimeSpan{known ? static_cast<TimePart>(numbers[0]) : TimePart::kUnknown,
                  TimeParts::Time(numbers[1]), TimeParts::Time(numbers[2])};
}

}  // namespace

std::string to_text(const std::vector<TimeSpan>& spans) {
  std::string text;
  for (const TimeSpan& span : spans) {
    text += (text.empty() ? "" : ";") + std::to_string(static_cast<int>(span.part)) + "," +
            std::to_string(span.from.count()) + "," + std::to_string(span.until.count());
  }
  return text;
}

std::optional<std::vector<TimeSpan>> parse_time_spans(std::string_view text) {
  std::vector<TimeSpan> spans;
  while (!text.empty()) {
    const std::size_t end = text.find(';');
    const auto span = parse_span(text.substr(0, end));
    if (!span || spans.size() == kMost) return std::nullopt;
    spans.push_back(*span);
    text = end == std::string_view::npos ? "" : text.substr(end + 1);
  }
  return spans;
}

}  // namespace ddprun
