#include <catch2/catch.hpp>
#include <random>

#include "common/history/run_record.h"
#include "launcher/watch/history_text.h"
#include "tests/fuzz/launcher/history_fuzz.h"

namespace ddprun::launcher {
namespace {

using Catch::Matchers::Contains;

constexpr std::int64_t kNoon = 1'795'435'200;  // 2026-11-23 12:00 UTC.
constexpr LocalTime kTime{.now = kNoon, .ahead = 0};

RunRecord failed() {
  RunRecord record{.run_id = "job9",
                   .command = "ddprun --nproc-per-node 8 ./trainer",
                   .host = "node7",
                   .started = kNoon - 86'400 - 9'000,
                   .max_restarts = 2,
                   .launcher = {4711, 99, "boot"},
                   .folder = "/tmp/x"};
  record.took_s = 81.7;
  record.exit_code = 1;
  record.world_size = 8, record.nodes = 1, record.restarts = 2;
  record.verdict = R"({"kind":"worker_failed","text":"rank 1 on node7 failed first\nand so on",
    "first_cause":{"rank":1,"host":"node7","last_words":"Traceback\nValueError: loss is NaN\n"},
    "ledger":{"parts_s":{"forward":60,"lost":40,"gone":500}}})";
  record.tails = {{1, "stderr", "Traceback\nValueError: loss is NaN\n", 34},
                  {0, "stdout", "step 1\n", 7}};
  return record;
}

PastRun past(RunRecord record, RunState state = RunState::kEnded) {
  return {"20261122T093000Z-0a1b2c3d.json", std::move(record), state};
}

TEST_CASE("History: a record is read as it was written", "[history]") {
  const RunRecord record = failed();
  const auto again = decode_record(encode(record));
  REQUIRE(again.has_value());
  CHECK(encode(*again) == encode(record));
  CHECK(again->tails.size() == 2);
  CHECK(again->tails[0].end == 34);
  RunRecord begun = record;
  begun.took_s.reset();
  CHECK_FALSE(decode_record(encode(begun))->took_s.has_value());
  CHECK(decode_record(encode(begun))->launcher == record.launcher);
}

TEST_CASE("History: what is nested too deep is left out of a record", "[history]") {
  constexpr std::size_t kLevels = 400'000;
  const std::string deep = std::string(kLevels, '[') + std::string(kLevels, ']');
  const std::string record = R"({"schema":"ddprun.history/1","run_id":"job9","took_s":1,)"
                             R"("verdict":{"kind":"success","deep":)" +
                             deep + R"(},"account":{"x":)" + deep + "}}";
  const auto one = decode_record(record);
  REQUIRE(one.has_value());
  CHECK(one->run_id == "job9");
  CHECK_THAT(one->verdict, Contains("success"));
  CHECK(encode(*one).size() < 10'000);
  const auto runs = decode_history(R"({"runs":[)" + record + "]}");
  REQUIRE(runs.has_value());
  CHECK_THAT(history_text(*runs, kTime, ScreenStyle()), Contains("job9"));
}

TEST_CASE("History: any bytes break no promise", "[history][fuzz]") {
  std::mt19937 random(9);
  const std::string record = encode(failed()), history = R"({"runs":[)" + record + "]}";
  for (int turn = 0; turn < 2'000; ++turn) {
    std::string text = turn % 2 == 0 ? record : history;
    for (unsigned n = 1 + random() % 3; n > 0; --n) {
      text[random() % text.size()] = static_cast<char>(random());
    }
    fuzz::fuzz_history(reinterpret_cast<const std::uint8_t*>(text.data()), text.size());
  }
  SUCCEED("nothing aborted");
}

TEST_CASE("History: a terminal obeys no word of a verdict", "[history]") {
  RunRecord record = failed();
  record.verdict = R"({"kind":"\u001b]0;x\u0007"})";
  CHECK(past_run_text(past(record), kTime, ScreenStyle()).find('\x1b') == std::string::npos);
}

