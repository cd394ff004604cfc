#include "agent/verdict/verdict_picture.h"

#include <catch2/catch.hpp>
#include <csignal>

namespace ddprun::agent {
namespace {

using namespace std::chrono_literals;
using rendezvous::Verdict;

Verdict failed() {
  Verdict verdict{.kind = Verdict::Kind::kWorkerFailed, .exit_code = 1, .text = "a paragraph"};
  verdict.first_cause =
      WorkerDeath{.rank = 1,
                  .host = "node7",
                  .exit_code = 1,
                  .detail = "RuntimeError: \x1b[2Jloss is NaN\n  at trainer.cc:212",
                  .fault = Fault::kException,
                  .steps = 1220};
  for (const int rank : {0, 2, 3, 4}) verdict.victims.push_back({.rank = rank});
  verdict.advice = "Look at the program and its data, not at the machine.";
  LedgerTotals ledger{.places = 5, .wall = 81s};
  ledger.parts[TimePart::kForward] = 60s;
  ledger.parts[TimePart::kLost] = 40s;
  verdict.ledger = ledger;
  return verdict;
}

TEST_CASE("Verdict picture: one fact a line, and no escape of a worker") {
  CHECK(verdict_picture(failed(), "job9", {.columns = 100, .colour = false}) ==
        " ✗ rank 1 on node7 failed first: exited with 1, after 81.0 s, at step 1,220\n"
        " │ RuntimeError: loss is NaN\n"
        " │   at trainer.cc:212\n"
        " ├ victims   ranks 0, 2-4\n"
        " ├ time      goodput 60.0 %, lost work 40.0 %\n"
        " ├ try       Look at the program and its data, not at the machine.\n"
        " └ ends with 1\n");
}

std::size_t columns_of(const std::string& line) {
  std::size_t columns = 0;
  for (const char c : line) columns += (c & '\xc0') != '\x80' ? 1 : 0;
  return columns;
}

TEST_CASE("Verdict picture: no line is wider than the terminal, whatever it holds") {
  Verdict verdict = failed();
  verdict.first_cause->host = std::string(60, 'h');
  verdict.first_cause->detail = std::string(500, 'x') + "\n" + std::string(300, '\xe4');
  verdict.first_cause->evidence = "kernel: " + std::string(200, 'e');
  for (int i = 0; i < 64; ++i) verdict.victims.push_back({.rank = 2 * i});
  for (const int columns : {40, 80, 120, 200}) {
    const std::string text = verdict_picture(verdict, "r", {.columns = columns, .colour = false});
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t end = text.find('\n', at);
      CHECK(columns_of(text.substr(at, end - at)) <= static_cast<std::size_t>(columns));
      at = end + 1;
    }
  }
}

TEST_CASE("Verdict picture: long last words are cut, those on the screen are referred to") {
  Verdict verdict = failed();
  verdict.first_cause->detail.clear();
  for (int i = 0; i < 40; ++i) verdict.first_cause->detail += "line " + std::to_string(i) + "\n";
  CHECK_THAT(verdict_picture(verdict, "r", {.colour = false}),
             Catch::Matchers::Contains(" │ line 11\n │ ... 28 more lines\n"));
  CHECK_THAT(verdict_picture(verdict, "r", {.colour = false, .output_shown = true}),
             Catch::Matchers::Contains(" │ its last words are above\n ├ victims"));
}

TEST_CASE("Verdict picture: a line of last words that is cut says so") {
  Verdict verdict = failed();
  verdict.first_cause->detail = std::string(37, 'x') + "\n" + std::string(38, 'y');
  CHECK_THAT(verdict_picture(verdict, "r", {.columns = 40, .colour = false}),
             Catch::Matchers::Contains(" │ " + std::string(37, 'x') + "\n │ " +
                                       std::string(36, 'y') + "…\n"));
}

TEST_CASE("Verdict picture: colours are reset, and other verdicts have their own mark") {
  const std::string text = verdict_picture(failed(), "r", {});
  CHECK_THAT(text, Catch::Matchers::StartsWith(" \x1b[31m✗\x1b[0m \x1b[1mrank 1"));
  Verdict lost{.kind = Verdict::Kind::kNodeLost, .exit_code = 3, .text = "node6 is lost"};
  CHECK(verdict_picture(lost, "r", {.colour = false}) == " ✗ node6 is lost\n └ ends with 3\n");
  Verdict done{.kind = Verdict::Kind::kSuccess, .text = "", .ledger = LedgerTotals{.wall = 8040s}};
  CHECK(verdict_picture(done, "job7", {.colour = false}) == " ✓ job7 finished after 2 h 14 min\n");
  CHECK(verdict_picture(done, "none", {.colour = false}) == " ✓ finished after 2 h 14 min\n");
}

TEST_CASE("Verdict picture: a run that a person has stopped did not fail") {
  CHECK(stopped_picture({.signal = SIGINT, .after = 182s, .step = 1281}, {.colour = false}) ==
        " ! stopped by Ctrl-C after 3 min 2 s, at step 1,281\n");
  CHECK(stopped_picture({.signal = SIGTERM, .why = "the time limit is over", .after = 4s},
                        {.columns = 100}) ==
        " \x1b[33m!\x1b[0m \x1b[1mstopped by SIGTERM after 4.0 s: the time limit is over\x1b[0m\n");
}

TEST_CASE("Verdict picture: what the rounds before show is said as in the paragraph") {
  Verdict verdict = failed();
  verdict.restarts = "2 of 2 were used";
  verdict.again = "It was the same rank with the same error each time.";
  CHECK_THAT(
      verdict_picture(verdict, "r", {.columns = 100, .colour = false}),
      Catch::Matchers::Contains(" ├ again     It was the same rank with the same error each time.\n"
                                " ├ restarts  2 of 2 were used, none is left\n"));
}

}  // namespace
}  // namespace ddprun::agent
