#include <catch2/catch.hpp>
#include <random>

#include "launcher/ctl/ctl_options.h"
#include "launcher/ctl/ras_report.h"
#include "tests/fuzz/ras_fuzz.h"

namespace ddprun::launcher {
namespace {

// As src/ras/client_support.cc of NCCL writes them.
std::string process(int rank) {
  const std::string r = std::to_string(rank);
  return "{\n \"rank\": " + r + ",\n \"host\": \"10.0.0." + r + "\",\n \"pid\": 470" + r +
         ",\n \"cuda_dev\": 0,\n \"nvml_dev\": " + r;
}
std::string alive(int rank, int all_reduces, const std::string& status = "", int error = 0) {
  return process(rank) +
         ",\n \"status\": {\n \"init_state\": 0,\n \"async_error\": " + std::to_string(error) +
         ",\n \"finalize_called\": false,\n \"destroy_flag\": false,\n" +
         " \"abort_flag\": " + (status.empty() ? "false" : status) +
         "\n},\n \"collective_counts\": {\n \"Broadcast\": 1,\n \"AllReduce\": " +
         std::to_string(all_reduces) + "\n}\n}";
}
std::string missing(int rank, const char* comma, bool unresponsive, bool dead) {
  return process(rank) + comma +
         "\n \"status\": {\n \"unresponsive\": " + (unresponsive ? "true" : "false") +
         ",\n \"considered_dead\": " + (dead ? "true" : "false") + "\n}\n}";
}
std::string report(const std::string& ranks, const std::string& missing = "") {
  return "{\n \"nccl_version\": \"2.28.9\",\n \"cuda_runtime_version\": 13000,\n"
         " \"communicators_count\": 1,\n \"communicators\": [\n {\n \"hash\": \"0xae94\",\n"
         " \"secondary_hash\": \"0x1:0x2\",\n \"size\": 4,\n \"ranks_count\": 3,\n"
         " \"missing_ranks_count\": 1,\n \"ranks\": [\n" +
         ranks + "\n],\n \"missing_ranks\": [\n" + missing +
         "\n]\n}\n],\n \"ras\": {\n \"collection_time_sec\": 0.001,\n \"timeouts_count\": "
         "0\n}\n}\n";
}
std::string shown(const std::string& json) {
  const auto understood = decode_ras(json);
  return understood ? ras_text(*understood) : "error: " + understood.error().context;
}
std::string all(std::initializer_list<std::string> ranks) {
  std::string text;
  for (const auto& rank : ranks) text += (text.empty() ? "" : ",\n") + rank;
  return text;
}

TEST_CASE("RAS: who is missing and who is behind is shown", "[ras]") {
  const std::string want =
      "NCCL 2.28.9, 1 communicator\n"
      "communicator 0xae94: 3 of 4 ranks answer\n"
      "  rank 3 (pid 4703 on 10.0.0.3, GPU 3) does not answer\n"
      "  AllReduce has been called 119 times by rank 2; 120 times by ranks 0-1\n";
  const std::string ranks = all({alive(0, 120), alive(1, 120), alive(2, 119)});
  CHECK(shown(report(ranks, missing(3, ",", true, false))) == want);
  CHECK(shown(report(ranks, missing(3, "", true, false))) == want);  // As 2.28.9 has it.
}

TEST_CASE("RAS: a communicator in order is one line", "[ras]") {
  const std::string ranks = all({alive(0, 7), alive(1, 7), alive(2, 7), alive(3, 7)});
  CHECK(shown(report(ranks)) ==
        "NCCL 2.28.9, 1 communicator\ncommunicator 0xae94: 4 of 4 ranks answer, all alike\n");
}

TEST_CASE("RAS: errors, aborts and the dead are said", "[ras]") {
  const std::string text =
      shown(report(all({alive(0, 7, "", 6), alive(2, 7, "true")}), missing(1, ",", true, true)));
  CHECK(text.find("rank 1 (pid 4701 on 10.0.0.1, GPU 1) is dead\n") != std::string::npos);
  CHECK(text.find("rank 0 (pid 4700 on 10.0.0.0, GPU 0) has error 6, a remote process or the "
                  "network failed\n") != std::string::npos);
  CHECK(text.find("rank 2 (pid 4702 on 10.0.0.2, GPU 2) aborts\n") != std::string::npos);
}

TEST_CASE("RAS: what is no report is refused, and names cannot command a terminal", "[ras]") {
  for (const char* bad : {"", "{}", "[]", "Error: out of memory", R"({"nccl_version": 3})"}) {
    CHECK(shown(bad).starts_with("error: no report of NCCL's RAS"));
  }
  std::string json = report(alive(0, 7), missing(1, ",", false, false));
  json.replace(json.find("10.0.0.1"), 8, "\\u001b[2J\\n");
  CHECK(shown(json).find("on ?[2J?, GPU 1) is not in it") != std::string::npos);
  CHECK(shown(report(alive(0, -1))).starts_with("error: "));
}

TEST_CASE("RAS: a large job's lines are limited", "[ras]") {
  std::string ranks;
  for (int r = 0; r < 1000; ++r) ranks += (r ? ",\n" : "") + alive(r, 7, "true");
  CHECK(shown(report(ranks)).find("and 968 more such lines") != std::string::npos);
}

TEST_CASE("RAS: damaged reports break no promise", "[fuzz]") {
  std::mt19937 random(7);
  const std::string whole = report(all({alive(0, 3), alive(1, 4)}), missing(2, "", true, false));
  const std::vector<std::string> letters = {
      "{",  "}",    "[",  "]",        "\"",           ",",   ":", "0", "-", "9", "a",
      "\n", "\x1b", "\\", "\xc2\x9b", "\xe2\x82\xac", "\xff"};
  for (int round = 0; round < 3000; ++round) {
    std::string text = whole;
    for (unsigned n = 1 + random() % 4; n > 0; --n) {
      const std::size_t at = random() % text.size();
      if (random() % 2) text.erase(at, random() % 9);
      if (at < text.size()) text.replace(at, 1, letters[random() % letters.size()]);
    }
    fuzz::fuzz_ras(reinterpret_cast<const std::uint8_t*>(text.data()), text.size());
  }
  SUCCEED("every promise of ras_fuzz.cc held");
}

CtlOptions options(std::vector<const char*> words) {
  words.insert(words.begin(), "ddprunctl");
  return std::get<CtlOptions>(parse_ctl(static_cast<int>(words.size()), words.data(), {}).value());
}

TEST_CASE("ddprunctl ras: needs no token, and reads its address and its patience", "[ras]") {
  CHECK(options({"ras"}).verb == CtlOptions::Verb::kRas);
  CHECK_FALSE(options({"ras"}).ras);
  const CtlOptions there = options({"ras", "--address", "[::1]:5", "--timeout", "0.5", "--json"});
  CHECK(to_string(*there.ras) == "[::1]:5");
  CHECK(there.ras_limit.count() == 501);
  CHECK(there.json);
  for (const auto& bad :
       std::vector<std::vector<const char*>>{{"ddprunctl", "ras", "--address", "h"},
                                             {"ddprunctl", "ras", "--timeout", "0"},
                                             {"ddprunctl", "ras", "x"}}) {
    CHECK_FALSE(parse_ctl(static_cast<int>(bad.size()), bad.data(), {}).has_value());
  }
}

}  // namespace
}  // namespace ddprun::launcher