TEST_CASE("History: what is no record is none, and wrong types are nothing", "[history]") {
  for (const char* bad : {"", "[]", "{}", "{", R"({"schema":"other"})", R"({"schema":7})"}) {
    CHECK(decode_record(bad).has_error());
  }
  const auto odd = decode_record(
      R"({"schema":"ddprun.history/1","run_id":7,"started":"x","took_s":1,"exit_code":"no",
          "verdict":[],"tails":[7,{"rank":"x","text":9}]})");
  REQUIRE(odd.has_value());
  CHECK(odd->run_id.empty());
  CHECK(odd->exit_code == 0);
  CHECK(odd->tails.size() == 1);
  const std::string text = encode(failed());
  for (std::size_t cut = 0; cut + 2 < text.size(); cut += 7) {
    CHECK(decode_record(text.substr(0, cut)).has_error());
  }
}

TEST_CASE("History: bytes that are no UTF-8 do not stop a record", "[history]") {
  RunRecord record = failed();
  record.command = "ddprun \xff\xfe";
  record.tails[0].text = "\xc3";
  CHECK(decode_record(encode(record)).has_value());
}

TEST_CASE("History: endings of several agents add up, one speaks for the run", "[history]") {
  RunRecord record;
  CHECK(add_ending(record, R"({"world_size":4,"nodes":2,"restarts":1,"verdict":{"kind":"success"},)"
                           R"("tails":[{"rank":0,"stream":"stdout","text":"a\n","end":2}]})"
                           "\n{\"spans\":[]}"));
  CHECK(add_ending(record, R"({"tails":[{"rank":2,"stream":"stdout","text":"b\n","end":2}]})"));
  CHECK_FALSE(add_ending(record, ""));
  CHECK(record.world_size == 4);
  CHECK(record.restarts == 1);
  CHECK_THAT(record.verdict, Contains("success"));
  CHECK(record.tails.size() == 2);
  CHECK(record.account == "{\"spans\":[]}");
}

TEST_CASE("History: an account is passed on as it is, if it is whole", "[history]") {
  RunRecord record = failed();
  REQUIRE(add_ending(record, "{}\n{\"spans\":[1,2]}"));
  CHECK(decode_record(encode(record))->account == "{\"spans\":[1,2]}");
  CHECK(decode_record(encode_plain(record))->account == "{\"spans\":[1,2]}");
  for (const char* torn : {"{}", "{}\n", "{}\n{\"spans\":[1", "{}\n[1]", "{}\n{\"\xc3\xa4\":1}"}) {
    RunRecord without = failed();
    CHECK(add_ending(without, torn));
    CHECK(decode_record(encode(without))->account.empty());
  }
  record.account = "{\"spans\":";  // However it came about.
  CHECK(decode_record(encode(record)).has_value());
}

