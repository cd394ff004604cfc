#include "launcher/whatif/what_if.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "common/assert.h"

namespace ddprun::launcher {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr int kReserve = -1;  // In place of a node's number.

// SplitMix64: the numbers of <random>'s distributions depend on the library.
class Dice {
 public:
  explicit Dice(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() {
    std::uint64_t x = state_ += 0x9e37'79b9'7f4a'7c15;
    x = (x ^ (x >> 30)) * 0xbf58'476d'1ce4'e5b9;
    x = (x ^ (x >> 27)) * 0x94d0'49bb'1331'11eb;
    return x ^ (x >> 31);
  }
  double between_0_and_1() {
    constexpr int kUnused = 11;  // Bits beyond what a double holds.
    return std::ldexp(static_cast<double>(next() >> kUnused), kUnused - 64);
  }
  double wait(double mean) { return -mean * std::log1p(-between_0_and_1()); }

 private:
  std::uint64_t state_;
};

// So many workers of a node are ready, or a node is back, at a time.
class Alarms {
 public:
  void add(double at, int node, int workers) {
    const auto place = std::ranges::upper_bound(all_, at, {}, &Alarm::at);
    all_.insert(place, {at, node, workers});
  }
  double next() const { return all_.empty() ? kNever : all_.front().at; }
  std::pair<int, int> take() {
    const Alarm first = all_.front();
    all_.erase(all_.begin());
    return {first.node, first.workers};
  }
  void drop(int node) {
    std::erase_if(all_, [node](const Alarm& alarm) { return alarm.node == node; });
  }

 private:
  struct Alarm {
    double at = 0;
    int node = 0, workers = 0;
  };
  std::vector<Alarm> all_;
};

// One run. Its nodes are seats: a node that takes the place of another has its number.
class Player {
 public:
  Player(const RunTimes& times, const RunShape& shape, std::vector<Stretch>* stretches)
      : times_(times),
        shape_(shape),
        stretches_(stretches),
        nodes_(static_cast<std::size_t>(shape.nodes_max)),
        reserve_(shape.spare_nodes),
        pause_ends_(times.start) {
    for (Node& node : nodes_) join(node);
  }

  Played play(const std::vector<Outage>& faults, double until) {
    auto fault = faults.begin();
    while (true) {
      const double next_fault = fault == faults.end() ? kNever : fault->at;
      const double pause = now_ < pause_ends_ ? pause_ends_ : kNever;
      const double next = std::min({next_fault, pause, repairs_.next(), starts_.next()});
      if (next >= until) break;
      pass(next);
      if (next == repairs_.next()) {
        repairs_.take();
        come_back();
      } else if (next == starts_.next()) {
        const auto [node, workers] = starts_.take();
        node == kReserve ? join_ready() : become_ready(at(node), workers);
      } else if (next == next_fault) {
        hit(*fault++);
      }
    }
    pass(until);
    played_.kept += std::exchange(unsaved_, 0);
    played_.wall = until;
    return played_;
  }

 private:
  struct Node {
    bool present = false;
    int ranks = 0;   // Places with a worker that takes part.
    int spares = 0;  // Workers that are ready.
  };

  Node& at(int node) { return nodes_[static_cast<std::size_t>(node)]; }
  bool waits() const { return seated_ < shape_.nodes_min || ranks_ == 0; }
  bool computes() const { return !waits() && now_ >= pause_ends_; }

  // Until `then` nothing happens.
  void pass(double then) {
    const double time = then - now_;
    const auto ranks = static_cast<double>(ranks_);
    const double places = static_cast<double>(present_) * shape_.node_ranks;
    if (waits()) {
      played_.waited += time * places;
    } else if (computes()) {
      compute(time);
      played_.paused += time * (places - ranks);  // Of workers that start.
      if (stretches_ && time > 0) add_stretch(then);
    } else {
      played_.paused += time * places;
    }
    now_ = then;
  }

  void add_stretch(double then) {
    const bool goes_on = !stretches_->empty() && stretches_->back().until == now_ &&
                         stretches_->back().ranks == ranks_;
    if (goes_on) stretches_->back().until = then;
    if (!goes_on) stretches_->push_back({now_, then, ranks_});
  }

  // Work and checkpoints take turns; work is kept once the checkpoint after it has ended.
  void compute(double time) {
    const auto ranks = static_cast<double>(ranks_);
    if (std::isinf(shape_.interval)) {
      unsaved_ += time * ranks;
      return;
    }
    const double period = shape_.interval + times_.checkpoint;
    const double turns = std::floor((turn_ + time) / period);
    const auto work_by = [&](double turn) { return std::min(turn, shape_.interval); };
    const double rest = std::max(turn_ + time - turns * period, 0.0);
    const double work = turns * shape_.interval + work_by(rest) - work_by(turn_);
    unsaved_ += work * ranks;
    played_.checkpoint += (time - work) * ranks;
    turn_ = rest;
    if (turns < 1) return;
    const double since = work_by(rest) * ranks;
    played_.kept += unsaved_ - since;
    unsaved_ = since;
  }

