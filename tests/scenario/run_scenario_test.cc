// Plays tests/scenario/run/*/*.txt against a Run. Commands:
//
//   config min=1 max=2 ranks=0 restarts=1 last_call=5 join_timeout=60 heartbeat=1 standstill=60
//          join_at_restart=1 audit=PER_MILLION
//                        before the first join; times in seconds
//   join NODE [workers=N] [rank=N] [after=ROUND] [living=1] [serial=N] [beginning=N] [prepares=1]
//        [step=NAME] [host] [max=N] [restarts=N] [audit=N] [holders=N] [kept=STEPS]
//        [needs=RANKS]
//                        `host`: it hosts the endpoint; `step`: of a scheduler, with which it ends
//   slots NODE ROUND kept=N [parked=N] [fallen=N] [respawned=N] [spares=N] [serial=N] [needs=RANKS]
//                        without serial: a newer one than all before
//   beat NODE ROUND
//   finished NODE ROUND
//   stopped NODE ROUND [rank=N (code=N | signal=N)]
//   lost NODE
//   leave NODE [SIGNAL]
//   drain NODE REASON
//   resize NODES         by an operator
//   cancel [SIGNAL]      by an operator, or as the daemon ends
//   failed NODE ROUND rank=N (code=N | signal=N) [lost=RANK] [kept=STEPS]
//                        `lost`: it has lost the connection to that rank
//   recovered            the daemon is back from the dead
//   returned NODE
//   flap NODE TIMES      it joins and is lost, so often; prints nothing
//   away NODE            it leaves its link, and will come back on another
//   unseen NODE          its link has ended unnoticed by the daemon
//   answers NODE [MS]    its kernel does, though it sends nothing; MS: how long a round trip takes
//   stood SECONDS        the daemon stood still for so long
//   wait SECONDS         with a tick at each deadline on the way; prints the nodes that are too
//   silent show                 the state, and what it waits for

#include <catch2/catch.hpp>
#include <filesystem>
#include <iomanip>
#include <memory>
#include <sstream>

#include "rendezvous/run/run.h"
#include "tests/support/scenario.h"

namespace ddprun::rendezvous {
namespace {

using Words = std::vector<std::string>;
using Lines = std::vector<std::string>;

class Script {
 public:
  Lines run(const Words& words) {
    const std::string& verb = words.at(0);
    if (verb == "config") return configure(words);
    if (verb == "wait") return wait(std::chrono::duration<double>(std::stod(words.at(1))));
    if (verb == "show") return {stamp() + run_.describe(), stamp() + run_.waiting_for(now_)};
    if (verb == "recovered") return step({"", Recovered{}});
    if (verb == "cancel") {
      return step({"", Cancel{words.size() > 1 ? std::stoi(words[1]) : 15, "it was cancelled"}});
    }
    if (verb == "stood") {
      const std::chrono::seconds how_long(std::stoi(words.at(1)));
      now_ += how_long;
      return step({"", StoodStill{how_long}});
    }
    if (verb == "resize") return step({"", Resize{std::stoi(words.at(1)), "so_be_it"}});
    const NodeId& node = words.at(1);
    if (verb == "away") return step({node, Away{}});
    if (verb == "unseen") return step({node, Unseen{}});
    if (verb == "flap") return flap(node, words);
    if (verb == "answers") return answers(node, words);
    if (verb == "returned") return step({node, Returned{}});
    if (verb == "join")
      return step({node, Join{offer(node, words), option(words, "after", -1),
                              option(words, "living", 0) != 0, option(words, "serial", 0),
                              option(words, "beginning", 0), option(words, "prepares", 0) != 0,
                              option(words, "holders", -1), option(words, "kept", 0),
                              option(words, "needs", 0)}});
    if (verb == "slots") return slots(node, words);
    if (verb == "beat") return step({node, Heartbeat{std::stoi(words.at(2))}});
    if (verb == "finished") return step({node, Finished{std::stoi(words.at(2))}});
    if (verb == "stopped") return stopped(node, words);
    if (verb == "lost") return step({node, Lost{"closed its connection"}});
    if (verb == "failed") {
      const std::string clock = option(words, "noticed", 0) > 0 ? "one" : "";
      return step({node, Failed{std::stoi(words.at(2)), death(node, words),
                                option(words, "noticed", 0), clock}});
    }
    if (verb == "drain") return step({node, Drain{words.at(2)}});
    if (verb == "leave") {
      const int signal = words.size() > 2 ? std::stoi(words[2]) : 0;
      const bool planned = option(words, "planned", 0) != 0;
      const std::string how = planned ? "pre-empted" : "interrupted";
      return step({node, Leave{signal, how + " by signal " + std::to_string(signal), planned}});
    }
    return {"unknown command " + verb};
  }

 private:
  static int option(const Words& words, const std::string& name, int fallback) {
    for (const std::string& word : words) {
      if (word.starts_with(name + "=")) return std::stoi(word.substr(name.size() + 1));
    }
    return fallback;
  }

