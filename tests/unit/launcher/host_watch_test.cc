#include "launcher/hosts/host_watch.h"

#include <catch2/catch.hpp>
#include <csignal>
#include <random>

#include "tests/fuzz/launcher/host_lines_fuzz.h"
#include "tests/support/damage.h"

namespace ddprun::launcher {
namespace {

using namespace std::chrono_literals;

// What the actions of a HostWatch come to, a line each; time begins at 0.
class Watch {
 public:
  explicit Watch(NodeRange nnodes = {1, 3})
      : watch_({.script = "./s", .nnodes = nnodes, .period = 5s, .wait_max = 600s, .grace = 30s},
               TimePoint{}) {}

  std::string at(Duration time, const HostWatch::Event& event = HostWatch::Tick{}) {
    now_ = TimePoint{} + time;
    std::string text;
    for (const auto& action : watch_.step(event, now_)) {
      text +=
          (text.empty() ? "" : "; ") + std::visit([](const auto& a) { return line(a); }, action);
    }
    return text;
  }
  std::string lists(Duration time, const std::string& output) {
    return at(time, HostWatch::Listed{{.output = output}});
  }
  std::string fails(Duration time, int exit_code, const std::string& words = "") {
    return at(time, HostWatch::Listed{{.exit_code = exit_code, .last_words = words}});
  }
  std::string ready(Duration time, const std::string& host) {
    return at(time, HostWatch::NodeReady{host});
  }
  std::string ends(Duration time, const std::string& host, int code) {
    return at(time, HostWatch::NodeEnded{host, code, ""});
  }
  std::string breaks(Duration time, const std::string& host) {
    return at(time, HostWatch::NodeEnded{host, std::nullopt, host + " broke"});
  }
  // Asks, and has `hosts` run.
  void begin(const std::string& lines, const std::vector<std::string>& hosts) {
    REQUIRE(at(0s) == "ask");
    (void)lists(0s, lines);
    for (const std::string& host : hosts) REQUIRE(ready(0s, host) == "order " + host);
  }
  Duration next() const { return watch_.next_deadline().value() - now_; }

 private:
  static std::string line(const HostWatch::RunScript&) { return "ask"; }
  static std::string line(const HostWatch::KillScript&) { return "kill script"; }
  static std::string line(const HostWatch::StartNode& a) {
    return "start " + a.host.name + (a.host.workers ? ":" + std::to_string(*a.host.workers) : "");
  }
  static std::string line(const HostWatch::OrderNode& a) { return "order " + a.host; }
  static std::string line(const HostWatch::WithdrawNode& a) { return "withdraw " + a.host; }
  static std::string line(const HostWatch::KillNode& a) { return "kill " + a.host; }
  static std::string line(const HostWatch::Report& a) { return "say " + a.text; }
  static std::string line(const HostWatch::End& a) { return "end " + std::to_string(a.exit_code); }

