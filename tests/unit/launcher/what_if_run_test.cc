// The model of `ddprunctl whatif` beside the real Run, which decides for nodes that are played
// here: with the same faults at the same times both compute at the same times, with the same number
// of ranks.

#include <catch2/catch.hpp>
#include <cmath>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "launcher/whatif/what_if.h"
#include "rendezvous/run/run.h"

namespace ddprun::launcher {
namespace {

using namespace rendezvous;

// Nodes of a run, without processes: a round computes once every node has its seat, and as long
// after it as RunTimes says.
class RealRun {
 public:
  RealRun(const RunTimes& times, const RunShape& shape) : times_(times), shape_(shape) {
    for (int i = 0; i < shape.nodes_max + shape.spare_nodes; ++i) start_node();
  }

  std::vector<Stretch> play(const std::vector<Outage>& faults, double until) {
    for (const Outage& fault : faults) at(fault.at, [this, fault] { hit(fault); });
    while (true) {
      const double tick = run_.deadline() ? seconds(*run_.deadline()) + kTick : 1e18;
      const double next = std::min(tick, queue_.empty() ? 1e18 : queue_.begin()->first);
      if (next >= until) break;
      now_ = next;
      if (tick <= next) {
        step("", Tick{});
      } else {
        const auto what = queue_.begin()->second;
        queue_.erase(queue_.begin());
        what();
      }
      run_.check_invariants();
    }
    now_ = until;
    halt();
    return stretches_;
  }

 private:
  struct Node {
    int round = -1, rank = -1;
    bool seated = false;
    int ranks = 0;                   // Workers in its seats, or offered for them.
    int parked = 0;                  // More that are ready for a seat.
    int spares = 0;                  // The same, beyond the seats.
    bool ready = false;              // Its workers have started.
    std::optional<double> starts{};  // Until then they do.
  };

  static constexpr double kTick = 1e-6;  // A deadline is over then, however it was rounded.
  static double seconds(TimePoint t) {
    return std::chrono::duration<double>(t.time_since_epoch()).count();
  }
  TimePoint time() const {
    return TimePoint(std::chrono::duration_cast<Duration>(std::chrono::duration<double>(now_)));
  }
  void at(double when, std::function<void()> what) { queue_.emplace(when, std::move(what)); }

  void start_node() {
    const NodeId id = "n" + std::to_string(lives_++);
    nodes_[id] = {.ranks = shape_.node_ranks, .spares = shape_.spares};
    join(id, /*living=*/false);
  }

