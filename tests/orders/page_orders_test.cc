// The agent's notice on a progress page, and what a worker reports there, on memory as weakly
// ordered as C++ allows: the files of agent and SDK themselves.

#include <atomic>
#include <catch2/catch.hpp>
#include <cstring>
#include <optional>

#include "agent/health/progress_files.h"
#include "common/system/signals.h"
#include "tests/orders/explorer.h"
#include "worker_sdk/worker/loss_listener.h"

namespace ddprun {
namespace {

using orders::expect;
using orders::explore;
using orders::Program;

ProgressPage page;

Program on_page(std::vector<std::function<void()>> threads) {
  return {.before =
              [] {
                std::memset(static_cast<void*>(&page), 0, sizeof page);
                orders::watch(&page, sizeof page);
              },
          .threads = std::move(threads)};
}

void notify_loss() { agent::write_loss(page, 3, "gone"); }

bool is_whole(const std::optional<worker_sdk::LossNotice>& word) {
  return word && word->rank == 3 && word->text == "gone";
}

TEST_CASE("Orders: a word of the agent that is seen is seen whole") {
  const auto read = [] {
    const auto word = worker_sdk::read_loss(page);
    expect(!word || is_whole(word), "half a word");
  };
  CHECK_THAT(explore(on_page({notify_loss, read})).text(), Catch::StartsWith("all well in all"));
}

TEST_CASE("Orders: who listens hears the agent's word, and does not sleep for ever") {
  const auto listen = [] {
    static const std::atomic<bool> stopping{false};
    expect(is_whole(worker_sdk::await_loss(page, stopping)), "half a word");
  };
  CHECK_THAT(explore(on_page({notify_loss, listen})).text(), Catch::StartsWith("all well in all"));
  CHECK_THAT(explore(on_page({notify_loss, listen, listen})).text(),
             Catch::StartsWith("all well in all"));
}

TEST_CASE("Orders: who is to stop listening wakes up") {
  static std::atomic<bool> stopping;
  Program program = on_page({[] { stopping.store(true), ring(page.bell); },
                             [] { expect(!worker_sdk::await_loss(page, stopping), "a word"); }});
  program.before = [before = program.before] {
    before();
    stopping = false;
    orders::watch(&stopping, sizeof stopping);
  };
  CHECK_THAT(explore(program).text(), Catch::StartsWith("all well in all"));
}

}  // namespace
}  // namespace ddprun