TEST_CASE("History: a record that is too long loses beginnings of tails, the longest first",
          "[history]") {
  RunRecord record = failed();
  record.tails = {{0, "stdout", std::string(100'000, 'a') + "the end", 0},
                  {1, "stdout", "short", 0}};
  const std::string text = encode_within(record, 20'000);
  CHECK(text.size() <= 20'000);
  const auto kept = decode_record(text);
  CHECK(kept->tails[0].text.ends_with("the end"));
  CHECK(kept->tails[1].text == "short");
  CHECK(decode_record(encode_within(record, 1'500))->verdict.size() > 100);
  CHECK(encode_within(record, 700).size() <= 700);
}

TEST_CASE("History: days are called today and yesterday where the reader is", "[history]") {
  CHECK(when_text(kNoon - 60, kTime) == "today 11:59");
  CHECK(when_text(kNoon - 43'201, kTime) == "yesterday 23:59");
  CHECK(when_text(kNoon - 2 * 86'400, kTime) == "2026-11-21 12:00");
  CHECK(when_text(kNoon - 43'201, {.now = kNoon, .ahead = 3600}) == "today 00:59");
  CHECK(when_text(-5, {}) == "today 00:00");
}

TEST_CASE("History: a run is found by its id, the newest first, or by its number", "[history]") {
  RunRecord other;
  other.run_id = "2";
  const std::vector<PastRun> runs = {past(failed()), past(other), past(failed())};
  CHECK(find_run(runs, "job9") == 0);
  CHECK(find_run(runs, "3") == 2);
  CHECK(find_run(runs, "2") == 1);  // An id goes before a number.
  for (const char* none : {"", "0", "4", "1x", "job", "-1"}) CHECK_FALSE(find_run(runs, none));
}

TEST_CASE("History: the table says how each run ended", "[history]") {
  RunRecord well = failed();
  well.run_id = "job7";
  well.exit_code = 0;
  well.verdict = R"({"kind":"success","text":""})";
  RunRecord gone = failed();
  gone.took_s.reset();
  const std::vector<PastRun> runs = {past(gone, RunState::kRunning), past(well), past(failed()),
                                     past(gone, RunState::kVanished)};
  CHECK(history_text(runs, kTime, {}) ==
        "   NO  RUN   STARTED          TOOK         RANKS  RESTARTS  GOODPUT  ENDED\n"
        "●  1   job9  yesterday 09:30  26 h 30 min  -      -         -        runs\n"
        "✓  2   job7  yesterday 09:30  81.7 s       8      2 of 2    -        finished\n"
        "✗  3   job9  yesterday 09:30  81.7 s       8      2 of 2    60.0 %   rank 1 on node7: "
        "ValueError: loss is NaN\n"
        "✗  4   job9  yesterday 09:30  -            -      -         -        no end is known: "
        "ddprun was killed, or the machine went down\n"
        "\nmore: ddprunctl history RUN, logs RUN, report RUN --html FILE\n"
        "RUN is an id, or a number of this list\n");
  CHECK_THAT(history_text({}, kTime, {}), Contains("there are no records of your runs"));
  const std::string narrow =
      history_text(runs, kTime, {.columns = 60, .colours = false, .utf8 = false});
  for (std::size_t at = 0; at < narrow.find("\n\n");) {
    const std::size_t end = narrow.find('\n', at);
    CHECK(end - at <= 60);
    at = end + 1;
  }
}

TEST_CASE("History: a signal is on record before the end of the run", "[history]") {
  RunRecord record = failed();
  record.took_s.reset();
  record.verdict = plain_verdict("interrupted", "job9", 143, "interrupted by SIGTERM");
  const auto kept = decode_record(encode(record));
  REQUIRE(kept.has_value());
  CHECK_FALSE(kept->took_s);
  const std::string running = history_text({past(*kept, RunState::kRunning)}, kTime, {});
  CHECK_THAT(running, Contains("is stopping: interrupted by SIGTERM"));
  const std::string cut = history_text({past(*kept, RunState::kVanished)}, kTime, {});
  CHECK_THAT(cut, Contains("interrupted by SIGTERM, and killed before its workers had ended"));
  CHECK_THAT(cut, Contains("!  1"));
}

TEST_CASE("History: a run that was stopped says by which signal", "[history]") {
  RunRecord record = failed();
  record.exit_code = 130;
  record.verdict = R"({"kind":"interrupted","text":""})";
  CHECK_THAT(history_text({past(record)}, kTime, {}),
             Contains("!  1   job9") && Contains("stopped by SIGINT\n"));
  record.exit_code = 3;
  CHECK_THAT(history_text({past(record)}, kTime, {}), Contains("exit code 3\n"));
  record.verdict = R"({"kind":"worker_failed","text":"rank 1 (local rank 1, pid 7) on b failed",
      "first_cause":{"rank":1,"host":"b","last_words":"","signal":9,"signal_name":"SIGKILL"}})";
  CHECK_THAT(history_text({past(record)}, kTime, {}), Contains("rank 1 on b: killed by SIGKILL\n"));
}

TEST_CASE("History: one run has its command, its verdict, and where its logs are", "[history]") {
  const std::string text = past_run_text(past(failed()), kTime, {});
  CHECK_THAT(text, Contains("command   ddprun --nproc-per-node 8 ./trainer\n"));
  CHECK_THAT(text, Contains("ranks     8 on 1 node\nrestarts  2 of 2\n"));
  CHECK_THAT(text, Contains("goodput   60.0 %"));
  CHECK_THAT(text, Contains("  rank 1 on node7 failed first\n  and so on\n"));
  CHECK_THAT(text, Contains("ddprunctl logs job9"));
}

TEST_CASE("History: hints can be pasted, whatever the run is called", "[history]") {
  RunRecord record = failed();
  record.run_id = "a b;touch x";
  record.account = "{}";
  const std::string text = past_run_text(past(record), kTime, {});
  CHECK_THAT(text, Contains("ddprunctl logs 'a b;touch x'\n"));
  CHECK_THAT(text, Contains("ddprunctl report 'a b;touch x' --html"));
}

TEST_CASE("History: what a daemon keeps is read, and has its events", "[history]") {
  RunRecord record = failed();
  record.events = {{1.5, false, "node a joined"}, {61, true, "node b is \x1b[2Jlost"}};
  record.account = R"({"schema":"ddprun.report/1","run":{}})";
  const auto again = decode_record(encode_plain(record));
  REQUIRE(again.has_value());
  CHECK(again->events.size() == 2);
  CHECK(again->events[1].is_trouble);
  CHECK_THAT(again->account, Contains("ddprun.report/1"));
  CHECK(decode_record(encode_within(record, encode(record).size() - 1))->account.empty());
  const auto runs = decode_history("{\"runs\":[" + encode_plain(record) + "]}");
  REQUIRE(runs.has_value());
  const std::string text = past_run_text(runs->at(0), kTime, {}, KeptBy::kDaemon);
  CHECK_THAT(text, Contains("  1.5 s  node a joined\n") && Contains("node b is ?[2Jlost"));
  CHECK_THAT(text, Contains("ddprunctl report job9") && !Contains("ddprunctl logs"));
  CHECK_THAT(history_text({}, kTime, {}, KeptBy::kDaemon),
             Contains("this daemon has no record of an ended run"));
  for (const char* bad : {"", "[]", "{}", R"({"runs":7})", R"({"runs":[{}]})"}) {
    CHECK(decode_history(bad).has_error());
  }
  CHECK(utc_text(kNoon) == "2026-11-23T12:00:00Z");
}

TEST_CASE("History: nothing of a record is obeyed by the terminal", "[history]") {
  RunRecord record = failed();
  record.run_id = "\x1b]0;title\x07";
  record.command = "x\n\x1b[2J";
  record.verdict = "{\"kind\":\"worker_failed\",\"text\":\"\\u001b[2Jbad\\nline\\u009b2J\"}";
  for (const std::string& text :
       {history_text({past(record)}, kTime, {}), past_run_text(past(record), kTime, {})}) {
    CHECK(text.find('\x1b') == std::string::npos);
    CHECK(text.find('\x07') == std::string::npos);
    CHECK(text.find("\xc2\x9b") == std::string::npos);
    CHECK(text.find("x\n") == std::string::npos);  // No line of its own.
  }
}

TEST_CASE("History: logs have each line's rank, and one stream", "[history]") {
  const RunRecord record = failed();
  CHECK(tails_text(record, -1, true) == "[1]: Traceback\n[1]: ValueError: loss is NaN\n");
  CHECK(tails_text(record, 0, false) == "[0]: step 1\n");
  CHECK(tails_text(record, 1, false).empty());
}

TEST_CASE("History: JSON has all records and what became of them", "[history]") {
  const std::string text = history_json({past(failed(), RunState::kVanished)});
  CHECK_THAT(text, Contains("\"state\": \"vanished\""));
  CHECK_THAT(text, Contains("\"first_cause\""));
}

}  // namespace
}  // namespace ddprun::launcher
