#include "worker_sdk/gloo/gloo_relay.h"

#include <algorithm>
#include <utility>

#include "ddprun/error.h"
#include "worker_sdk/base/socket_io.h"

namespace ddprun::worker_sdk {
namespace {

using std::chrono::milliseconds;

// The daemon waits for 10 s for the other node, and says so.
constexpr milliseconds kRelayAnswerLimit{15'000};
constexpr milliseconds kRelayLook{100};  // How often a wait checks whether it is to end.
constexpr std::size_t kRelayAnswerMax = 8192;

}  // namespace

GlooRelay::GlooRelay(RelayPlace place, Clock::time_point deadline, std::function<bool()> give_up)
    : place_(std::move(place)), deadline_(deadline), give_up_(std::move(give_up)) {}

// Sends the line, and reads one: no byte beyond it, which would be the stream's.
UniqueFd GlooRelay::ask(const std::string& line, std::string& answer) const {
  const auto deadline = std::min(deadline_, Clock::now() + kRelayAnswerLimit);
  UniqueFd socket = connect_to("127.0.0.1", place_.port, deadline, give_up_);
  if (write_all(socket.get(), line, deadline) != IoResult::kDone) return {};
  for (char next = 0; next != '\n';) {
    const auto look = std::min(deadline, Clock::now() + kRelayLook);
    const IoResult got = read_exactly(socket.get(), &next, 1, look);
    const bool waits = got == IoResult::kTimedOut && Clock::now() < deadline;
    if (waits && !(give_up_ && give_up_())) continue;
    if (got != IoResult::kDone || answer.size() == kRelayAnswerMax) return {};
    if (next != '\n') answer += next;
  }
  return socket;
}

UniqueFd GlooRelay::open(const std::string& address,
                         const std::vector<std::uint16_t>& ports) const {
  std::string line = "open " + place_.nonce + " " + address + " ";
  for (const std::uint16_t port : ports) line += std::to_string(port) + ",";
  line.back() = '\n';
  try {
    std::string answer;
    UniqueFd socket = ask(line, answer);
    if (answer == "ok") return socket;
  } catch (const Error&) {  // The agent is gone, and this process will be, too.
  }
  return {};
}

UniqueFd GlooRelay::dial(const std::string& node, std::uint16_t port,
                         const std::string& direct) const {
  std::string answer;
  UniqueFd socket =
      ask("dial " + place_.nonce + " " + node + " " + std::to_string(port) + "\n", answer);
  if (socket && answer == "ok") return socket;
  const std::string why =
      answer.starts_with("no ") ? answer.substr(3) : "its agent does not answer";
  throw Error(ErrorKind::unreachable, {.operation = "connecting to the peers"},
              (direct.empty() ? "" : "node " + node + " cannot be reached (" + direct + "), and ") +
                  "there is no stream to node " + node + " through the rendezvous daemon: " + why);
}

}  // namespace ddprun::worker_sdk
