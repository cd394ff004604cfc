// The model of `ddprunctl whatif` where an answer is known, the facts of an account, and what is
// printed.

#include "launcher/whatif/what_if.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <numeric>

#include "launcher/ctl/ctl_text.h"
#include "launcher/whatif/comparison.h"
#include "launcher/whatif/run_facts.h"
#include "tests/fuzz/launcher/account_fuzz.h"

namespace ddprun::launcher {
namespace {

// Of a run that restarts: by Daly (2006), where failures have no memory and restarts fail, too.
double exact_goodput(double interval, double checkpoint, double restart, double mtbf) {
  return interval / (mtbf * std::exp(restart / mtbf) * std::expm1((interval + checkpoint) / mtbf));
}

TEST_CASE("What if: goodput is that of Daly's model for a run that restarts", "[whatif]") {
  for (const double checkpoint : {1.0, 60.0}) {
    for (const double mtbf : {600.0, 3'600.0, 21'600.0}) {
      const RunTimes times{.restart = 30, .checkpoint = checkpoint};
      const RunShape shape{.interval = daly_interval(checkpoint, mtbf)};
      const Expected expected = expect(times, shape, {.node_mtbf = mtbf}, 200 * mtbf, 100);
      INFO("checkpoint " << checkpoint << ", mtbf " << mtbf);
      CHECK(expected.goodput ==
            Approx(exact_goodput(shape.interval, checkpoint, 30, mtbf)).epsilon(0.005));
      CHECK(expected.goodput_10 < expected.goodput);
      CHECK(expected.goodput < expected.goodput_90);
    }
  }
}

TEST_CASE("What if: the best interval is Young's and Daly's", "[whatif]") {
  for (const double checkpoint : {1.0, 10.0, 60.0, 300.0}) {
    for (const double mtbf : {3'600.0, 21'600.0, 604'800.0}) {
      for (const int nodes : {1, 16}) {
        const RunTimes times{.restart = 30, .checkpoint = checkpoint};
        const RunShape shape{.nodes_min = nodes, .nodes_max = nodes};
        const auto best = best_interval(times, shape, {.node_mtbf = mtbf * nodes});
        INFO("checkpoint " << checkpoint << ", mtbf " << mtbf << ", nodes " << nodes);
        REQUIRE(best);
        CHECK(*best == Approx(daly_interval(checkpoint, mtbf)).epsilon(0.03));
        // Young's formula is the limit of rare failures.
        if (checkpoint / mtbf < 0.001) {
          CHECK(*best == Approx(std::sqrt(2 * checkpoint * mtbf)).epsilon(0.03));
        }
      }
    }
  }
}

TEST_CASE("What if: there is no best interval where checkpoints are not needed", "[whatif]") {
  const OutageRate rate{.node_mtbf = 3'600};
  CHECK_FALSE(best_interval({.restart = 30, .checkpoint = 0}, {}, rate));
  const RunTimes elastic{
      .keeps_workers = true, .change = 1, .growth = 1, .refill = 20, .checkpoint = 10};
  CHECK_FALSE(best_interval(elastic, {.node_ranks = 8}, rate));
}

TEST_CASE("What if: work since the last checkpoint is lost, and a checkpoint takes time",
          "[whatif]") {
  const RunTimes times{.start = 10, .restart = 20, .checkpoint = 5};
  const RunShape shape{.node_ranks = 2, .interval = 100};
  // A checkpoint from 110 to 115, a fault after 50 s of work, 20 s of restart, 65 s of work.
  const Played played = play(times, shape, {{.at = 165}}, 250);
  CHECK(played.kept == 2 * (100 + 65));
  CHECK(played.lost == 2 * 50);
  CHECK(played.checkpoint == 2 * 5);
  CHECK(played.paused == 2 * (10 + 20));
  CHECK(played.waited == 0);
  CHECK(played.in_run() == 2 * 250);
  // A fault in a checkpoint loses what it was to save.
  CHECK(play(times, shape, {{.at = 114}}, 250).lost == 2 * 100);
}

TEST_CASE("What if: an elastic job loses its work only with its last worker", "[whatif]") {
  const RunTimes times{.keeps_workers = true, .change = 1, .growth = 2, .refill = 10};
  Played played = play(times, {.node_ranks = 2}, {{.at = 50}}, 100);
  CHECK(played.lost == 0);
  CHECK(played.kept == 100 + 100 - (2 * 1 + 9 + 2 * 2));
  CHECK(played.in_run() == 200);
  played = play(times, {.node_ranks = 2}, {{.at = 50}, {.at = 55}}, 100);
  CHECK(played.lost == 2 * 50 + 4);
  // With a spare the seat is not empty; the pause is that of one that gets the state.
  played = play(times, {.node_ranks = 2, .spares = 1}, {{.at = 50}}, 100);
  CHECK(played.kept == 2 * 98);
}

TEST_CASE("What if: a spare node takes the place of a lost one, which comes back as the spare",
          "[whatif]") {
  const RunTimes times{.restart = 20, .notice = 1, .repair = 300};
  RunShape shape{.nodes_min = 2, .nodes_max = 2, .interval = 100};
  const std::vector<Outage> faults = {{.at = 100, .takes_node = true},
                                      {.at = 600, .node = 1, .takes_node = true}};
  const Played without = play(times, shape, faults, 1000);
  CHECK(without.waited == 2 * (300 - 21 + 21));  // One node waits for the other.
  shape.spare_nodes = 1;
  const Played with = play(times, shape, faults, 1000);
  CHECK(with.waited == 0);
  CHECK(with.kept == 2 * (1000 - 2 * 21) - with.lost);
}

TEST_CASE("What if: a worker that starts on a node that is lost takes no seat", "[whatif]") {
  const RunTimes times{
      .keeps_workers = true, .change = 1, .growth = 1, .refill = 10, .repair = 1000};
  const RunShape shape{.nodes_min = 1, .nodes_max = 2};
  std::vector<Stretch> stretches;
  play(times, shape, {{.at = 50}, {.at = 55}}, 100, &stretches);
  CHECK(stretches.back().ranks == 2);
  stretches.clear();
  play(times, shape, {{.at = 50}, {.at = 55, .takes_node = true}}, 100, &stretches);
  CHECK(stretches.back().ranks == 1);
}

TEST_CASE("What if: faults of a node do not depend on how many nodes there are", "[whatif]") {
  const OutageRate rate{.node_mtbf = 100, .node_loss_share = 0.25};
  const auto few = random_outages(rate, 2, 10'000, 7);
  auto many = random_outages(rate, 10, 10'000, 7);
  std::erase_if(many, [](const Outage& fault) { return fault.node >= 2; });
  REQUIRE(few.size() == many.size());
  for (std::size_t i = 0; i < few.size(); ++i) CHECK(few[i].at == many[i].at);
  CHECK(random_outages(rate, 2, 10'000, 8)[0].at != few[0].at);
  double lost = 0, count = 0;
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    for (const Outage& fault : random_outages(rate, 2, 10'000, seed)) {
      ++count, lost += fault.takes_node ? 1 : 0;
    }
  }
  CHECK(count / 50 == Approx(200).epsilon(0.03));
  CHECK(lost / count == Approx(0.25).epsilon(0.03));
}

// Four ranks on two nodes, in each of which a worker failed once: 20 s and 30 s until all were
// back.
const std::string kPlain = R"({"schema":"ddprun.report/1",
  "run":{"id":"job7","wall_s":3600,"world_size":4,"nodes":2,"min_nodes":2,"max_nodes":2},
  "incidents":[{"at_s":1000,"kind":"worker_failed","back_s":20,"slots":[1]},
               {"at_s":2000,"kind":"worker_failed","back_s":30,"slots":[2]}],
  "slots":[)" + [] {
  std::string slot =
      R"({"node":0,"steps":3200,"checkpoints":10,"parts_s":{"startup":40,
                                 "forward":1500,"backward":1500,"lost":200,"checkpoint":300,
                                 "restart":50,"end":10}})";
  return slot + "," + slot + "," + slot + "," + slot;
}() + "]}";

TEST_CASE("What if: the facts of a run that restarted", "[whatif]") {
  const RunFacts facts = read_run_facts(kPlain).value();
  CHECK(facts.run_id == "job7");
  CHECK_FALSE(facts.keeps_workers);
  CHECK(facts.goodput == Approx(3000.0 / 3600));
  CHECK(facts.shape == RunShape{.nodes_min = 2, .nodes_max = 2, .node_ranks = 2, .interval = 320});
  CHECK(facts.start == 50);
  CHECK(facts.step.value == 1);
  CHECK(facts.restart.value == 25);
  CHECK(facts.restart.cases == 2);
  CHECK(facts.checkpoint.value == 30);
  CHECK(facts.checkpoint.cases == 40);
  CHECK(facts.node_mtbf.value == 3600);
  CHECK(facts.node_loss_share.value == 0);
  CHECK(facts.repair.cases == 0);
}

TEST_CASE("What if: checkpoints that were not counted are judged by what failures undid",
          "[whatif]") {
  std::string text = kPlain;
  for (std::size_t at; (at = text.find("\"checkpoints\":10,")) != std::string::npos;) {
    text.erase(at, 17);
  }
  const RunFacts facts = read_run_facts(text).value();
  CHECK(facts.shape.interval == 2 * 200.0 / 2);  // 200 s a rank in two failures.
  CHECK(facts.checkpoint.value == Approx(300.0 / (3200.0 / 200)));
}

// Two ranks on one node: rank 1 dies after 100 s, and is there again after 115 s.
constexpr const char* kElastic = R"({"schema":"ddprun.report/1",
  "run":{"id":"e","wall_s":300,"world_size":2,"nodes":1,"changes":2},
  "incidents":[{"at_s":100,"kind":"worker_failed","back_s":17,"slots":[1]}],
  "slots":[{"steps":900,"parts_s":{"startup":5,"steps":290,"lost":0.5,"restart":3.5}},
           {"steps":900,"parts_s":{"startup":5,"steps":278,"restart":17}}],
  "spans":[{"from_s":99.5,"to_s":100,"part":"lost","slots":[[0,0]]},
           {"from_s":100,"to_s":101.5,"part":"restart","slots":[[0,0]]},
           {"from_s":100,"to_s":117,"part":"restart","slots":[[1,1]]},
           {"from_s":115,"to_s":117,"part":"restart","slots":[[0,0]]}]})";

TEST_CASE("What if: the facts of an elastic job", "[whatif]") {
  const RunFacts facts = read_run_facts(kElastic).value();
  CHECK(facts.keeps_workers);
  CHECK(facts.change.value == 2);
  CHECK(facts.growth.value == 2);
  CHECK(facts.refill.value == 17);
  CHECK(facts.shape.spares == 0);
  CHECK(facts.checkpoint.cases == 0);
  CHECK(std::isinf(facts.shape.interval));
}

TEST_CASE("What if: a lost node's replacement is measured", "[whatif]") {
  const RunFacts facts = read_run_facts(R"({"schema":"ddprun.report/1",
    "run":{"id":"n","wall_s":2000,"world_size":2,"nodes":3,"max_nodes":2},
    "incidents":[{"at_s":500,"kind":"node_lost","slots":[1]}],
    "slots":[{"parts_s":{"forward":1900}},{"parts_s":{"forward":500}},{"parts_s":{"forward":900}}],
    "spans":[{"from_s":0,"to_s":700,"part":"gone","slots":[[2,2]]}]})")
                             .value();
  CHECK(facts.repair.value == 200);
  CHECK(facts.repair.cases == 1);
  CHECK(facts.node_loss_share.value == 1);
  CHECK(facts.shape.nodes_max == 2);
  CHECK(facts.shape.node_ranks == 1);
}

TEST_CASE("What if: what is no account is refused, with the reason", "[whatif]") {
  CHECK(read_run_facts("").error().context.starts_with("is no account of a run"));
  CHECK(read_run_facts("{}").error().context.starts_with("is no account"));
  CHECK(read_run_facts(R"({"schema":"ddprun.report/1","run":{}})").error().context ==
        "is the account of a run without length");
  CHECK(read_run_facts(R"({"account":)" + kPlain + "}").has_value());
}

Result<Compared> compared(const WhatIf& given, std::string_view account = kPlain) {
  return compare(read_run_facts(account).value(), given);
}

TEST_CASE("What if: choices that make no sense are refused with a way out", "[whatif]") {
  CHECK(compared({.spares = {1}}).error().context ==
        "--spares: workers of run 'job7' do not keep their processes, so spare workers have no "
        "effect; --spare-nodes has");
  CHECK(compared({.mtbf = 1, .length = 1e6}).error().context ==
        "that is more than 20000 failures in a run: give --for less time");
  std::vector<int> many(101);
  std::iota(many.begin(), many.end(), 0);
  CHECK(compared({.spare_nodes = many}).error().context ==
        "that is 101 choices, more than 100: give shorter lists");
}

TEST_CASE("What if: where no choice gets anything done, that is said, and why", "[whatif]") {
  const WhatIf hopeless{.spare_nodes = {0, 1},
                        .intervals = {std::numeric_limits<double>::infinity()},
                        .mtbf = 10.0,
                        .node_loss_share = 1.0,
                        .repair = 1.0,
                        .length = 24 * 3'600.0};
  const Compared all = compared(hopeless).value();
  REQUIRE(all.sentences.size() == 1);
  INFO(all.sentences[0]);
  CHECK(all.sentences[0].starts_with("No choice gets anything done (goodput 0."));
  CHECK(all.sentences[0].find(" at most): a failure comes each 10.0 s; ") != std::string::npos);

  // One that gets something done beside one that does not: no time is saved of nothing.
  WhatIf waits = hopeless;
  waits.intervals = {std::nullopt}, waits.mtbf = 120, waits.checkpoint = 0.01;
  waits.spare_nodes = {0};
  const Compared one = compared(waits).value();
  INFO(one.sentences.back());
  CHECK(one.answers[0].expected.goodput > 0.01);
  CHECK(std::ranges::any_of(one.sentences, [](const std::string& text) {
    return text.find("would raise the goodput from") != std::string::npos ||
           text.find("would save") != std::string::npos;
  }));
}

TEST_CASE("What if: the answer in sentences", "[whatif]") {
  const Compared all = compared({.spare_nodes = {0, 1},
                                 .intervals = {std::nullopt},
                                 .mtbf = 6 * 3'600.0,
                                 .node_loss_share = 0.5,
                                 .length = 72 * 3'600.0})
                           .value();
  CHECK(all.answers.size() == 2);
  CHECK(all.answers[0].takes > all.answers[1].takes);
  REQUIRE(all.sentences.size() == 4);
  CHECK(all.sentences[0].starts_with("One spare node would save "));
  CHECK(all.sentences[1].starts_with("The best interval of checkpoints is "));
  CHECK(all.sentences[2].starts_with("That instead of 5 min 20 s would save "));
  CHECK(all.sentences[3] ==
        "A run that waits 30 min for a node needs --rdzv-conf join_timeout=3600, or it ends after "
        "600 s.");
  const std::string text = whatif_text(all);
  CHECK(text.find("another node is there in") != std::string::npos);
  CHECK(text.find("assumed: --repair sets it") != std::string::npos);
  CHECK(text.find("measured, 2 times") != std::string::npos);
  CHECK(whatif_json(all).starts_with("{\n  \"schema\": \"ddprun.whatif/1\""));
}

TEST_CASE("What if: the model comes close to the run as it was", "[whatif]") {
  // Of a run whose account the model itself has made: 2 faults in an hour, as in kPlain.
  const Compared all = compared({}).value();
  CHECK(all.answers.size() == 1);
  CHECK(all.answers[0].takes == Approx(3600));
  CHECK(all.modelled == Approx(all.facts.goodput).epsilon(0.03));
}

TEST_CASE("What if: an account of any bytes does no harm", "[whatif]") {
  for (const std::string& text : {kPlain, std::string(kElastic)}) {
    for (std::size_t cut = 0; cut < text.size(); cut += 7) {
      std::string broken = text;
      broken[cut] = '9';
      fuzz::fuzz_account(reinterpret_cast<const std::uint8_t*>(broken.data()), broken.size());
      fuzz::fuzz_account(reinterpret_cast<const std::uint8_t*>(text.data()), cut);
    }
  }
}

}  // namespace
}  // namespace ddprun::launcher
