// N nodes of one run, played by one process: each connects to a rendezvous daemon as an agent does,
// joins, gets its seat and beats. No worker is started. bench/rendezvous.py runs it.
//
//   bench_synthetic_agents HOST PORT NODES WORKERS_PER_NODE BEAT_SECONDS [REPORT_SECONDS]
//
// With REPORT_SECONDS a beat carries, so often, where the time of each worker went, at ten steps a
// second.
//
// The token comes from DDPRUN_TOKEN; without it there is no TLS. Prints one line of JSON for each
// stage: "seated" when every node has its seat, "beaten" after BEAT_SECONDS of heartbeats.

#include <netinet/in.h>

#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/system/limits.h"
#include "common/system/secrets.h"
#include "rendezvous/net/channel.h"
#include "rendezvous/net/link.h"
#include "rendezvous/net/listener.h"
#include "rendezvous/protocol/wire.h"

namespace ddprun::bench {
namespace {

using boost::asio::ip::tcp;
using Clock = std::chrono::steady_clock;
using rendezvous::Link;

constexpr std::chrono::minutes kSeatedWithin{2};
constexpr std::uint32_t kFirstHost = 127U << 24 | 1U << 16;  // 127.1.0.0: loopback is 127/8.
using BindAddressNoPort =
    boost::asio::detail::socket_option::boolean<IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT>;

struct Plan {
  tcp::endpoint daemon;
  rendezvous::TlsContext tls;  // Shared: a real agent makes its own, on its own machine.
  std::string run_id;
  int nodes = 0;
  int local_world_size = 0;
  std::chrono::seconds beating{0};
  std::chrono::seconds reporting{0};  // 0: never.
};

struct Count {
  long messages_up = 0, messages_down = 0, bytes_up = 0, bytes_down = 0;
};

double seconds_since(Clock::time_point then) {
  return std::chrono::duration<double>(Clock::now() - then).count();
}

class Crowd;

class Node {
 public:
  Node(Crowd& crowd, boost::asio::io_context& io, int index)
      : crowd_(crowd), index_(index), socket_(io), beat_(io) {}

  void connect();
  void stop();

 private:
  boost::system::error_code bind_to_own_address();
  void shake_hands();
  void linked(std::shared_ptr<Link> link);
  void join();
  void receive(const std::string& body);
  void send(const rendezvous::AgentMessage& message);
  void beat_after(Milliseconds interval);
  std::optional<rendezvous::NodeTimes> times();

  Crowd& crowd_;
  const int index_;
  tcp::socket socket_;
  boost::asio::steady_timer beat_;
  std::shared_ptr<rendezvous::Handshake> handshake_;
  std::shared_ptr<Link> link_;
  Milliseconds interval_{0};
  int round_ = -1;
  int base_rank_ = 0;
  bool joined_ = false;
  Clock::time_point seated_{}, reported_{};
};

class Crowd {
 public:
  explicit Crowd(Plan plan) : plan_(std::move(plan)), io_(1), stage_(io_) {}

  int run() {
    for (int i = 0; i < plan_.nodes; ++i) nodes_.push_back(std::make_unique<Node>(*this, io_, i));
    stage_.expires_after(kSeatedWithin);
    stage_.async_wait([this](boost::system::error_code error) {
      if (!error) fail(seated_, "only so many have a seat after two minutes");
    });
    begun_ = Clock::now();
    for (auto& node : nodes_) node->connect();
    io_.run();
    return failed_ ? 1 : 0;
  }

  void linked() {
    if (++linked_ == plan_.nodes) all_linked_ = seconds_since(begun_);
  }

  void seated() {
    if (++seated_ < plan_.nodes) return;
    std::printf(
        "{\"stage\": \"seated\", \"seconds\": %.4f, \"linked_seconds\": %.4f, \"messages_up\": "
        "%ld, "
        "\"messages_down\": %ld, \"bytes_up\": %ld, \"bytes_down\": %ld}\n",
        seconds_since(begun_), all_linked_, count.messages_up, count.messages_down, count.bytes_up,
        count.bytes_down);
    std::fflush(stdout);
    count = {};
    stage_.expires_after(plan_.beating);
    stage_.async_wait([this](boost::system::error_code error) {
      if (!error) beaten();
    });
  }

