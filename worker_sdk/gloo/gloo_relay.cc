#include "worker_sdk/gloo/gloo_relay.h"

#include <algorithm>
#include <string_view>

#include "ddprun/error.h"
#include "worker_sdk/base/retry.h"
#include "worker_sdk/base/socket_io.h"

namespace ddprun::worker_sdk {
namespace {

using std::chrono::milliseconds;

// The daemon waits for 10 s for the other node, and reports it.
constexpr milliseconds kRelayAnswerLimit{15'000};
constexpr milliseconds kRelayLook{100};   // How often a wait checks whether it is to end.
constexpr milliseconds kRelayPause{500};  // Between two attempts, at most.
constexpr std::size_t kRelayAnswerMax = 8192;

// Not with the addresses, which an older ddprun reads too.
std::string node_key(int rank) { return "node/" + std::to_string(rank); }

}  // namespace

bool GlooRelay::is_only_way(int peer, const std::string& own_address,
                            const std::string& theirs) const {
  if (options_.place.always) return true;
  const auto& networks = options_.networks;
  if (own_address != theirs || networks.empty()) return false;
  return networks.at(static_cast<std::size_t>(peer)) !=
         networks.at(static_cast<std::size_t>(options_.roster->rank));
}

// Sends the line, and reads one: no byte beyond it, which would be the stream's.
UniqueFd GlooRelay::ask(const std::string& line, std::string& answer) const {
  const auto deadline = std::min(options_.deadline, Clock::now() + kRelayAnswerLimit);
  const auto& give_up = options_.give_up;
  UniqueFd socket = connect_to("127.0.0.1", options_.place.port, deadline, give_up);
  if (write_all(socket.get(), line, deadline) != IoResult::kDone) return {};
  for (char next = 0; next != '\n';) {
    const auto look = std::min(deadline, Clock::now() + kRelayLook);
    const IoResult got = read_exactly(socket.get(), &next, 1, look);
    const bool waits = got == IoResult::kTimedOut && Clock::now() < deadline;
    if (waits && !(give_up && give_up())) continue;
    if (got != IoResult::kDone || answer.size() == kRelayAnswerMax) return {};
    if (next != '\n') answer += next;
  }
  return socket;
}

UniqueFd GlooRelay::open(const std::string& address,
                         const std::vector<std::uint16_t>& ports) const {
  std::string line = "open " + options_.place.nonce + " " + address + " ";
  for (const std::uint16_t port : ports) line += std::to_string(port) + ",";
  line.back() = '\n';
  try {
    std::string answer;
    UniqueFd socket = ask(line, answer);
    if (!socket || answer != "ok") return {};
    options_.keys->set(node_key(options_.roster->rank), options_.place.node);
    return socket;
  } catch (const Error&) {  // The agent is gone, and this process will be, too.
  }
  return {};
}

std::string GlooRelay::other_node(int peer) const {
  const std::string key = node_key(peer);
  if (!options_.keys->check({key})) return {};
  std::string node = options_.keys->get(key, kRelayAnswerLimit);
  return node == options_.place.node ? std::string() : node;
}

UniqueFd GlooRelay::dial(int peer, const std::string& node, std::uint16_t port,
                         const std::string& direct) const {
  constexpr std::string_view kNo = "no ", kAgain = "again ";
  const std::string line =
      "dial " + options_.place.nonce + " " + node + " " + std::to_string(port) + "\n";
  UniqueFd socket;
  std::string answer;
  const auto attempt = [&] {
    std::string next;
    try {
      socket = ask(line, next);
    } catch (const Error&) {
      if (answer.empty()) throw;
    }
    // At the deadline the last answer is the better reason.
    if (next.empty() && !answer.empty()) return true;
    answer = next;
    return !answer.starts_with(kAgain) || (options_.give_up && options_.give_up());
  };
  retry_until(options_.deadline, attempt, kRelayPause);
  if (socket && answer == "ok") return socket;
  std::string why = "this node's agent does not answer";
  for (const std::string_view verb : {kNo, kAgain}) {
    if (answer.starts_with(verb)) why = answer.substr(verb.size());
  }
  const std::string name = options_.roster->name(peer);
  throw Error(ErrorKind::unreachable, options_.roster->here("connecting to the peers"),
              (direct.empty() ? "" : name + " cannot be reached (" + direct + "), and ") +
                  "there is no stream to " + (direct.empty() ? name : "it") +
                  " through the rendezvous daemon: " + why);
}

}  // namespace ddprun::worker_sdk