  void lose_work() {
    played_.lost += std::exchange(unsaved_, 0);
    turn_ = 0;
  }

  void pause(double time) { pause_ends_ = std::max(pause_ends_, now_ + time); }

  // All processes begin anew.
  void restart(double takes) {
    lose_work();
    pause_ends_ = now_ + takes;
  }

  void hit(const Outage& fault) {
    if (fault.node >= shape_.nodes_max || !at(fault.node).present) return;
    if (fault.takes_node) {
      ++played_.faults;
      lose_node(fault.node);
    } else if (at(fault.node).ranks > 0) {
      ++played_.faults;
      lose_worker(fault.node);
    }
  }

  void lose_worker(int number) {
    if (!times_.keeps_workers) return restart(times_.restart);
    Node& node = at(number);
    starts_.add(now_ + times_.refill, number, 1);
    if (ranks_ == 1) lose_work();
    if (node.spares > 0) {
      --node.spares;
      return pause(std::max(times_.change, times_.growth));
    }
    seat(node, -1);
    if (node.ranks == 0 && reserve_ > 0) return exchange(number);
    pause(times_.change);
  }

  // A node without workers becomes a spare node once it has some.
  void exchange(int number) {
    starts_.drop(number);
    starts_.add(now_ + times_.refill, kReserve, shape_.node_ranks);
    --reserve_;
    --present_;
    join(at(number));
    pause(std::max(times_.change, times_.growth));
  }

  void lose_node(int number) {
    Node& node = at(number);
    seat(node, -node.ranks);
    node = {};
    --present_;
    starts_.drop(number);
    repairs_.add(now_ + times_.repair, number, 0);
    const bool survives = ranks_ > 0;
    const bool is_replaced = reserve_ > 0;
    if (is_replaced) {
      --reserve_;
      join(node);
    }
    if (!times_.keeps_workers) return restart(times_.notice + times_.restart);
    if (!survives) lose_work();
    pause(times_.notice + (is_replaced ? std::max(times_.change, times_.growth) : times_.change));
  }

  // With all of its workers.
  void join(Node& node) {
    ++present_;
    node = {.present = true, .spares = shape_.spares};
    seat(node, shape_.node_ranks);
  }

  void seat(Node& node, int more) {
    seated_ -= node.ranks > 0 ? 1 : 0;
    node.ranks += more;
    ranks_ += more;
    seated_ += node.ranks > 0 ? 1 : 0;
  }

  std::vector<Node>::iterator gone() { return std::ranges::find(nodes_, false, &Node::present); }

  // The others compute while its workers start, if they keep theirs.
  void come_back() {
    const auto seat = gone();
    const bool has_seat = seat != nodes_.end();
    if (times_.keeps_workers) {
      if (has_seat) seat->present = true, ++present_;
      const int number = has_seat ? static_cast<int>(seat - nodes_.begin()) : kReserve;
      starts_.add(now_ + times_.refill, number, shape_.node_ranks + shape_.spares);
    } else if (has_seat) {
      join(*seat);
      restart(times_.restart);
    } else {
      ++reserve_;
    }
  }

  // A node without a seat, whose workers are ready.
  void join_ready() {
    const auto seat = gone();
    if (seat == nodes_.end()) {
      ++reserve_;
    } else {
      join(*seat);
      pause(times_.growth);
    }
  }

  void become_ready(Node& node, int workers) {
    const int seats = std::min(workers, shape_.node_ranks - node.ranks);
    node.spares += workers - seats;
    if (seats == 0) return;
    seat(node, seats);
    pause(times_.growth);
  }