  void fail(int node, const std::string& why) {
    if (std::exchange(failed_, true)) return;
    std::fprintf(stderr, "bench_synthetic_agents: node %d: %s\n", node, why.c_str());
    io_.stop();
  }

  const Plan& plan() const { return plan_; }
  bool over() const { return over_; }
  Count count;

 private:
  void beaten() {
    std::printf(
        "{\"stage\": \"beaten\", \"messages_up\": %ld, \"messages_down\": %ld, \"bytes_up\": %ld, "
        "\"bytes_down\": %ld}\n",
        count.messages_up, count.messages_down, count.bytes_up, count.bytes_down);
    std::fflush(stdout);
    over_ = true;
    for (auto& node : nodes_) node->stop();
    stage_.expires_after(std::chrono::seconds(5));
    stage_.async_wait([this](boost::system::error_code) { io_.stop(); });
  }

  const Plan plan_;
  boost::asio::io_context io_;
  boost::asio::steady_timer stage_;
  std::vector<std::unique_ptr<Node>> nodes_;
  Clock::time_point begun_;
  double all_linked_ = 0;
  int linked_ = 0, seated_ = 0;
  bool failed_ = false, over_ = false;
};

// Each node has an address of its own, as on machines of its own: the kernel needs longer and
// longer for the next free port of one address.
boost::system::error_code Node::bind_to_own_address() {
  boost::system::error_code error;
  const auto loopback = crowd_.plan().daemon.address();
  if (!loopback.is_v4() || !loopback.is_loopback()) return error;
  socket_.open(tcp::v4(), error);
  if (error) return error;
  socket_.set_option(BindAddressNoPort(true), error);
  if (error) return error;
  const auto host = static_cast<std::uint32_t>(index_) + kFirstHost;
  socket_.bind({boost::asio::ip::address_v4(host), 0}, error);
  return error;
}

void Node::connect() {
  if (const auto error = bind_to_own_address())
    return crowd_.fail(index_, "binding: " + error.message());
  socket_.async_connect(crowd_.plan().daemon, [this](boost::system::error_code error) {
    if (error) return crowd_.fail(index_, "connecting: " + error.message());
    shake_hands();
  });
}

void Node::shake_hands() {
  const int fd = socket_.native_handle();
  socket_.native_non_blocking(true);
  rendezvous::tune_socket(fd, Milliseconds(0));  // As async_connect does.
  auto channel = crowd_.plan().tls
                     ? make_tls_channel(fd, crowd_.plan().tls, rendezvous::TlsRole::kClient)
                     : rendezvous::make_plain_client(fd);
  handshake_ = rendezvous::Handshake::start(
      {std::move(socket_), std::move(channel)}, std::chrono::seconds(60),
      [this](Result<rendezvous::Connected> connected) {
        handshake_.reset();
        if (!connected) return crowd_.fail(index_, to_string(connected.error()));
        linked(Link::make(std::move(*connected), {}));
      });
}

void Node::linked(std::shared_ptr<Link> link) {
  link_ = std::move(link);
  crowd_.linked();
  link_->start({.on_message = [this](const std::string& body) { receive(body); },
                .on_closed =
                    [this](const Failure& why) {
                      if (!crowd_.over()) crowd_.fail(index_, to_string(why));
                    }});
  send(rendezvous::Hello{rendezvous::kProtocolVersion, crowd_.plan().run_id,
                         "node" + std::to_string(index_) + "." + random_hex(8)});
  if (crowd_.plan().tls) join();  // As an agent: the handshake has proved that it is the daemon.
}

void Node::join() {
  if (std::exchange(joined_, true)) return;
  rendezvous::NodeOffer offer;
  offer.host = "node" + std::to_string(index_);
  offer.address = "10." + std::to_string(index_ >> 16 & 255) + "." +
                  std::to_string(index_ >> 8 & 255) + "." + std::to_string(index_ & 255);
  offer.store_port = 30'000;
  offer.local_world_size = crowd_.plan().local_world_size;
  offer.config.nnodes_min = offer.config.nnodes_max = crowd_.plan().nodes;
  send(rendezvous::Join{offer, -1});
}

void Node::send(const rendezvous::AgentMessage& message) {
  const std::string body = encode(message);
  ++crowd_.count.messages_up;
  crowd_.count.bytes_up += static_cast<long>(body.size()) + 4;
  link_->send(body);
}

void Node::receive(const std::string& body) {
  ++crowd_.count.messages_down;
  crowd_.count.bytes_down += static_cast<long>(body.size()) + 4;
  const auto message = rendezvous::decode_daemon_message(body);
  if (!message) return crowd_.fail(index_, to_string(message.error()));
  if (const auto* alive = std::get_if<rendezvous::Alive>(&*message)) {
    if (interval_ == Milliseconds(0)) {
      interval_ = alive->beat;
      beat_after(interval_);
    }
    interval_ = alive->beat;
  }
  join();
  if (const auto* assign = std::get_if<rendezvous::Assign>(&*message)) {
    base_rank_ = assign->seat.base_rank;
    if (std::exchange(round_, assign->seat.round) != -1) return;
    seated_ = Clock::now();
    crowd_.seated();
  }
}

std::optional<rendezvous::NodeTimes> Node::times() {
  const auto now = Clock::now();
  const auto every = crowd_.plan().reporting;
  if (round_ < 0 || every.count() == 0 || now - reported_ < every) return std::nullopt;
  reported_ = now;
  rendezvous::NodeTimes times;
  const auto since = std::chrono::duration_cast<TimeParts::Time>(now - seated_);
  for (int local = 0; local < crowd_.plan().local_world_size; ++local) {
    rendezvous::PlaceTimes place{.local_rank = local, .rank = base_rank_ + local};
    place.parts[TimePart::kForward] = since / 3;
    place.parts[TimePart::kBackward] = since - since / 3;
    place.at = TimePart::kOutside;
    place.steps = static_cast<std::uint64_t>(since / std::chrono::milliseconds(100));
    place.late = base_rank_ + local == 3 ? since / 10 : TimeParts::Time{0};
    times.places.push_back(std::move(place));
  }
  return times;
}

void Node::beat_after(Milliseconds interval) {
  beat_.expires_after(interval);
  beat_.async_wait([this](boost::system::error_code error) {
    if (error || crowd_.over()) return;
    send(rendezvous::Heartbeat{.round = round_, .times = times()});
    beat_after(interval_);
  });
}

void Node::stop() {
  beat_.cancel();
  if (link_) link_->close();
}

}  // namespace
}  // namespace ddprun::bench

