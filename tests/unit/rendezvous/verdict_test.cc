#include "rendezvous/run/verdict.h"

#include <catch2/catch.hpp>
#include <csignal>
#include <nlohmann/json.hpp>

namespace ddprun::rendezvous {
namespace {

using nlohmann::json;

WorkerDeath death(int rank, Fault fault, int blames = -1) {
  return {.rank = rank,
          .local_rank = rank % 2,
          .pid = 100 + rank,
          .host = rank < 2 ? "a" : "b",
          .exit_code = 10 + rank,
          .detail = "words of " + std::to_string(rank),
          .fault = fault,
          .blames = blames};
}

WorkerDeath stopped(int rank) {
  WorkerDeath d = death(rank, Fault::kUnknown);
  d.exit_code = 0;
  d.signal = SIGTERM;
  d.stopped_by_us = true;
  return d;
}

WorkerDeath was_failing(int rank) {
  WorkerDeath d = stopped(rank);
  d.was_failing = true;
  d.fault = Fault::kException;
  return d;
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST_CASE("First cause: the first report that was not our doing", "[verdict]") {
  const auto cause =
      first_cause({stopped(0), death(1, Fault::kExit), death(2, Fault::kException), stopped(3)});
  CHECK(cause.death.rank == 1);
  CHECK(cause.exit_code == 11);
  CHECK(first_cause({stopped(2), stopped(1)}).death.rank == 2);  // Nothing better is known.
}

TEST_CASE("First cause: a victim gives way to the rank that it names", "[verdict]") {
  CHECK(first_cause(
            {death(0, Fault::kPeerLost, 2), death(3, Fault::kExit), death(2, Fault::kException)})
            .death.rank == 2);
  // Through another victim.
  CHECK(first_cause(
            {death(0, Fault::kPeerLost, 1), death(1, Fault::kPeerLost, 3), death(3, Fault::kCrash)})
            .death.rank == 3);
  // Each names the other.
  CHECK(first_cause({death(0, Fault::kPeerLost, 1), death(1, Fault::kPeerLost, 0)}).death.rank ==
        1);
  // The rank that it names did not die: its own words are all there is.
  CHECK(first_cause({death(0, Fault::kPeerLost, 7), stopped(1)}).death.rank == 0);
}

TEST_CASE("First cause: a victim that names nobody gives way to who says more", "[verdict]") {
  CHECK(first_cause({death(0, Fault::kPeerLost), stopped(1), death(2, Fault::kNoMemory)})
            .death.rank == 2);
  CHECK(first_cause({death(0, Fault::kPeerLost), death(1, Fault::kPeerLost)}).death.rank == 0);
  // Slower than its victim: we stopped it while it tidied up.
  const auto cause = first_cause({death(0, Fault::kPeerLost), stopped(1), was_failing(2)});
  CHECK(cause.death.rank == 2);
  CHECK(cause.exit_code == 1);
  // It got as far as its own signal: that is how it ended, whatever we sent meanwhile.
  WorkerDeath crashed = was_failing(2);
  crashed.signal = SIGABRT;
  crashed.fault = Fault::kCrash;
  const auto own_end = first_cause({death(0, Fault::kPeerLost), stopped(1), crashed});
  CHECK(own_end.death.rank == 2);
  CHECK(own_end.exit_code == 128 + SIGABRT);
  CHECK(has(worker_verdict({death(0, Fault::kPeerLost), stopped(1), crashed}, 0, 0).text,
            "failed first: it was killed by signal 6 (SIGABRT)"));
  // But a rank that failed by itself and first is not overruled.
  CHECK(first_cause({death(0, Fault::kExit), was_failing(2)}).death.rank == 0);
}

TEST_CASE("First cause: who was waited for in vain is stuck, and did not fail", "[verdict]") {
  const auto cause = first_cause({death(0, Fault::kTimedOut, 2), stopped(1), stopped(2)});
  CHECK(cause.death.rank == 2);
  CHECK(cause.death.fault == Fault::kStuck);
  CHECK(cause.exit_code == 10);
  CHECK(cause.witness == "rank 0 gave up waiting for it (words of 0)");
  // The witness may come second.
  CHECK(first_cause({death(0, Fault::kPeerLost, 2), death(1, Fault::kTimedOut, 2), stopped(2)})
            .death.fault == Fault::kStuck);
  // To have lost a peer is not to have waited for it.
  CHECK(first_cause({death(0, Fault::kPeerLost, 2), stopped(2)}).death.rank == 0);
}

TEST_CASE("First cause: a rank that left early while others waited for it", "[verdict]") {
  WorkerDeath gone = death(2, Fault::kUnknown), waits = death(0, Fault::kPeerLost, 2);
  gone.exit_code = 0;
  gone.collective = 40, gone.steps = 12;
  waits.collective = 41, waits.steps = 12;
  const auto cause = first_cause({waits, stopped(1)}, {gone});
  CHECK(cause.death.rank == 2);
  CHECK(cause.death.fault == Fault::kLeftEarly);
  CHECK(cause.exit_code == 10);  // Of the rank that could not go on.
  const Verdict verdict = worker_verdict({waits, stopped(1)}, 0, 0, {.successes = {gone}});
  CHECK(has(verdict.text,
            "rank 2 (local rank 0, pid 102) on b ended with 0 while others still needed it: its "
            "last was step 12 (collective #40), and rank 0 waited for it in step 13 (collective "
            "#41)."));
  CHECK(has(verdict.text, "unequal numbers of batches? See uneven_inputs and join()"));
  CHECK_FALSE(has(verdict.text, "network"));
  // Through a deadline, too; and where no step is known.
  gone.steps = 0, gone.collective = 0, waits.fault = Fault::kTimedOut, waits.steps = 0;
  CHECK(has(worker_verdict({waits}, 0, 0, {.successes = {gone}}).text,
            "needed it: rank 0 waited for it in collective #41."));
  // A rank that ended well after another had failed of itself is not a cause.
  CHECK(first_cause({death(1, Fault::kExit), waits}, {gone}).death.rank == 1);
}

TEST_CASE("First cause: a rank that left and still ran when it was stopped is named", "[verdict]") {
  WorkerDeath leaver = stopped(2), waits = death(0, Fault::kPeerLost, 2);
  CHECK(first_cause({waits, stopped(1), leaver}).death.rank == 0);
  leaver.fault = Fault::kLeftEarly;
  const auto cause = first_cause({waits, stopped(1), leaver});
  CHECK(cause.death.rank == 2);
  CHECK(cause.exit_code == 10);  // Of the rank that could not go on.
  CHECK(has(worker_verdict({waits, leaver}, 0, 0).text,
            "on b left the job while others still needed it, and had not ended when ddprun stopped "
            "it: rank 0 waited for it."));
}

TEST_CASE("First cause: it is lacking while all that failed have lost a peer", "[verdict]") {
  const WorkerDeath victim = death(0, Fault::kPeerLost, 2), leaver = death(2, Fault::kUnknown);
  CHECK(lacks_cause({victim}, {}));
  CHECK(lacks_cause({victim, death(1, Fault::kPeerLost, 0), stopped(3)}, {}));
  CHECK_FALSE(lacks_cause({victim, leaver}, {}));  // Whatever the reason of its end is.
  CHECK_FALSE(lacks_cause({victim}, {leaver}));    // It has ended with 0.
  CHECK(lacks_cause({victim}, {death(3, Fault::kUnknown)}));
  CHECK_FALSE(lacks_cause({death(0, Fault::kTimedOut, 2)}, {}));  // That one is there, and stuck.
  CHECK_FALSE(lacks_cause({stopped(0), stopped(1)}, {}));
  // A rank that was stopped by us explains nothing, but leaves nothing unexplained either.
  CHECK_FALSE(shows_cause({stopped(0), stopped(1)}, {}));
  CHECK(shows_cause({stopped(0), leaver}, {}));
}

TEST_CASE("First cause: who called abort() is named, however it ended", "[verdict]") {
  WorkerDeath aborts = stopped(2);
  aborts.fault = Fault::kAborted;
  const Verdict verdict = worker_verdict({death(0, Fault::kPeerLost, 2), aborts}, 0, 0);
  CHECK(verdict.first_cause->rank == 2);
  CHECK(verdict.exit_code == 10);
  CHECK(has(verdict.text, "rank 2 (local rank 0, pid 102) on b called abort(): rank 0 saw it"));
  CHECK_FALSE(has(verdict.text, "network"));
  aborts.signal = 0;
  CHECK(first_cause({death(0, Fault::kPeerLost, 2)}, {aborts}).death.fault == Fault::kAborted);
  const Verdict first = worker_verdict({death(1, Fault::kAborted), stopped(0)}, 0, 0);
  CHECK(has(first.text, "on a failed first: it called abort() and exited with 11."));
}

TEST_CASE("First cause: of ranks that disagree the odd one, not the first to die", "[verdict]") {
  const auto mismatch = [](int rank, int odd) { return death(rank, Fault::kMismatch, odd); };
  WorkerDeath odd = stopped(2);
  const Verdict verdict = worker_verdict({mismatch(0, 2), mismatch(1, 2), odd}, 0, 0);
  CHECK(verdict.first_cause->rank == 2);
  CHECK(verdict.exit_code == 10);
  CHECK(has(verdict.text, "on b disagreed with the other ranks: rank 0 saw it (words of 0)."));
  // It died too, and blames another rank: it is outvoted, and its own code counts.
  const auto cause = first_cause({mismatch(2, 0), mismatch(0, 2), mismatch(1, 2)});
  CHECK(cause.death.rank == 2);
  CHECK(cause.exit_code == 12);
  CHECK(first_cause({mismatch(0, 2), mismatch(2, 2)}).exit_code == 12);
  // One word against another.
  CHECK(first_cause({mismatch(1, 0), mismatch(0, 1)}).death.rank == 1);
}

TEST_CASE("First cause: an audit's is the rank that all report, whichever ends first",
          "[verdict]") {
  const auto wrong = [](int rank, int culprit) {
    return death(rank, Fault::kWrongResult, culprit);
  };
  CHECK(first_cause({wrong(0, 2), wrong(1, 2), wrong(2, 2)}).death.rank == 2);
  CHECK(first_cause({wrong(0, 2), wrong(2, 2)}).exit_code == 12);
  // It was stopped before it could report.
  const Verdict verdict = worker_verdict({wrong(0, 2), stopped(2)}, 0, 0);
  CHECK(verdict.first_cause->rank == 2);
  CHECK(has(verdict.text, "rank 0 found it (words of 0)"));
  // Its node is lost: the first report is what there is.
  CHECK(first_cause({wrong(1, 2), wrong(0, 2)}).death.rank == 1);
}

TEST_CASE("Verdict: a rank that stood still is said to be stopped", "[verdict]") {
  WorkerDeath halted = stopped(2);
  halted.evidence = "it is stopped (SIGSTOP, or a debugger)";
  CHECK(has(worker_verdict({death(0, Fault::kTimedOut, 2), halted}, 0, 0).text,
            "(words of 0); it is stopped (SIGSTOP, or a debugger)."));
}

TEST_CASE("Verdict: the network is no suspect on one machine", "[verdict]") {
  const auto text = [](const std::string& host) {
    WorkerDeath other = stopped(1);
    other.host = host;
    return worker_verdict({death(0, Fault::kPeerLost), other}, 0, 0).text;
  };
  CHECK(has(text("b"), "check the network"));
  CHECK_FALSE(has(text("a"), "network"));
  CHECK_FALSE(has(text("a/1"), "network"));  // Of --local-nodes.
}

TEST_CASE("Verdict: who lost a nameless peer is told who had ended by then", "[verdict]") {
  WorkerDeath gone = death(2, Fault::kUnknown);
  gone.exit_code = 0;
  const RunHistory history{.successes = {gone}};
  const Verdict verdict = worker_verdict({death(0, Fault::kPeerLost), stopped(1)}, 0, 0, history);
  CHECK(verdict.first_cause->rank == 0);
  CHECK(has(verdict.text, "but rank 2 had already ended with 0: do the ranks have unequal"));
  CHECK_FALSE(has(verdict.text, "network"));
}

TEST_CASE("Verdict: a failure that comes again is recognised", "[verdict]") {
  const auto text = [](const WorkerDeath& before, const WorkerDeath& now) {
    const RunHistory history{.past = {remembered({.death = before, .witness = {}})}};
    WorkerDeath other = stopped(3);
    return worker_verdict({now, other}, 1, 1, history).text;
  };
  WorkerDeath before = death(1, Fault::kException), now = before;
  before.detail = "loss is NaN at step 17", now.detail = "Traceback\nloss is NaN at step 12";
  CHECK(has(text(before, now), "the same rank with the same error each time"));
  now.detail = "another";
  CHECK(has(text(before, now), "It was on a each time: check that host."));
  now.host = "b";
  CHECK_FALSE(has(text(before, now), "each time"));
  // A machine does this, whatever the program.
  before = now = death(1, Fault::kOutOfMemory);
  CHECK(has(text(before, now), "check that host"));
}

TEST_CASE("Verdict: a piece of work that has ended two processes is named", "[verdict]") {
  WorkerDeath before = death(1, Fault::kCrash), now = death(2, Fault::kCrash);
  before.work = now.work = "step 7, shard 3: samples 5, 9";
  const RunHistory history{.past = {death(0, Fault::kExit), remembered({before, 1, {}})}};
  const std::string text = worker_verdict({now, stopped(3)}, 2, 9, history).text;
  CHECK(has(text, "It computed step 7, shard 3: samples 5, 9. The same has ended rank 1 (local"));
  CHECK_FALSE(has(text, "No restart was left"));
  now.work = "step 7, shard 4: samples 5, 9";
  CHECK_FALSE(has(worker_verdict({now}, 2, 9, history).text, "The same has ended"));
  CHECK(piece_of(before.work) == "step 7, shard 3");
  now.work = "";
  CHECK_FALSE(is_poison({death(1, Fault::kExit)}, now));
}

TEST_CASE("Verdict: one paragraph", "[verdict]") {
  WorkerDeath first = death(1, Fault::kOutOfMemory);
  first.signal = SIGKILL;
  first.evidence = "the kernel's out-of-memory killer struck";
  const Verdict verdict = worker_verdict({first, stopped(0), death(3, Fault::kExit)}, 2, 2);
  CHECK(verdict.exit_code == 137);
  CHECK(
      verdict.text ==
      "rank 1 (local rank 1, pid 101) on a failed first: it was killed by signal 9 (SIGKILL): the "
      "kernel's out-of-memory killer struck. 1 more failed after it (rank 3). 1 other was stopped "
      "by ddprun. No restart was left: 2 of 2 were used. Give the job more memory, or let it use "
      "less: fewer data loader processes, a smaller batch.\nIts last words:\nwords of 1");
  CHECK(verdict.restarts == "2 of 2 were used");
  CHECK(verdict.again.empty());
  CHECK(has(without_last_words(verdict), "a smaller batch. Its last words are above."));
  const Verdict hung = worker_verdict({death(0, Fault::kTimedOut, 2), stopped(2)}, 0, 0);
  CHECK(has(hung.text,
            "rank 2 (local rank 0, pid 102) on b made no further progress: rank 0 gave up"));
}

TEST_CASE("Verdict: many victims are counted, few are listed", "[verdict]") {
  std::vector<WorkerDeath> deaths;
  for (int rank = 0; rank < 200; ++rank) deaths.push_back(death(rank, Fault::kExit));
  const Verdict verdict = worker_verdict(deaths, 0, 0);
  CHECK(verdict.victims.size() == 64);
  CHECK(has(verdict.text, "199 more failed after it (ranks 1-199)"));
  deaths.clear();
  for (int rank = 0; rank < 50; rank += 2) deaths.push_back(death(rank, Fault::kExit));
  CHECK(has(worker_verdict(deaths, 0, 0).text,
            "24 more failed after it (ranks 2, 4, 6, 8, 10, 12, 14, 16 and 16 more)"));
}

TEST_CASE("Verdict: as JSON, with what PyTorch's agent reads", "[verdict]") {
  WorkerDeath first = death(1, Fault::kException);
  first.detail = "ValueError: \xff boom";
  const Verdict verdict = worker_verdict({first, stopped(0)}, 0, 0);
  const json file = json::parse(verdict_json(verdict, "run7", 1700000000));
  CHECK(file["kind"] == "worker_failed");
  CHECK(file["run_id"] == "run7");
  CHECK(file["exit_code"] == 11);
  CHECK(file["first_cause"]["rank"] == 1);
  CHECK(file["first_cause"]["fault"] == "exception");
  CHECK(file["first_cause"]["exit_code"] == 11);
  CHECK(file["victims"].size() == 1);
  CHECK(file["victims"][0]["signal_name"] == "SIGTERM");
  CHECK(file["victims"][0]["stopped_by_ddprun"] == true);
  CHECK(has(file["message"]["message"], "ValueError"));
  CHECK(file["message"]["errorCode"] == 11);
  CHECK(file["message"]["extraInfo"]["timestamp"] == "1700000000");
  const Verdict lost{.kind = Verdict::Kind::kNodeLost, .exit_code = 3, .text = "b was silent"};
  const json other = json::parse(verdict_json(lost, "", 0));
  CHECK(other["kind"] == "node_lost");
  CHECK(other["message"]["message"] == "b was silent");
  CHECK_FALSE(other.contains("first_cause"));
}

TEST_CASE("Verdict: the advice follows from the fault, or from the status where nobody looked",
          "[verdict]") {
  const auto advised = [](WorkerDeath death) { return advice(death, false).substr(0, 30); };
  const std::string crashed = "The program crashed; a core fi",
                    unknown_program = "The program could not be start";
  CHECK(advised({.pid = 7, .signal = SIGSEGV}) == crashed);
  CHECK(advised({.pid = 7, .signal = SIGABRT, .fault = Fault::kCrash}) == crashed);
  CHECK(advised({.pid = 7, .signal = SIGABRT, .fault = Fault::kNoMemory}) ==
        "See ulimit -v and the memory o");
  CHECK(advised({.pid = 7, .signal = SIGABRT, .fault = Fault::kException}) == crashed);
  CHECK(advised({.pid = 7, .exit_code = 1, .fault = Fault::kException}).empty());
  CHECK(advised({.pid = 7, .signal = SIGKILL}) == "SIGKILL comes from outside the");
  CHECK(advised({.pid = 7, .signal = SIGTERM, .fault = Fault::kSignal}).empty());
  CHECK(advised({.pid = 7, .exit_code = 127}) == "A shell there found no such co");
  CHECK(advised({.exit_code = 127, .fault = Fault::kCannotStart}) == unknown_program);
  CHECK(advised({.pid = 7, .exit_code = 127, .fault = Fault::kExit}).empty());
  CHECK(advised({.exit_code = 1, .fault = Fault::kNoProcesses}) ==
        "Raise that limit on that host,");
}

TEST_CASE("Verdict: the failures that people have most have advice", "[verdict]") {
  const auto advised = [](Fault fault, const std::string& words = "", const std::string& why = "") {
    return advice({.pid = 7, .exit_code = 1, .detail = words, .fault = fault, .evidence = why});
  };
  CHECK(has(advised(Fault::kGpuMemory), "a smaller batch"));
  CHECK(has(advised(Fault::kGpuMemory, "", "no other process holds memory of GPU 0"), "smaller"));
  CHECK(has(advised(Fault::kGpuMemory, "", "of the 80.0 GiB of GPU 0 another process holds a part"),
            "End the other processes"));
  for (const Fault fault : {Fault::kGpuAssert, Fault::kGpuAccess}) {
    CHECK(has(advised(fault), "CUDA_LAUNCH_BLOCKING=1"));
  }
  CHECK(has(advised(Fault::kGpuBroken), "Suspect the GPU or the machine"));
  CHECK(has(advised(Fault::kNoGpu), "CUDA_VISIBLE_DEVICES"));
  CHECK(has(advised(Fault::kNccl, "NCCL error in: x"), "NCCL_DEBUG=INFO"));
  CHECK(has(advised(Fault::kNccl, "Duplicate GPU detected : rank 1"), "torch.cuda.set_device()"));
  CHECK(has(advised(Fault::kNccl, "memory segment /dev/shm/nccl-x"), "--shm-size"));
  CHECK(has(advised(Fault::kPeerLost, "NCCL error: remote process exited"), "NCCL_DEBUG=INFO"));
  CHECK_FALSE(has(advised(Fault::kPeerLost, "write: Broken pipe"), "NCCL"));
  CHECK(has(advised(Fault::kNcclVersion), "the same NCCL"));
  CHECK(has(advised(Fault::kAddressInUse), "ss -ltnp"));
  CHECK(has(advised(Fault::kNoFile), "path"));
  CHECK(has(advised(Fault::kQuota), "quota -s"));
  CHECK(has(advised(Fault::kTimeLimit), "--preempt-signal"));
  CHECK(has(advice({.pid = 7, .signal = SIGXCPU, .fault = Fault::kSignal}), "ulimit -t"));
}

TEST_CASE("Verdict: what only one host lacks is said to be missing there", "[verdict]") {
  const auto text = [](Fault fault, WorkerDeath other) {
    return worker_verdict({death(2, fault), other}, 0, 0).text;
  };
  const std::string lacks = "No other host has reported this: check that b has the same files";
  CHECK(has(text(Fault::kNoFile, stopped(0)), lacks));
  CHECK(has(text(Fault::kImportError, stopped(0)), lacks));
  CHECK_FALSE(has(text(Fault::kNoFile, death(0, Fault::kNoFile)), "No other host"));
  CHECK_FALSE(has(text(Fault::kException, stopped(0)), "No other host"));
  CHECK_FALSE(has(text(Fault::kNoFile, stopped(3)), "No other host"));  // All are on one machine.
}

TEST_CASE("Fault: each has a word, and other words are unknown", "[verdict]") {
  for (int i = 0; i <= static_cast<int>(kLastFault); ++i) {
    CHECK(fault_of_name(fault_name(static_cast<Fault>(i))) == static_cast<Fault>(i));
  }
  CHECK(fault_of_name("of_a_later_release") == Fault::kUnknown);
}

}  // namespace
}  // namespace ddprun::rendezvous
