#include "worker_sdk/join/meeting.h"

#include <algorithm>
#include <cstdio>

namespace ddprun::worker_sdk {
namespace {

using std::chrono::milliseconds;

// After the deadline, rank 0 still has to tell the others who is missing.
constexpr milliseconds kGrace{2000};

// An answer begins with one of these.
constexpr char kAnswer = '+';
constexpr char kFailure = '-';  // Followed by "<kind> <peer> <text>".

std::string key(const std::string& topic, int rank) { return topic + "/" + std::to_string(rank); }

[[noreturn]] void throw_failure(ErrorKind kind, int peer, const std::string& text) {
  throw Error(kind, {.operation = "joining the job", .peer = peer}, text);
}

std::string open(const std::string& answer) {
  if (!answer.empty() && answer.front() == kAnswer) return answer.substr(1);
  int kind = 0, peer = -1, used = 0;
  if (std::sscanf(answer.c_str(), "-%d %d %n", &kind, &peer, &used) != 2 ||
      kind < static_cast<int>(ErrorKind::bad_argument) ||
      kind > static_cast<int>(ErrorKind::system)) {
    throw_failure(ErrorKind::mismatch, 0, "rank 0 is of another version of ddprun");
  }
  throw_failure(static_cast<ErrorKind>(kind), peer, answer.substr(static_cast<std::size_t>(used)));
}

}  // namespace

std::string Meeting::hold(const std::string& topic, const std::string& mine, const Decide& decide) {
  keys_.set(key(topic, rank_), mine);
  if (rank_ == 0) keys_.set(topic, preside(topic, decide));
  std::string answer;
  try {
    answer = keys_.get(topic, left_until(deadline_ + kGrace));
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::timed_out) throw;
    throw_absence(topic);
  }
  return open(answer);
}

std::string Meeting::preside(const std::string& topic, const Decide& decide) {
  try {
    return kAnswer + decide(listen(topic));
  } catch (const Error& error) {
    return kFailure + std::to_string(error.code().value()) + " " +
           std::to_string(error.where().peer) + " " + error.text();
  }
}

std::vector<std::string> Meeting::listen(const std::string& topic) {
  std::vector<std::string> said;
  try {
    for (int r = 0; r < size_; ++r) said.push_back(keys_.get(key(topic, r), left_until(deadline_)));
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::timed_out) throw;
    throw_absence(topic);
  }
  return said;
}

void Meeting::throw_absence(const std::string& topic) {
  int first = -1;
  std::string who;
  for (int r = 0; r < size_; ++r) {
    if (keys_.check({key(topic, r)})) continue;
    if (first < 0) first = r;
    const int shown = shown_.empty() ? r : shown_.at(static_cast<std::size_t>(r));
    who += (who.empty() ? "" : ", ") + std::to_string(shown);
  }
  if (first < 0) throw_failure(ErrorKind::timed_out, 0, "rank 0 has not answered");
  throw_failure(ErrorKind::timed_out, first, "no sign of rank(s) " + who);
}

}  // namespace ddprun::worker_sdk