int main(int argc, char** argv) {
  using namespace ddprun;
  if (argc != 6 && argc != 7) {
    std::fputs(
        "usage: bench_synthetic_agents HOST PORT NODES WORKERS_PER_NODE BEAT_SECONDS "
        "[REPORT_SECONDS]\n",
        stderr);
    return 2;
  }
  raise_soft_limits(100'000);
  bench::Plan plan;
  plan.daemon = {boost::asio::ip::make_address(argv[1]),
                 static_cast<std::uint16_t>(std::atoi(argv[2]))};
  plan.nodes = std::atoi(argv[3]);
  plan.local_world_size = std::atoi(argv[4]);
  plan.beating = std::chrono::seconds(std::atoi(argv[5]));
  if (argc == 7) plan.reporting = std::chrono::seconds(std::atoi(argv[6]));
  plan.run_id = "bench." + random_hex(4);
  if (const char* token = std::getenv("DDPRUN_TOKEN"); token && *token) {
    auto tls = rendezvous::make_tls_context(rendezvous::TlsRole::kClient, token);
    if (!tls) {
      std::fprintf(stderr, "bench_synthetic_agents: %s\n", to_string(tls.error()).c_str());
      return 1;
    }
    plan.tls = std::move(*tls);
  }
  return bench::Crowd(std::move(plan)).run();
}
