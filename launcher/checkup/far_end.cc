#include "launcher/checkup/far_end.h"

#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <optional>
#include <vector>

#include "launcher/checkup/requests.h"
#include "launcher/checkup/workers.h"
#include "launcher/doctor/fact_names.h"
#include "launcher/probe/probe.h"
#include "launcher/probe/tcp_link.h"

namespace ddprun::launcher {
namespace {

using namespace std::chrono_literals;
namespace fact = doctor::fact;
using doctor::Facts;
using Kind = DoctorRequest::Kind;

class FarEnd {
 public:
  explicit FarEnd(const DoctorOptions& options) : options_(options) {}

  Facts answer(const DoctorRequest& request) {
    switch (request.kind) {
      case Kind::kFacts: return all_facts();
      case Kind::kListen: return listen(request);
      case Kind::kMeet: return meet(request);
      case Kind::kReach: return link_to(request, {.limit = 3s});
      case Kind::kSend: return link_to(request, {.limit = 6s, .send_for = 300ms});
      case Kind::kClock: break;
    }
    Facts facts;
    facts.set(fact::kWallNs, wall_ns());
    return facts;
  }

 private:
  Facts all_facts() const {
    Facts facts = doctor::gather_facts_of_node(doctor::Depth::kFull, {.program = options_.program});
    facts.set(fact::kWorkers, std::int64_t{workers_of(options_.workers, facts)});
    return facts;
  }

  Facts listen(const DoctorRequest& request) {
    Facts facts;
    if (auto server = doctor::LinkServer::start(0, request.nonce)) {
      facts.set(fact::kListening, std::int64_t{server->port()});
      servers_.push_back(std::move(*server));
    }
    if (request.port == 0) return facts;
    facts.set(fact::kEndpoint, std::int64_t{request.port});
    auto server = doctor::LinkServer::start(request.port, request.nonce);
    if (!server)
      facts.set(fact::kEndpointError, "taken: " + to_string(server.error()));
    else
      servers_.push_back(std::move(*server));
    return facts;
  }

  static Facts meet(const DoctorRequest& request) {
    const doctor::LinkMeasurement link =
        doctor::measure_link({request.host, request.port}, request.nonce, {.limit = 5s});
    Facts facts;
    if (!link.error.empty())
      facts.set(fact::kMeetError, link.error);
    else
      facts.set(fact::kMeetMs, link.connect_ms);
    if (!link.own_address.empty()) facts.set(fact::kMeetAddress, link.own_address);
    return facts;
  }

  static Facts link_to(const DoctorRequest& request, const doctor::LinkRequest& how) {
    const doctor::LinkMeasurement link =
        doctor::measure_link({request.host, request.port}, request.nonce, how);
    Facts peer;
    peer.set(fact::kPeer, request.name);
    peer.set(fact::kPeerMs, link.connect_ms);
    if (!link.error.empty()) peer.set(fact::kPeerError, link.error);
    if (how.send_for.count() > 0 && link.error.empty()) peer.set(fact::kPeerGbS, link.gb_s);
    peer.set(fact::kPeerSent, link.segments);
    peer.set(fact::kPeerAgain, link.segments_again);
    Facts facts;
    facts.add(fact::kPeers, std::move(peer));
    return facts;
  }

  const DoctorOptions& options_;
  std::vector<doctor::LinkServer> servers_;
};

bool write_line(const std::string& line) {
  for (std::string_view rest = line; !rest.empty();) {
    const ssize_t n = ::write(STDOUT_FILENO, rest.data(), rest.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    rest.remove_prefix(static_cast<std::size_t>(n));
  }
  return true;
}

}  // namespace

std::int64_t wall_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

int serve_far_end(const DoctorOptions& options, ControlStdin& control) {
  FarEnd far_end(options);
  for (;;) {
    const auto frame = control.next();
    if (!frame) return 0;
    const auto request = decode_request(*frame);
    if (!request) continue;  // A signal: the end of the input is what ends us.
    if (!write_line(std::string(kAnswer) + encode(far_end.answer(*request)) + "\n")) return 0;
  }
}

}  // namespace ddprun::launcher