  TimePoint now_{};
  HostWatch watch_;
};

TEST_CASE("Hosts: an answer that comes just as its time is over is too late") {
  Watch watch;
  watch.begin("a\nb\n", {"a", "b"});
  CHECK(watch.at(5s) == "ask");
  // Noticed at once, in this order: the node's end, and the script's.
  CHECK(watch.breaks(25s, "b").find("kill script; say ./s has not ended within 20 s") !=
        std::string::npos);
  CHECK(watch.lists(25s, "c\n") == "");
  CHECK(watch.at(30s) == "ask");
  CHECK(watch.lists(31s, "a\nc\n") == "say ./s lists hosts again; start c");
}

std::string text_of(std::string_view output) {
  const auto hosts = hosts_in_lines(output);
  if (!hosts) return hosts.error().context;
  std::string text;
  for (const HostEntry& host : *hosts) {
    text += host.name + (host.workers ? "=" + std::to_string(*host.workers) : "") + " ";
  }
  return text;
}

TEST_CASE("HostLines: a host a line, with its slots", "[hosts]") {
  CHECK(text_of("a:2\nb\n\n  10.0.0.1:4 \r\n[::1]:1") == "a=2 b 10.0.0.1=4 ::1=1 ");
  CHECK(text_of("") == "");
  CHECK(text_of(" \n\n") == "");
}

TEST_CASE("HostLines: what is no host is named by its line", "[hosts]") {
  CHECK(text_of("a\nhello world\n").starts_with("line 2 'hello world' is not a host: give HOST"));
  CHECK(text_of("a:0").starts_with("line 1 'a:0' is not a host: give from 1 to"));
  CHECK(text_of("-oProxyCommand=x").find("is not a host") != std::string::npos);
  CHECK(text_of("a\x1b[2J").starts_with("line 1 'a?[2J' is not a host"));
  for (const std::string_view odd :
       {std::string_view("a:1::\0>x", 8), std::string_view("::1%`x`"), std::string_view("::1%")}) {
    CHECK(text_of(odd).find(" is not a host: give HOST") != std::string::npos);
  }
  CHECK(text_of("fe80::1%eth0") == "fe80::1%eth0 ");
  CHECK(text_of("a:2\nb\na:4\n") == "line 3 has a twice");
  CHECK(text_of(std::string(300, 'a')) == "line 1 is longer than a host's name");
  CHECK(text_of(std::string(300, ' ')) == "");
  std::string many;
  for (int i = 0; i <= 4'096; ++i) many += "h" + std::to_string(i) + "\n";
  CHECK(text_of(many) == "there are more than 4096 hosts");
}

TEST_CASE("HostLines: any bytes break no promise", "[fuzz]") {
  std::mt19937 random(5);
  const std::string whole = "a:2\nb.lab\nalice@c:16\n[::1]:4\n10.0.0.7\n";
  for (int round = 0; round < 20'000; ++round) {
    const std::string bytes = test::damaged(whole, random);
    fuzz::fuzz_host_lines(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
  }
  SUCCEED("nothing aborted");
}

TEST_CASE("HostWatch: nodes start on hosts that are listed, and leave those that are not") {
  Watch watch;
  CHECK(watch.at(0s) == "ask");
  CHECK(watch.lists(1s, "a:2\nb\n") == "start a:2; start b");
  CHECK(watch.ready(2s, "b") == "order b");
  CHECK(watch.ready(2s, "a") == "order a");
  CHECK(watch.next() == 4s);
  CHECK(watch.at(6s) == "ask");
  CHECK(watch.lists(7s, "b\nc:1\n") ==
        "say a is not listed any more: its node leaves the run; withdraw a; start c:1");
  CHECK(watch.at(12s) == "ask");
  CHECK(watch.lists(12s, "b\nc:1\n").empty());  // Once.
  CHECK(watch.ends(13s, "a", 75).empty());
  CHECK(watch.at(17s) == "ask");
  CHECK(watch.lists(17s, "a\nb\nc:1\n") == "start a");  // It is back.
}

TEST_CASE("HostWatch: a host that gets a copy of ddprun has five minutes, any other 30 s") {
  Watch watch;
  watch.begin("a\nb\n", {});
  CHECK(watch.at(2s, HostWatch::NodeCopies{"a"}).empty());
  CHECK(watch.at(30s) == "ask; kill b");
  CHECK(watch.breaks(30s, "b") == "say b gets no node for 10 s: b broke");
  CHECK(watch.lists(31s, "a\n").empty());
  CHECK(watch.ready(290s, "a") == "order a; ask");
  Watch slow;
  slow.begin("a\n", {});
  CHECK(slow.at(2s, HostWatch::NodeCopies{"a"}).empty());
  CHECK(slow.at(300s) == "ask; kill a");
}

TEST_CASE("HostWatch: no more nodes than MAX; one that leaves makes room") {
  Watch watch({1, 2});
  CHECK(watch.at(0s) == "ask");
  CHECK(watch.lists(0s, "a\nb\nc\nd\n") ==
        "start a; start b; say 2 hosts more than --nnodes 1:2 allows: listed, but without a node");
  (void)watch.ready(0s, "a"), (void)watch.ready(0s, "b");
  CHECK(watch.at(5s) == "ask");
  CHECK(watch.lists(5s, "a\nb\nc\nd\n").empty());
  CHECK(watch.at(10s) == "ask");
  CHECK(watch.lists(10s, "b\nc\n") ==
        "say a is not listed any more: its node leaves the run; withdraw a; start c");
}

TEST_CASE("HostWatch: what is wrong with the script is said once, and the last list stays") {
  Watch watch;
  watch.begin("a\nb\n", {"a", "b"});
  CHECK(watch.at(5s) == "ask");
  CHECK(watch.fails(5s, 1, "no such pool") ==
        "say ./s exited with 1 (no such pool); the last list stays in force: a, b");
  CHECK(watch.at(10s) == "ask");
  CHECK(watch.fails(10s, 1, "no such pool").empty());
  CHECK(watch.at(15s) == "ask");
  CHECK(watch.lists(15s, "").starts_with("say ./s printed no host; the last list stays"));
  CHECK(watch.at(20s) == "ask");
  CHECK(
      watch.lists(20s, "x y\n").starts_with("say ./s printed no list: line 1 'x y' is not a host"));
  CHECK(watch.at(25s) == "ask");
  CHECK(watch.lists(25s, "a\na\n").empty());  // As bad, and already reported.
  CHECK(watch.at(30s) == "ask");
  CHECK(watch.at(30s, HostWatch::Listed{{.is_too_long = true}})
            .starts_with("say ./s printed more than 1048576 bytes"));
  CHECK(watch.at(35s) == "ask");
  CHECK(watch.at(35s, HostWatch::Listed{{.cannot_start = "gone"}})
            .starts_with("say ./s cannot be started: gone; the last list"));
  CHECK(watch.at(40s) == "ask");
  CHECK(watch.lists(40s, "a\nb\n") == "say ./s lists hosts again");
  CHECK(watch.at(45s) == "ask");
  CHECK(watch.fails(45s, 1).empty());  // One that comes and goes is not reported each time.
}

TEST_CASE("HostWatch: what was wrong is said again after a good while") {
  Watch watch;
  watch.begin("a\n", {"a"});
  Duration now = 0s;
  const auto answer = [&](const std::string& output) {
    now += 5s;
    REQUIRE(watch.at(now) == "ask");
    return watch.lists(now, output);
  };
  CHECK(answer("") != "");
  for (int i = 0; i < 12; ++i) (void)answer("a\n");
  CHECK(answer("").starts_with("say ./s printed no host"));
}

TEST_CASE("HostWatch: a script that hangs is killed and asked again") {
  Watch watch;
  watch.begin("a\n", {"a"});
  CHECK(watch.at(5s) == "ask");
  CHECK(watch.next() == 20s);
  CHECK(watch.at(24s).empty());
  CHECK(watch.at(25s) ==
        "kill script; say ./s has not ended within 20 s; the last list stays in force: a");
  CHECK(watch.at(30s) == "ask");
  CHECK(watch.at(50s) == "kill script");
}

TEST_CASE("HostWatch: a script that cannot be started at all ends it at once") {
  Watch watch;
  CHECK(watch.at(0s) == "ask");
  CHECK(watch.at(0s, HostWatch::Listed{{.cannot_start = "no such file"}}) ==
        "say --host-discovery: ./s cannot be started: no such file; end 2");
}

TEST_CASE("HostWatch: another number of workers is said once, and waits for the next node") {
  Watch watch;
  watch.begin("a:2\nb\n", {"a", "b"});
  CHECK(watch.at(5s) == "ask");
  CHECK(watch.lists(5s, "a:4\nb\n") ==
        "say a is listed with 4 workers now; its node keeps what it has until it is started again");
  CHECK(watch.at(10s) == "ask");
  CHECK(watch.lists(10s, "a:4\nb\n").empty());
  CHECK(watch.at(15s) == "ask");
  CHECK(watch.lists(15s, "a:2\nb\n").empty());
  CHECK(watch.at(20s) == "ask");
  CHECK(watch.lists(20s, "a:4\nb\n") != "");
  CHECK(watch.breaks(20s, "a") == "say a gets no node for 10 s: a broke");
  CHECK(watch.at(30s) == "ask; start a:4");
}

TEST_CASE("HostWatch: a host that fails again and again is left out for longer and longer") {
  Watch watch;
  watch.begin("a\nb\n", {"a", "b"});
  CHECK(watch.breaks(1s, "b") == "say b gets no node for 10 s: b broke");
  CHECK(watch.at(10s) == "ask");
  CHECK(watch.lists(10s, "a\nb\n").empty());
  CHECK(watch.next() == 1s);
  CHECK(watch.at(11s) == "start b");
  CHECK(watch.breaks(12s, "b") == "say b has failed 2 times and gets no node for 20 s: b broke");
  CHECK(watch.at(32s) == "ask; start b");
  CHECK(watch.lists(32s, "a\nb\n").empty());
  CHECK(watch.ready(32s, "b") == "order b");
  CHECK(watch.breaks(33s, "b") == "say b has failed 3 times and gets no node for 40 s: b broke");
  CHECK(watch.at(40s) == "ask");
  CHECK(watch.lists(40s, "a\n").empty());  // Off the list, and back: a new one.
  CHECK(watch.at(45s) == "ask");
  CHECK(watch.lists(45s, "a\nb\n") == "start b");
  CHECK(watch.ready(45s, "b") == "order b");
  CHECK(watch.breaks(46s, "b") == "say b gets no node for 10 s: b broke");
}

TEST_CASE("HostWatch: pauses end at 10 minutes, and begin anew after a good spell") {
  Watch watch;
  watch.begin("a\nb\n", {"a", "b"});
  Duration now = 0s;
  std::string last;
  for (int i = 0; i < 9; ++i) {
    last = watch.breaks(now, "b");
    now += 11min;
    (void)watch.at(now);
    REQUIRE(watch.ready(now, "b") == "order b");
  }
  CHECK(last == "say b has failed 9 times and gets no node for 600 s: b broke");
  CHECK(watch.breaks(now + 10min, "b").starts_with("say b gets no node for 10 s: b broke"));
}

TEST_CASE("HostWatch: a node that hangs as it starts, or does not leave, is killed") {
  Watch watch;
  watch.begin("a\nb\n", {"a"});
  CHECK(watch.at(30s) == "ask; kill b");
  CHECK(watch.breaks(30s, "b") == "say b gets no node for 10 s: b broke");
  CHECK(watch.lists(30s, "c\n") ==
        "say a is not listed any more: its node leaves the run; withdraw a; start c");
  (void)watch.ready(30s, "c");
  CHECK(watch.at(120s) == "ask; say a does not leave: closing ssh; kill a");
  CHECK(watch.breaks(120s, "a").empty());
}

TEST_CASE("HostWatch: a host that vanishes while its node starts is let go") {
  Watch watch;
  watch.begin("a\nb\n", {"a"});
  CHECK(watch.at(5s) == "ask");
  CHECK(watch.lists(5s, "a\n") == "kill b");
  CHECK(watch.ready(5s, "b").empty());
  CHECK(watch.breaks(5s, "b").empty());
}

TEST_CASE("HostWatch: the run is over when its last node has ended, with the first code") {
  Watch watch;
  watch.begin("a\nb\nc\n", {"a", "b"});
  CHECK(watch.ends(9s, "b", 7) == "ask");
  CHECK(watch.lists(9s, "a\nb\nc\nd\n").empty());  // No node starts as the others end.
  CHECK(watch.ends(9s, "a", 7) == "end 7");
}

TEST_CASE("HostWatch: all nodes end well") {
  Watch watch;
  watch.begin("a\nb\n", {"a", "b"});
  CHECK(watch.ends(1s, "b", 0).empty());
  CHECK(watch.ends(1s, "a", 0) == "end 0");
}

TEST_CASE("HostWatch: a node that ends alone has failed, and has left if it ended well") {
  Watch watch({1, 4});
  watch.begin("a\nb\nc\n", {"a", "b", "c"});
  CHECK(watch.ends(1s, "b", 137).empty());
  CHECK(watch.ends(1s, "c", 0).empty());
  CHECK(watch.at(5s) == "ask");
  CHECK(watch.lists(5s, "a\nb\nc\nd\n").empty());
  CHECK(watch.at(11s) ==
        "say b gets no node for 10 s: the node on b ended with 137; say the node on c has left "
        "the run; it gets another when it is listed anew; ask; start d");
  CHECK(watch.at(21s) == "start b");
}

TEST_CASE("HostWatch: a signal stops all, and nothing is started any more") {
  Watch watch;
  watch.begin("a\nb\nc\n", {"a", "b"});
  CHECK(watch.at(1s, HostWatch::Interrupted{SIGINT}).empty());
  CHECK(watch.ready(1s, "c") == "kill c");
  CHECK(watch.ends(2s, "a", 130).empty());
  CHECK(watch.breaks(2s, "c").empty());
  CHECK(watch.at(30s).empty());
  CHECK(watch.at(61s) == "kill b");
  CHECK(watch.breaks(61s, "b") == "end 130");
}

TEST_CASE("HostWatch: a second Ctrl-C leaves nodes no time but to kill their workers") {
  Watch watch;
  watch.begin("a\nb\n", {"a", "b"});
  CHECK(watch.at(1s, HostWatch::Interrupted{SIGINT}).empty());
  CHECK(watch.at(2s, HostWatch::Interrupted{SIGINT}).empty());  // Of a process: no haste.
  CHECK(watch.at(5s, HostWatch::Interrupted{SIGINT, /*now=*/true}).empty());
  CHECK(watch.at(6s, HostWatch::Interrupted{SIGINT, /*now=*/true}).empty());
  CHECK(watch.ends(7s, "a", 130).empty());
  CHECK(watch.at(8s) == "kill b");
  CHECK(watch.breaks(8s, "b") == "end 130");
}

TEST_CASE("HostWatch: a signal before any node runs ends it at once") {
  Watch watch;
  watch.begin("a\n", {});
  CHECK(watch.at(1s, HostWatch::Interrupted{SIGTERM}) == "end 143");
}

TEST_CASE("HostWatch: without any node for too long it gives up") {
  Watch watch;
  CHECK(watch.at(0s) == "ask");
  CHECK(watch.fails(0s, 2) == "say ./s exited with 2; no host is known yet");
  CHECK(watch.at(5s) == "ask");
  CHECK(watch.at(600s) ==
        "kill script; say ./s has not ended within 20 s; no host is known yet; "
        "say no host could be used for 600 s: no host is known yet; end 3");
}

}  // namespace
}  // namespace ddprun::launcher
