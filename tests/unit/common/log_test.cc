#include "common/system/log.h"

#include <unistd.h>

#include <array>
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "common/system/descriptors.h"

namespace ddprun::log {
namespace {

// What standard error gets while this lives.
class StandardError {
 public:
  StandardError() : former_(::dup(2)) {
    std::array<int, 2> ends{};
    REQUIRE(::pipe(ends.data()) == 0);
    read_.reset(ends[0]);
    ::dup2(ends[1], 2);
    ::close(ends[1]);
  }
  ~StandardError() { ::dup2(former_.get(), 2); }

  std::string text() const {
    ::dup2(former_.get(), 2);  // The pipe's last writing end.
    std::array<char, 4096> bytes{};
    const ssize_t size = ::read(read_.get(), bytes.data(), bytes.size());
    return {bytes.data(), static_cast<std::size_t>(size)};
  }

 private:
  UniqueFd former_, read_;
};

TEST_CASE("Log: in text a line is its words", "[log]") {
  const StandardError err;
  start("prog", Level::kInfo);
  debug("unheard");
  info("one", {.run = "x"});
  warning("two");
  error("three {}");
  CHECK(err.text() == "prog: one\nprog: warning: two\nprog: error: three {}\n");
}

TEST_CASE("Log: nothing that a text quotes is obeyed, or reads as a line of ddprun's own",
          "[log]") {
  const StandardError err;
  start("ddprun-rendezvous", Level::kInfo);
  info("run a\x1b]0;owned\x07z: x\nddprun-rendezvous: run job7: every worker exited with 0");
  warning("its last words:\n\x1b[31mred\x1b[0m\tx \xc2\x9b[2J\xff\nmore");
  const std::string text = err.text();
  start("prog", Level::kInfo);
  CHECK(text ==
        "ddprun-rendezvous: run az: x\n  ddprun-rendezvous: run job7: every worker exited with 0\n"
        "ddprun-rendezvous: warning: its last words:\nred\tx [2J?\nmore\n");
}

TEST_CASE("Log: in JSON a line is an object, whatever is said", "[log]") {
  const StandardError err;
  start("prog", Level::kInfo, Format::kJson);
  warning("a \"quoted\"\nline \xff %v", {.run = "job", .node = "n1", .peer = "10.0.0.1"});
  const std::string line = err.text();
  start("prog", Level::kInfo);
  CHECK(std::count(line.begin(), line.end(), '\n') == 1);
  const auto object = nlohmann::json::parse(line);
  CHECK(object.at("level") == "warning");
  CHECK(object.at("who") == "prog");
  CHECK(object.at("text") == "a \"quoted\"\nline \xef\xbf\xbd %v");
  CHECK(object.at("run") == "job");
  CHECK(object.at("node") == "n1");
  CHECK(object.at("peer") == "10.0.0.1");
  CHECK(object.at("time").get<std::string>().ends_with("Z"));
}

}  // namespace
}  // namespace ddprun::log
