#include "launcher/whatif/comparison.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "common/ledger/time_parts.h"
#include "common/options/option.h"
#include "common/text/figures.h"

namespace ddprun::launcher {
namespace {

constexpr double kWorks = 0.01;  // Goodput below which a run gets nothing done.

void take(RunFact& fact, std::optional<double> given) {
  if (given) fact = {*given, 0};
}

template <class Value>
std::vector<Value> or_own(const std::vector<Value>& given, const Value& own) {
  return given.empty() ? std::vector<Value>{own} : given;
}

Choice answer(const RunFacts& facts, RunShape shape, double length) {
  return {.shape = shape, .expected = expect(facts.times(), shape, facts.rate(), length)};
}

// Ranks that never stop make it in so much time; kept rank-seconds a second.
double power(const Choice& answer) { return answer.expected.speed * answer.shape.ranks_max(); }

bool works(const Choice& answer) { return answer.expected.goodput >= kWorks; }

std::optional<std::string> objection(const RunFacts& facts, const WhatIf& given) {
  const bool wants_spares = std::ranges::any_of(given.spares, [](int n) { return n > 0; });
  if (wants_spares && !facts.keeps_workers) {
    return "--spares: workers of run '" + facts.run_id +
           "' do not keep their processes, so spare workers have no effect; --spare-nodes has";
  }
  return std::nullopt;
}

std::vector<Choice> answers(const RunFacts& facts, const WhatIf& given, double length) {
  const RunShape& own = facts.shape;
  std::vector<Choice> all;
  for (const NodeNumbers& nodes : or_own(given.nodes, {own.nodes_min, own.nodes_max})) {
    for (const int spare_nodes : or_own(given.spare_nodes, own.spare_nodes)) {
      for (const int spares : or_own(given.spares, own.spares)) {
        RunShape shape{.nodes_min = nodes.min,
                       .nodes_max = nodes.max,
                       .node_ranks = own.node_ranks,
                       .spare_nodes = spare_nodes,
                       .spares = spares,
                       .interval = own.interval};
        for (const auto& interval : or_own(given.intervals, std::optional<double>(own.interval))) {
          const auto best = interval ? interval : best_interval(facts.times(), shape, facts.rate());
          shape.interval = best.value_or(own.interval);
          all.push_back(answer(facts, shape, length));
          all.back().is_best = !interval && best;
        }
      }
    }
  }
  return all;
}

// "One spare node would have saved 3.1 h of 72.0 h."
class Sentences {
 public:
  explicit Sentences(const Compared& all) : all_(all) {}

  std::vector<std::string> take() {
    if (std::ranges::none_of(all_.answers, works)) {
      add_why_none_works();
      return std::move(sentences_);
    }
    add_spares(&RunShape::spare_nodes, "spare node");
    add_spares(&RunShape::spares, all_.facts.shape.nodes_max > 1 ? "spare on each node" : "spare");
    add_checkpoints();
    add_waiting();
    return std::move(sentences_);
  }

 private:
  // As if all had happened, unless the failures are thought up.
  std::string would_save() const {
    return all_.given.mtbf || all_.given.length ? " would save " : " would have saved ";
  }

  // Beside the answer with the fewest.
  void add_spares(int RunShape::*member, const std::string& what) {
    std::vector<const Choice*> chosen;  // That differ in nothing else.
    for (const Choice& answer : all_.answers) {
      RunShape same = answer.shape;
      if (chosen.empty()) chosen.push_back(&answer);
      RunShape first = chosen.front()->shape;
      same.interval = first.interval;
      same.*member = first.*member;
      const bool is_new = std::ranges::none_of(chosen, [&](const Choice* other) {
        return other->shape.*member == answer.shape.*member;
      });
      if (same == first && is_new) chosen.push_back(&answer);
    }
    std::ranges::sort(chosen, {}, [&](const Choice* answer) { return answer->shape.*member; });
    for (std::size_t i = 1; i < chosen.size(); ++i) {
      const int more = chosen[i]->shape.*member;
      const std::string subject =
          more == 1 ? "One " + what : std::to_string(more) + " " + plural(what);
      add_effect(subject, *chosen.front(), *chosen[i]);
    }
  }

  static std::string plural(const std::string& what) {
    return what == "spare on each node" ? "spares on each node" : what + "s";
  }

  // What is saved of next to nothing is no figure.
  void add_effect(const std::string& subject, const Choice& from, const Choice& to) {
    if (works(from) && works(to)) return add_saving(subject, from.takes - to.takes, from.takes);
    const std::string before = percent_text(from.expected.goodput);
    const std::string after = percent_text(to.expected.goodput);
    if (!works(from) && !works(to)) {
      sentences_.push_back(subject + " would not help: the goodput is " + after + " with it, and " +
                           before + " without.");
    } else {
      sentences_.push_back(subject + (works(to) ? " would raise" : " would lower") +
                           " the goodput from " + before + " to " + after + ".");
    }
  }