  const RunTimes& times_;
  const RunShape& shape_;
  std::vector<Stretch>* stretches_;
  std::vector<Node> nodes_;
  int present_ = 0;
  int seated_ = 0;  // Those of them with a rank.
  int ranks_ = 0;   // That compute, unless the run pauses.
  int reserve_;     // Spare nodes.
  Alarms repairs_;
  Alarms starts_;  // Of workers.
  double now_ = 0;
  double pause_ends_;
  double turn_ = 0;     // Since the last checkpoint.
  double unsaved_ = 0;  // Rank-seconds.
  Played played_;
};

// Of sorted values.
double at_share(const std::vector<double>& values, double share) {
  const auto last = static_cast<double>(values.size() - 1);
  return values[static_cast<std::size_t>(std::lround(share * last))];
}

double mean_speed(const RunTimes& times, const RunShape& shape,
                  const std::vector<std::vector<Outage>>& runs, double until) {
  double sum = 0;
  for (const std::vector<Outage>& faults : runs) {
    sum += play(times, shape, faults, until).speed(shape.ranks_max());
  }
  return sum / static_cast<double>(runs.size());
}

// The top of the parabola that fits `values` best, which stand at -n to n.
double top_of(const std::vector<double>& values) {
  const int n = static_cast<int>(values.size() / 2);
  double s2 = 0, s4 = 0, y0 = 0, y1 = 0, y2 = 0;
  for (int x = -n; x <= n; ++x) {
    const double y = values[static_cast<std::size_t>(x + n)];
    s2 += x * x, s4 += x * x * x * x;
    y0 += y, y1 += y * x, y2 += y * x * x;
  }
  const auto count = static_cast<double>(values.size());
  const double curve = (count * y2 - s2 * y0) / (count * s4 - s2 * s2);
  if (!(curve < 0)) return 0;
  return std::clamp(-(y1 / s2) / (2 * curve), -static_cast<double>(n), static_cast<double>(n));
}

}  // namespace

std::vector<Outage> random_outages(const OutageRate& rate, int nodes, double until,
                                   std::uint64_t seed) {
  std::vector<Outage> faults;
  for (int node = 0; node < nodes; ++node) {
    Dice seeds(seed);
    Dice dice(seeds.next() ^ static_cast<std::uint64_t>(node) << 32);
    double at = dice.wait(rate.node_mtbf);
    while (at < until) {
      faults.push_back({at, node, dice.between_0_and_1() < rate.node_loss_share});
      at += dice.wait(rate.node_mtbf);
    }
  }
  std::ranges::stable_sort(faults, {}, &Outage::at);
  return faults;
}

Played play(const RunTimes& times, const RunShape& shape, const std::vector<Outage>& faults,
            double until, std::vector<Stretch>* stretches) {
  DDPRUN_ASSERT(shape.nodes_min >= 1 && shape.nodes_min <= shape.nodes_max);
  DDPRUN_ASSERT(shape.node_ranks >= 1 && shape.interval > 0);
  return Player(times, shape, stretches).play(faults, until);
}

Expected expect(const RunTimes& times, const RunShape& shape, const OutageRate& rate, double until,
                int plays) {
  DDPRUN_ASSERT(plays >= 1);
  Expected all;
  std::vector<double> goodputs;
  Played sum;
  for (int seed = 1; seed <= plays; ++seed) {
    const auto faults =
        random_outages(rate, shape.nodes_max, until, static_cast<std::uint64_t>(seed));
    const Played played = play(times, shape, faults, until);
    goodputs.push_back(played.goodput());
    all.speed += played.speed(shape.ranks_max()) / plays;
    all.faults += static_cast<double>(played.faults) / plays;
    sum.kept += played.kept, sum.lost += played.lost, sum.checkpoint += played.checkpoint;
    sum.paused += played.paused, sum.waited += played.waited;
  }
  std::ranges::sort(goodputs);
  all.goodput_10 = at_share(goodputs, 0.1), all.goodput_90 = at_share(goodputs, 0.9);
  const double whole = sum.in_run();
  if (whole <= 0) return all;
  all.goodput = sum.goodput();
  all.lost = sum.lost / whole, all.checkpoint = sum.checkpoint / whole;
  all.paused = sum.paused / whole, all.waited = sum.waited / whole;
  return all;
}

double daly_interval(double checkpoint, double mtbf) {
  const double half = checkpoint / (2 * mtbf);
  if (half >= 1) return mtbf;
  return std::sqrt(2 * checkpoint * mtbf) * (1 + std::sqrt(half) / 3 + half / 9) - checkpoint;
}

// By runs that differ in the interval alone, around Daly's; noise would move the best of them, but
// not much the top of a parabola through its neighbours.
std::optional<double> best_interval(const RunTimes& times, RunShape shape, const OutageRate& rate) {
  constexpr int kRuns = 64, kFaults = 100, kSteps = 22, kNeighbours = 5;
  constexpr double kFactor = 1.12;
  const double mtbf = rate.node_mtbf / shape.nodes_max;
  if (!(times.checkpoint > 0) || !(mtbf > 0) || std::isinf(mtbf)) return std::nullopt;
  const double until = times.start + kFaults * mtbf;
  std::vector<std::vector<Outage>> runs;
  for (std::uint64_t seed = 1; seed <= kRuns; ++seed) {
    runs.push_back(random_outages(rate, shape.nodes_max, until, seed));
  }
  const double middle = daly_interval(times.checkpoint, mtbf);
  std::vector<double> speeds;
  for (int i = -kSteps; i <= kSteps; ++i) {
    shape.interval = middle * std::pow(kFactor, i);
    speeds.push_back(mean_speed(times, shape, runs, until));
  }
  const auto best = static_cast<int>(std::ranges::max_element(speeds) - speeds.begin());
  if (best + kNeighbours >= static_cast<int>(speeds.size())) return std::nullopt;
  if (best < kNeighbours) return middle * std::pow(kFactor, best - kSteps);
  const std::vector<double> near(speeds.begin() + best - kNeighbours,
                                 speeds.begin() + best + kNeighbours + 1);
  return middle * std::pow(kFactor, best - kSteps + top_of(near));
}

}  // namespace ddprun::launcher