  Lines stopped(const NodeId& node, const Words& words) {
    Stopped stopped{std::stoi(words.at(2)), {}};
    const WorkerDeath end = death(node, words);
    if (option(words, "rank", -1) >= 0) {
      (end.succeeded() ? stopped.successes : stopped.deaths).push_back(end);
    }
    return step({node, stopped});
  }

  Lines configure(const Words& words) {
    using std::chrono::seconds;
    config_.nnodes_min = option(words, "min", 1);
    config_.nnodes_max = option(words, "max", config_.nnodes_min);
    config_.max_restarts = option(words, "restarts", 0);
    config_.min_ranks = option(words, "ranks", 0);
    config_.last_call = seconds(option(words, "last_call", 30));
    config_.join_timeout = seconds(option(words, "join_timeout", 600));
    config_.heartbeat_timeout = seconds(option(words, "heartbeat", 86'400));
    config_.standstill_timeout = seconds(option(words, "standstill", 60));
    config_.audit_per_million = option(words, "audit", 0);
    config_.join_at_restart = option(words, "join_at_restart", 0) != 0;
    return {};
  }

  NodeOffer offer(const NodeId& node, const Words& words) const {
    NodeOffer offer;
    offer.host = node;
    offer.address = node + ".net";
    offer.store_port = 4000;
    offer.local_world_size = option(words, "workers", 1);
    offer.node_rank = option(words, "rank", -1);
    offer.hosts_endpoint = words.back() == "host";
    for (const std::string& word : words) {
      if (word.starts_with("step=")) offer.scheduler_step = word.substr(5);
    }
    offer.config = config_;
    offer.config.nnodes_max = option(words, "max", config_.nnodes_max);
    offer.config.max_restarts = option(words, "restarts", config_.max_restarts);
    offer.config.audit_per_million = option(words, "audit", config_.audit_per_million);
    return offer;
  }

  static WorkerDeath death(const NodeId& node, const Words& words) {
    WorkerDeath death;
    death.host = node;
    death.rank = option(words, "rank", 0);
    death.exit_code = option(words, "code", 0);
    death.signal = option(words, "signal", 0);
    death.pid = 100 + death.rank;
    death.kept_steps = option(words, "kept", 0);
    death.blames = option(words, "lost", -1);
    if (death.blames >= 0) death.fault = Fault::kPeerLost;
    if (option(words, "wrong", 0) != 0) death.fault = Fault::kWrongResult;
    return death;
  }

  Lines slots(const NodeId& node, const Words& words) {
    Slots slots;
    slots.serial = option(words, "serial", ++serial_);
    slots.round = std::stoi(words.at(2));
    slots.kept = option(words, "kept", 0);
    slots.parked = option(words, "parked", 0);
    slots.fallen = option(words, "fallen", 0);
    slots.respawned = option(words, "respawned", 0);
    slots.spares = option(words, "spares", 0);
    slots.min_ranks = option(words, "needs", 0);
    return step({node, slots});
  }

  Lines step(const RunEvent& event) {
    Lines lines;
    for (const RunAction& action : run_.step(event, now_))
      lines.push_back(stamp() + to_string(action));
    run_.check_invariants();
    return lines;
  }

  Lines wait(std::chrono::duration<double> seconds) {
    const TimePoint end = now_ + std::chrono::duration_cast<Duration>(seconds);
    Lines lines;
    for (auto due = run_.deadline(); due && *due <= end; due = run_.deadline()) {
      now_ = std::max(now_, *due);
      for (const Run::Silent& silent : run_.silent(now_)) {
        lines.push_back(stamp() + silent.node + " " + silent.how);
      }
      for (std::string& line : step({"", Tick{}})) lines.push_back(std::move(line));
    }
    now_ = end;
    return lines;
  }

  Lines flap(const NodeId& node, const Words& words) {
    for (int i = 0; i < std::stoi(words.at(2)); ++i) {
      (void)step({node, Join{offer(node, words), 0}});
      (void)step({node, Lost{"closed its connection"}});
    }
    return {};
  }

  Lines answers(const NodeId& node, const Words& words) {
    const Milliseconds round_trip(words.size() > 2 ? std::stoi(words[2]) : 1);
    const auto limit = run_.reached(node, {now_, round_trip}, now_);
    if (!limit) return {};
    return {stamp() + node + " has " + std::to_string(limit->count()) + " ms from now on"};
  }

  std::string stamp() const {
    std::ostringstream text;
    text << std::fixed << std::setprecision(1)
         << std::chrono::duration<double>(now_.time_since_epoch()).count() << "  ";
    return text.str();
  }

  RunConfig config_;
  Run run_;
  TimePoint now_{};
  int serial_ = 0;
};

TEST_CASE("Run scenarios", "[run][scenario]") {
  int files = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator("tests/scenario/run")) {
    if (!entry.is_regular_file()) continue;
    Script script;
    ++files;
    CHECK(test::run_scenario(entry.path(), [&](const Words& words) { return script.run(words); }) ==
          "");
  }
  CHECK(files > 25);
}

}  // namespace
}  // namespace ddprun::rendezvous