  void add_why_none_works() {
    const auto goodput = [](const Choice& answer) { return answer.expected.goodput; };
    const Choice& best = *std::ranges::max_element(all_.answers, {}, goodput);
    const Expected& shares = best.expected;
    const double most = std::max({shares.lost, shares.paused, shares.waited, shares.checkpoint});
    std::string why = percent_text(most) + " of the time ";
    std::string help;
    if (most == shares.lost && std::isinf(best.shape.interval)) {
      why += "is work that is lost, and no checkpoint is written";
      help = "; --checkpoint auto finds how often to write one";
    } else if (most == shares.lost) {
      why += "is work that is lost, with a checkpoint each " + time_text(best.shape.interval);
      help = best.is_best ? "" : "; --checkpoint auto finds a better interval";
    } else if (most == shares.checkpoint) {
      why += "goes into checkpoints, of " + time_text(all_.facts.checkpoint.value) + " each";
    } else if (most == shares.waited) {
      why += "is spent waiting for nodes, each of which is back after " +
             time_text(all_.facts.repair.value);
    } else {
      why += "goes into starts and restarts";
    }
    const bool is_one = all_.answers.size() == 1;
    sentences_.push_back(
        std::string(is_one ? "Such a run gets nothing done" : "No choice gets anything done") +
        " (goodput " + percent_text(shares.goodput) + (is_one ? "" : " at most") +
        "): a failure comes each " + time_text(all_.mtbf) + "; " + why + help + ".");
  }

  void add_saving(const std::string& subject, double saved, double of) {
    if (std::abs(saved) < kWorthReporting * of) {
      sentences_.push_back(subject + would_save() + "less than 0.5 % of the time.");
    } else if (saved > 0) {
      sentences_.push_back(subject + would_save() + time_text(saved) + " of " + time_text(of) +
                           ".");
    } else {
      sentences_.push_back(subject + (all_.given.mtbf ? " would cost " : " would have cost ") +
                           time_text(-saved) + " more than " + time_text(of) + ".");
    }
  }

  void add_checkpoints() {
    const bool writes = !std::isinf(all_.facts.shape.interval);
    const bool asks =
        std::ranges::any_of(all_.given.intervals, [](const auto& interval) { return !interval; });
    if (!writes && !asks) return;
    if (!all_.best_interval) {
      sentences_.push_back(
          all_.facts.keeps_workers
              ? "Survivors have the state: checkpoints serve the loss of all nodes only, so write "
                "them as rarely as that allows."
              : "No interval of checkpoints is the best: nothing fails, or they cost nothing.");
      return;
    }
    std::string text = "The best interval of checkpoints is " + time_text(*all_.best_interval);
    if (!all_.facts.keeps_workers) text += " (Young and Daly: " + time_text(all_.daly) + ")";
    const auto best = std::ranges::find_if(all_.answers, [&](const Choice& answer) {
      RunShape own = all_.as_it_was.shape;
      own.interval = answer.shape.interval;
      return answer.is_best && answer.shape == own;
    });
    const bool helps = best != all_.answers.end() && writes;
    sentences_.push_back(text + ".");
    if (!helps) return;
    add_effect("That instead of " + time_text(all_.facts.shape.interval), all_.as_it_was, *best);
  }

  void add_waiting() {
    constexpr double kJoinTimeout = 600;
    const bool waits = std::ranges::any_of(
        all_.answers, [](const Choice& answer) { return answer.expected.waited > 0; });
    if (!waits || all_.facts.repair.value <= kJoinTimeout) return;
    sentences_.push_back("A run that waits " + time_text(all_.facts.repair.value) +
                         " for a node needs --rdzv-conf join_timeout=" +
                         std::to_string(std::llround(2 * all_.facts.repair.value)) +
                         ", or it ends after 600 s.");
  }

  const Compared& all_;
  std::vector<std::string> sentences_;
};

}  // namespace

std::string time_text(double seconds) {
  constexpr double kMost = 1e11;  // So that the microseconds fit.
  const double microseconds = std::min(seconds, kMost) * 1e6;
  return took_text(std::chrono::microseconds(std::llround(microseconds)));
}

Result<Compared> compare(RunFacts facts, const WhatIf& given) {
  if (const auto why = objection(facts, given)) return usage(*why);
  Compared all{.given = given};
  all.modelled = expect(facts.times(), facts.shape, facts.rate(), facts.wall).goodput;
  if (given.mtbf) facts.node_mtbf = {*given.mtbf * facts.shape.nodes_max, 0};
  take(facts.node_loss_share, given.node_loss_share);
  take(facts.repair, given.repair);
  take(facts.checkpoint, given.checkpoint);
  all.length = given.length.value_or(facts.wall);
  all.mtbf = facts.node_mtbf.value / facts.shape.nodes_max;

  int nodes = facts.shape.nodes_max;
  for (const NodeNumbers& choice : given.nodes) nodes = std::max(nodes, choice.max);
  if (all.length * nodes / facts.node_mtbf.value > kFaultsMax) {
    return usage("that is more than " + std::to_string(kFaultsMax) +
                 " failures in a run: give --for less time");
  }
  const std::size_t choices = std::max<std::size_t>(given.nodes.size(), 1) *
                              std::max<std::size_t>(given.spare_nodes.size(), 1) *
                              std::max<std::size_t>(given.spares.size(), 1) *
                              std::max<std::size_t>(given.intervals.size(), 1);
  if (choices > kChoicesMax) {
    return usage("that is " + std::to_string(choices) + " choices, more than " +
                 std::to_string(kChoicesMax) + ": give shorter lists");
  }
  all.as_it_was = answer(facts, facts.shape, all.length);
  all.answers = answers(facts, given, all.length);
  const double work = power(all.answers.front()) * all.length;
  const auto set_time = [work](Choice& choice) {
    choice.takes = power(choice) > 0 ? work / power(choice) : 0;
  };
  set_time(all.as_it_was);
  std::ranges::for_each(all.answers, set_time);
  all.best_interval = best_interval(facts.times(), facts.shape, facts.rate());
  all.daly = daly_interval(facts.checkpoint.value, all.mtbf);
  all.facts = std::move(facts);
  all.sentences = Sentences(all).take();
  return all;
}

}  // namespace ddprun::launcher
