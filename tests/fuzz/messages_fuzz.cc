// Messages of agents and daemons, the journal, and what ranks send before they connect, under any
// bytes: what is understood at all must be the same after it was encoded again.

#include "tests/fuzz/messages_fuzz.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/assert.h"
#include "rendezvous/daemon/http_message.h"
#include "rendezvous/journal/journal.h"
#include "rendezvous/protocol/wire.h"
#include "rendezvous/protocol/wire_request.h"
#include "rendezvous/relay/relay_entry.h"
#include "rendezvous/run/run.h"
#include "rendezvous/run/status.h"
#include "worker_sdk/join/membership.h"

namespace ddprun::fuzz {
namespace {

template <class Decode>
void message(std::string_view bytes, const Decode& decode) {
  const auto understood = decode(bytes);
  if (!understood) return;
  const std::string again = rendezvous::encode(*understood);
  const auto second = decode(again);
  DDPRUN_ASSERT(second.has_value());
  DDPRUN_ASSERT(rendezvous::encode(*second) == again);
}

void journal(std::string_view bytes) {
  std::string again;
  for (const rendezvous::JournalEntry& record : rendezvous::decode_journal(bytes).entries) {
    again += rendezvous::encode_record(record);
  }
  std::string second;
  for (const rendezvous::JournalEntry& record : rendezvous::decode_journal(again).entries) {
    second += rendezvous::encode_record(record);
  }
  DDPRUN_ASSERT(second == again);
}

// Whatever it was restored from, it keeps its invariants.
void go_on(rendezvous::Run run, TimePoint now) {
  using namespace rendezvous;
  const auto step = [&](const RunEvent& event) {
    (void)run.step(event, now);
    run.check_invariants();
  };
  run.check_invariants();
  step({"", Recovered{}});
  const std::vector<NodeStatus> nodes = run.status(now).nodes;
  for (const NodeStatus& node : nodes) {
    step({node.id, Returned{}});
    step({node.id, Heartbeat{run.round()}});
    step({node.id, Failed{run.round(), {}}});
    step({node.id, Stopped{run.round(), {}}});
    step({node.id, Join{{}, run.round()}});
  }
  for (int i = 0; i < 10; ++i) {
    now = std::max(now, run.deadline().value_or(now));
    for (const Run::Silent& silent : run.silent(now)) step({silent.node, Lost{silent.how}});
    step({"", Tick{}});
  }
  for (const NodeStatus& node : nodes) step({node.id, Leave{15, "told to"}});
  step({"", Cancel{15, "told to"}});
}

// Without the checksum that keeps the journal's snapshots whole: what is restored must be able to
// go on.
void snapshot(std::string_view bytes) {
  const TimePoint now(std::chrono::seconds(100));
  auto run = rendezvous::Run::restore(bytes, now);
  if (!run) return;
  const std::string again = run->snapshot(now);
  const auto second = rendezvous::Run::restore(again, now);
  DDPRUN_ASSERT(second.has_value());
  DDPRUN_ASSERT(second->snapshot(now) == again);
  go_on(std::move(*run), now);
}

}  // namespace

void fuzz_messages(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 13) {
    case 0: return message(bytes, rendezvous::decode_agent_message);
    case 1: return message(bytes, rendezvous::decode_daemon_message);
    case 2: return journal(bytes);
    case 3: {
      const auto hello = worker_sdk::decode_introduction(bytes);
      DDPRUN_ASSERT(!hello || worker_sdk::decode_introduction(worker_sdk::encode(*hello)));
      return;
    }
    case 5: return message(bytes, rendezvous::decode_command);
    case 6: return message(bytes, rendezvous::decode_answer);
    case 7: return message(bytes, rendezvous::decode_status);
    case 8: return static_cast<void>(rendezvous::parse_target(bytes));
    case 9: return snapshot(bytes);
    case 10: return message(bytes, rendezvous::decode_relay_request);
    case 11: return message(bytes, rendezvous::decode_joined);
    case 12: return static_cast<void>(rendezvous::parse_entry_request(bytes, "nonce"));
    default: {
      const auto table = worker_sdk::decode_table(bytes);
      DDPRUN_ASSERT(!table || worker_sdk::decode_table(worker_sdk::encode(*table)));
      return;
    }
  }
}

}  // namespace ddprun::fuzz

#ifdef DDPRUN_LIBFUZZER
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  ddprun::fuzz::fuzz_messages(data, size);
  return 0;
}
#endif