  void join(const NodeId& id, bool living) {
    const Node& node = nodes_.at(id);
    Join join;
    join.after_round = node.round, join.living = living;
    join.serial = ++serial_, join.prepares = true;
    join.offer.host = join.offer.address = id;
    join.offer.local_world_size = node.ranks;
    join.offer.config = {.nnodes_min = shape_.nodes_min,
                         .nnodes_max = shape_.nodes_max,
                         .max_restarts = 1'000'000,
                         .join_timeout = Milliseconds(1'000'000'000),
                         .last_call = Milliseconds(10),
                         .heartbeat_timeout = Milliseconds(1'000'000'000),
                         .standstill_timeout = Milliseconds(1'000'000'000)};
    step(id, join);
  }

  void send_slots(const NodeId& id) {
    const Node& node = nodes_.at(id);
    step(id, Slots{.serial = ++serial_,
                   .round = node.round,
                   .kept = node.ranks,
                   .parked = node.parked,
                   .spares = node.spares});
  }

  template <class Event>
  void step(const NodeId& id, const Event& event) {
    for (const RunAction& action : run_.step({id, event}, time())) {
      if (!nodes_.contains(action.node)) continue;
      const NodeId to = action.node;
      if (const auto* assign = std::get_if<Assign>(&action.message)) {
        at(now_, [this, to, seat = assign->seat] { seated(to, seat); });
      } else if (const auto* stop = std::get_if<StopRound>(&action.message)) {
        at(now_, [this, to, stop = *stop] { stopped(to, stop); });
      } else if (std::holds_alternative<Prepare>(action.message)) {
        prepare(to);
      }
    }
  }

  void seated(const NodeId& id, const Seat& seat) {
    if (!nodes_.contains(id)) return;
    Node& node = nodes_.at(id);
    if (node.seated && node.round == seat.round) return;
    number(id);
    const bool was_seated = node.round >= 0;
    node.round = seat.round, node.rank = seat.base_rank, node.seated = true;
    // A node that comes gets the state; if the others waited, its workers start with their seats.
    const bool comes = times_.keeps_workers && seat.round > 0 && !was_seated;
    double pause = comes ? std::max(pause_, times_.growth) : pause_;
    if (comes && !node.ready) {
      pause = (node.starts ? *node.starts - now_ : times_.refill) + times_.growth;
    }
    if (seat.round == 0) pause = times_.start;
    node.ready = true;
    starts_ = std::max(starts_, (seat.round == 0 ? 0 : now_) + pause);
    world_ = seat.world_size;
    computes_ = true;
    if (times_.keeps_workers) send_slots(id);
  }

  void stopped(const NodeId& id, const StopRound& stop) {
    if (!nodes_.contains(id) || !nodes_.at(id).seated || stop.round != nodes_.at(id).round) return;
    halt();
    Node& node = nodes_.at(id);
    node.seated = false;
    if (stop.keep) {
      node.ranks += std::exchange(node.parked, 0);
      if (stop.planned) pause_ = times_.growth;
      return join(id, /*living=*/true);
    }
    step(id, Stopped{.round = node.round, .deaths = {}});
    node.ranks = shape_.node_ranks;
    join(id, /*living=*/false);
  }

  // Workers of a node that came to a round that keeps its own: those of the first nodes live.
  void prepare(const NodeId& id) {
    const double start = now_ == 0 || now_ < times_.start ? 0 : times_.refill;
    nodes_.at(id).starts = now_ + start;
    at(now_ + start, [this, id] {
      if (!nodes_.contains(id)) return;
      nodes_.at(id).ready = true;
      join(id, /*living=*/true);
    });
  }

  void hit(const Outage& fault) {
    const auto seat = seats_.find(fault.node);
    if (seat == seats_.end()) return;
    const NodeId id = seat->second;
    if (fault.takes_node) return lose(id);
    Node* node = &nodes_.at(id);
    if (node->ranks == 0 || !node->seated) return;
    halt();
    const bool keeps = times_.keeps_workers;
    const bool has_spare = keeps && node->spares > 0;
    pause_ = !keeps      ? times_.restart
             : has_spare ? std::max(times_.change, times_.growth)
                         : times_.change;
    if (has_spare) --node->spares;
    if (keeps && !has_spare) --node->ranks;
    if (keeps) at(now_ + times_.refill, [this, id = id] { refill(id); });
    Failed failed;
    failed.round = node->round;
    failed.death.rank = node->rank, failed.death.host = id, failed.death.signal = 9;
    failed.death.kept_steps = keeps ? 1 : 0;
    step(id, failed);
  }

  void refill(const NodeId& id) {
    if (!nodes_.contains(id)) return;
    Node& node = nodes_.at(id);
    if (node.ranks + node.parked == shape_.node_ranks) {
      ++node.spares;
      return;
    }
    if (node.seated) {
      ++node.parked;
      return send_slots(id);
    }
    pause_ = times_.growth;
    ++node.ranks;
    join(id, /*living=*/true);
  }

  void lose(const NodeId& id) {
    halt();
    const bool was_seated = nodes_.at(id).seated;
    nodes_.erase(id);
    std::erase_if(seats_, [&](const auto& seat) { return seat.second == id; });
    at(now_ + times_.notice, [this, id, was_seated] {
      if (was_seated) {
        pause_ = times_.keeps_workers ? times_.change : times_.restart;
      }
      step(id, Lost{"is lost"});
    });
    at(now_ + times_.repair, [this] {
      if (!times_.keeps_workers) pause_ = times_.restart;
      start_node();
    });
  }

  // The model gives a node that comes the number of the first that is gone, or has no workers.
  void number(const NodeId& id) {
    for (const auto& [number, node] : seats_) {
      if (node == id) return;
    }
    int number = 0;
    const auto is_taken = [this](const NodeId& node) {
      return nodes_.at(node).seated || nodes_.at(node).ranks > 0;
    };
    while (seats_.contains(number) && is_taken(seats_.at(number))) ++number;
    seats_[number] = id;
  }

  void halt() {
    if (!computes_) return;
    computes_ = false;
    if (now_ > starts_) stretches_.push_back({starts_, now_, world_});
  }

  const RunTimes times_;
  const RunShape shape_;
  Run run_;
  double now_ = 0;
  std::multimap<double, std::function<void()>> queue_;
  std::map<NodeId, Node> nodes_;
  std::map<int, NodeId> seats_;
  int lives_ = 0, serial_ = 0;
  bool computes_ = false;
  double starts_ = 0, pause_ = 0;
  int world_ = 0;
  std::vector<Stretch> stretches_;
};

constexpr double kSlack = 0.1;

double rank_seconds(const std::vector<Stretch>& stretches) {
  double sum = 0;
  for (const Stretch& stretch : stretches) sum += (stretch.until - stretch.from) * stretch.ranks;
  return sum;
}

// Those that are longer than a real run takes to gather what comes at once.
std::vector<Stretch> long_ones(const std::vector<Stretch>& stretches) {
  std::vector<Stretch> all;
  std::ranges::copy_if(stretches, std::back_inserter(all),
                       [](const Stretch& s) { return s.until - s.from > kSlack; });
  return all;
}

std::string text(const Stretch& s) {
  return std::to_string(s.from) + " to " + std::to_string(s.until) + ": " +
         std::to_string(s.ranks) + " ranks\n";
}

// The first stretch that is not the same; empty: there is none.
std::string difference(const std::vector<Stretch>& model, const std::vector<Stretch>& real) {
  for (std::size_t i = 0; i < std::max(model.size(), real.size()); ++i) {
    const Stretch one = i < model.size() ? model[i] : Stretch();
    const Stretch other = i < real.size() ? real[i] : Stretch();
    const bool same = std::abs(one.from - other.from) < kSlack &&
                      std::abs(one.until - other.until) < kSlack && one.ranks == other.ranks;
    if (!same) return "model " + text(one) + "real " + text(other);
  }
  return "";
}

void compare(const RunTimes& times, const RunShape& shape, const OutageRate& rate, double until,
             int seeds) {
  for (int seed = 1; seed <= seeds; ++seed) {
    const auto faults =
        random_outages(rate, shape.nodes_max, until, static_cast<std::uint64_t>(seed));
    std::vector<Stretch> model;
    play(times, shape, faults, until, &model);
    const auto real = RealRun(times, shape).play(faults, until);
    INFO("seed " << seed);
    CHECK(difference(long_ones(model), long_ones(real)) == "");
    CHECK(rank_seconds(model) == Approx(rank_seconds(real)).epsilon(0.001));
  }
}

TEST_CASE("What if: a run that restarts computes when the real Run lets it", "[whatif]") {
  const RunTimes times{.start = 40, .restart = 20, .notice = 5, .repair = 900};
  RunShape shape{.nodes_min = 4, .nodes_max = 4, .node_ranks = 2};
  const OutageRate rate{.node_mtbf = 40'000, .node_loss_share = 0.5};
  compare(times, shape, rate, 100'000, 20);
  shape.spare_nodes = 1;
  compare(times, shape, rate, 100'000, 20);
  shape.spare_nodes = 0;
  shape.nodes_min = 2;
  compare(times, shape, rate, 100'000, 20);
}

TEST_CASE("What if: an elastic job computes when the real Run lets it", "[whatif]") {
  const RunTimes times{.keeps_workers = true,
                       .start = 40,
                       .change = 3,
                       .growth = 4,
                       .refill = 60,
                       .notice = 5,
                       .repair = 900};
  RunShape shape{.nodes_min = 1, .nodes_max = 4, .node_ranks = 2};
  OutageRate rate{.node_mtbf = 10'000, .node_loss_share = 0};
  compare(times, shape, rate, 50'000, 20);
  shape.spares = 1;
  compare(times, shape, rate, 50'000, 20);
  shape.spares = 0;
  rate = {.node_mtbf = 40'000, .node_loss_share = 0.5};
  compare(times, shape, rate, 100'000, 20);
  shape.nodes_min = 4;
  compare(times, shape, rate, 100'000, 20);
  // If a worker dies beside a spare node, it depends on the order of messages which of the two
  // nodes is in the next round.
  shape.spare_nodes = 1;
  rate.node_loss_share = 1;
  compare(times, shape, rate, 100'000, 20);
}

}  // namespace
}  // namespace ddprun::launcher
