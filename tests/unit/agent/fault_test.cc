#include "agent/health/fault.h"

#include <catch2/catch.hpp>
#include <csignal>

#include "rendezvous/protocol/wire.h"

namespace ddprun::agent {
namespace {

using rendezvous::fault_name;

std::string fault(int exit_code, int signal, std::string_view words, bool oom = false) {
  WorkerDeath death;
  death.exit_code = exit_code;
  death.signal = signal;
  return fault_name(classify(death, words, oom));
}

constexpr const char* kPython =
    "Traceback (most recent call last):\n  File \"train.py\", line 3, in <module>\n    step()\n";

TEST_CASE("Fault: a status alone", "[fault]") {
  CHECK(fault(7, 0, "") == "exit");
  CHECK(fault(7, 0, "epoch 3 of 9") == "exit");
  CHECK(fault(0, SIGTERM, "") == "signal");
  CHECK(fault(0, SIGKILL, "") == "signal");
  CHECK(fault(0, SIGKILL, "MemoryError", true) == "out_of_memory");
  for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) {
    CHECK(fault(0, signal, "") == "crash");
  }
}

TEST_CASE("Fault: Python's last exception says what it was", "[fault]") {
  const auto python = [](const std::string& last) { return fault(1, 0, kPython + last); };
  CHECK(python("ValueError: boom") == "exception");
  CHECK(python("ModuleNotFoundError: No module named 'flash'") == "import_error");
  CHECK(python("ImportError: libcudart.so.12: cannot open shared object file") == "import_error");
  CHECK(python("MemoryError") == "no_memory");
  CHECK(python("OSError: [Errno 28] No space left on device: 'x'") == "no_space");
  CHECK(python("OSError: [Errno 24] Too many open files: 'x'") == "no_descriptors");
  CHECK(python("RuntimeError: [/x/pair.cc:534] Connection closed by peer [10.0.0.1]:1") ==
        "peer_lost");
  CHECK(fault(1, 0, "  File \"x.py\", line 1\n    def\n       ^\nSyntaxError: invalid syntax") ==
        "syntax_error");
  // What was printed before, and survived, does not count.
  CHECK(
      fault(1, 0, std::string("ImportError: no flash, slow path\n") + kPython + "KeyError: 'a'") ==
      "exception");
  CHECK(fault(3, 0, "ImportError: no flash, slow path\nloss 3") == "exit");
  CHECK(fault(4, 0, kPython + std::string("KeyError: 'a'\ngoing on")) == "exit");
  CHECK(fault(1, 0, kPython + std::string("KeyError: 'a'\n[W] shutting down")) == "exception");
}

TEST_CASE("Fault: C++ and the loader", "[fault]") {
  CHECK(fault(0, SIGABRT,
              "terminate called after throwing an instance of 'std::runtime_error'\n"
              "  what():  loss is NaN") == "exception");
  CHECK(fault(0, SIGABRT,
              "terminate called after throwing an instance of 'std::bad_alloc'\n"
              "  what():  std::bad_alloc") == "no_memory");
  CHECK(fault(0, SIGABRT, "uncaught std::bad_alloc: std::bad_alloc\n./train(+0x12) [0x7f]") ==
        "no_memory");
  CHECK(fault(0, SIGABRT,
              "uncaught std::runtime_error: CUDA out of memory. Tried to allocate 2 GiB\n"
              "/opt/train(+0x12)[0x7f]\n/lib/libc.so.6(abort+0xd3)[0x7f]") == "gpu_memory");
  CHECK(fault(0, SIGSEGV, "SIGSEGV: stack overflow\n./train(+0x12) [0x7f]") == "stack_overflow");
  CHECK(fault(127, 0,
              "./x: error while loading shared libraries: libx.so: cannot open shared "
              "object file: No such file or directory") == "missing_library");
  CHECK(fault(127, 0, "sh: 1: exec: ./train: not found") == "cannot_start");
  CHECK(fault(126, 0, "sh: 1: ./train: Permission denied") == "cannot_start");
  CHECK(fault(1, 0, "/usr/bin/python3: No module named nosuch") == "import_error");
  CHECK(fault(1, 0, "cp: ./train: Permission denied") == "exit");
}

TEST_CASE("Fault: victims of others name them where they can", "[fault]") {
  const std::string sdk = "rank 0 on a: all_reduce #17 (f32 x 4, sum): ";
  struct {
    std::string words;
    const char* fault;
    int blames;
  } const cases[] = {
      {sdk + "no sign of rank 2 on b (after 503 ms)", "timed_out", 2},
      {sdk + "no sign of ranks 3 (b), 5 (c) (after 503 ms)", "timed_out", 3},
      {sdk + "lost rank 12 on b", "peer_lost", 12},
      {sdk + "rank 2 on b has died", "peer_lost", 2},
      {sdk + "rank 2 on b has left the job", "peer_lost", 2},
      {sdk + "rank 1 on b has given up because of rank 2 on c", "peer_lost", 2},
      {sdk + "rank 1 on b had given up on barrier #3", "timed_out", 1},
      {sdk + "rank 1 on b called abort()", "peer_lost", 1},
      {sdk + "this rank called abort(): aborted", "aborted", -1},
      {sdk + "rank 1 on b called barrier #3 where ...: ranks disagree", "mismatch", -1},
      {"write: Broken pipe", "peer_lost", -1},
      {"rank 1 has lost interest", "exit", -1},
      {"no sign of rank ", "timed_out", -1},
  };
  for (const auto& c : cases) {
    INFO(c.words);
    CHECK(fault(1, 0, c.words) == c.fault);
    CHECK(rank_blamed(c.words) == c.blames);
  }
}

TEST_CASE("Fault: only who failed of itself did so because of what it computed", "[fault]") {
  const agent::WorkerFate fate{.work = "step 7, shard 3", .can_skip = true};
  const auto blames_work = [&](int code, int signal, bool is_its_doing = false) {
    WorkerDeath death;
    death.exit_code = code;
    death.signal = signal;
    add_work(fate, is_its_doing, death);
    CHECK(death.can_skip == !death.work.empty());
    return !death.work.empty();
  };
  CHECK(blames_work(1, 0));
  CHECK(blames_work(0, SIGSEGV));
  CHECK(blames_work(0, SIGKILL, /*is_its_doing=*/true));
  CHECK_FALSE(blames_work(0, SIGKILL));
  CHECK_FALSE(blames_work(0, SIGTERM));
  CHECK_FALSE(blames_work(0, 0));
  WorkerDeath stopped;
  stopped.exit_code = 1;
  stopped.stopped_by_us = true;
  add_work(fate, false, stopped);
  CHECK(stopped.work.empty());
}

TEST_CASE("Fault: the page says why a collective failed, whatever the program made of it",
          "[fault]") {
  const auto with = [](Fault fault, ProgressPage::Failure failure, int code = 5) {
    WorkerDeath death;
    death.exit_code = code;
    death.fault = fault;
    add_fate({.collective = 41, .steps = 12, .failure = failure, .peer = 3}, death);
    CHECK(death.collective == 41);
    CHECK(death.steps == 12);
    CHECK((death.blames == 3) == (death.fault != fault || fault == Fault::kPeerLost));
    return std::string(fault_name(death.fault));
  };
  CHECK(with(Fault::kExit, ProgressPage::kPeerLost) == "peer_lost");
  CHECK(with(Fault::kException, ProgressPage::kMismatch) == "mismatch");
  CHECK(with(Fault::kUnknown, ProgressPage::kTimedOut) == "timed_out");  // We stopped it.
  CHECK(with(Fault::kPeerLost, ProgressPage::kPeerLost) == "peer_lost");
  CHECK(with(Fault::kExit, ProgressPage::kNone) == "exit");
  CHECK(with(Fault::kExit, ProgressPage::kOther) == "exit");
  // Its own end explains more.
  CHECK(with(Fault::kOutOfMemory, ProgressPage::kPeerLost) == "out_of_memory");
  CHECK(with(Fault::kCrash, ProgressPage::kPeerLost) == "crash");
  CHECK(with(Fault::kException, ProgressPage::kAborted) == "exception");
  CHECK(with(Fault::kExit, ProgressPage::kAborted) == "aborted");
  // A worker that ended well has lost no peer, but may have aborted the others.
  CHECK(with(Fault::kUnknown, ProgressPage::kPeerLost, 0) == "unknown");
  CHECK(with(Fault::kUnknown, ProgressPage::kAborted, 0) == "aborted");
}

TEST_CASE("Fault: what we have ended because it was stuck is stuck, whatever it said", "[fault]") {
  WorkerDeath crashed{.signal = SIGABRT, .detail = "uncaught", .fault = Fault::kCrash, .blames = 2};
  add_stall("", crashed);
  CHECK(crashed.fault == Fault::kCrash);
  add_stall("it computes", crashed);
  CHECK(crashed == WorkerDeath{.signal = SIGABRT,
                               .detail = "uncaught",
                               .fault = Fault::kStuck,
                               .evidence = "it computes"});
  WorkerDeath well;
  add_stall("it computes", well);
  CHECK(well.fault == Fault::kUnknown);
}

TEST_CASE("Fault: who ends with a report of an exception is about to end", "[fault]") {
  const std::string traceback = "Traceback (most recent call last):";
  CHECK(ends_in_exception({"step 1", traceback, "  File \"x\", line 1", "ValueError: boom"}));
  CHECK(ends_in_exception({"terminate called after throwing an instance of 'int'"}));
  CHECK_FALSE(ends_in_exception({}));
  CHECK_FALSE(ends_in_exception({"ValueError: boom"}));
  // It was logged, and the program went on.
  CHECK_FALSE(ends_in_exception({traceback, "  File \"x\"", "ValueError: boom", "trying again"}));
}

}  // namespace
}  // namespace ddprun::agent
