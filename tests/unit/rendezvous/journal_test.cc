#include "rendezvous/journal/journal.h"

#include <catch2/catch.hpp>
#include <random>

#include "rendezvous/coordinator/coordinator.h"

namespace ddprun::rendezvous {
namespace {

using namespace std::chrono_literals;

std::vector<JournalEntry> records() {
  const TimePoint t(std::chrono::seconds(5));
  NodeOffer offer;
  offer.host = "line\nbreak";
  Run run;
  (void)run.step({"a", Join{offer, -1}}, t - std::chrono::seconds(1));
  return {Record{"job", t, {"a", Join{offer, -1}}},
          Record{"job", t, {"a", Failed{0, WorkerDeath{.rank = 1, .exit_code = 7}}}},
          Record{"job", t, {"a", Stopped{0, {}}}},
          Record{"job", t, {"a", Finished{0}}},
          Record{"job", t, {"a", Leave{2, "ctrl-c"}}},
          Record{"job", t, {"a", Away{}}},
          Record{"job", t, {"a", Slots{1, 0, 2, 0, 0, 0}}},
          Record{"job", t, {"a", Unseen{}}},
          Record{"job", t, {"a", Returned{}}},
          Record{"job", t, {"a", Lost{"was silent"}}},
          Record{"job", t, {"a", Drain{"its fans"}}},
          Record{"job", t, {"", Resize{3, "the day is over"}}},
          Record{"job", t, {"", StoodStill{Milliseconds(1500)}}},
          Record{"job", t, {"", Tick{}}},
          Record{"job", t, {"", Cancel{15, "told to end"}}},
          Record{"job", t, {"", Begin{}}},
          Record{"job", t, {"", Recovered{}}},
          ClockChange{"boot 7", t},
          RunSnapshot{"job", t, run}};
}

std::string text_of(const std::vector<JournalEntry>& list) {
  std::string text;
  for (const JournalEntry& record : list) text += encode_record(record);
  return text;
}

TEST_CASE("Journal: every kind of record comes back as it was", "[journal]") {
  const std::string text = text_of(records());
  const Journal journal = decode_journal(text);
  CHECK(journal.entries.size() == records().size());
  CHECK(journal.bytes_good == text.size());
  CHECK(text_of(journal.entries) == text);
}

TEST_CASE("Journal: a record cut short anywhere is not read, those before it are", "[journal]") {
  const std::string text = text_of(records());
  for (std::size_t cut = 0; cut < text.size(); ++cut) {
    const Journal journal = decode_journal(std::string_view(text).substr(0, cut));
    REQUIRE(journal.bytes_good <= cut);
    REQUIRE(text_of(journal.entries) == text.substr(0, journal.bytes_good));
  }
}

TEST_CASE("Journal: one flipped bit ends the reading at the record before", "[journal]") {
  const std::string text = text_of(records());
  std::mt19937 random(1);
  for (int i = 0; i < 2000; ++i) {
    std::string damaged = text;
    const std::size_t at = random() % text.size();
    damaged[at] = static_cast<char>(damaged[at] ^ (1 << random() % 8));
    const Journal journal = decode_journal(damaged);
    REQUIRE(journal.bytes_good <= at);
    REQUIRE(text_of(journal.entries) == text.substr(0, journal.bytes_good));
  }
}

TEST_CASE("Journal: only a run that has ended begins again", "[journal]") {
  const TimePoint t(5s);
  NodeOffer offer;
  offer.config.nnodes_min = offer.config.nnodes_max = 2;
  const std::string joins = encode_record(Record{"job", t, {"a", Join{offer, -1}}});
  const std::string cancels = encode_record(Record{"job", t, {"", Cancel{15, "told to end"}}});
  const std::string begins = encode_record(Record{"job", t, {"", Begin{}}});
  CHECK_FALSE(decode_journal(joins + cancels + begins + joins).refusal);
  for (const std::string& before : {joins, joins + cancels + begins, std::string()}) {
    const Journal journal = decode_journal(before + begins + joins);
    CHECK(journal.refusal.value_or("") ==
          "it begins run 'job' again, which has not ended: it is damaged; move it away, or start "
          "with another state folder");
    CHECK(text_of(journal.entries) == before);
  }
}

// A node joins; the daemon goes on after the next boot; the node has gone with the first one.
std::string journal_of_two_boots() {
  std::string disk;
  Coordinator first;
  TimePoint now{300h};
  first.replay({}, now, "boot 1");
  NodeOffer offer;
  offer.host = "a";
  offer.config.nnodes_min = offer.config.nnodes_max = 2;
  (void)first.on_message(1, encode(AgentMessage(Hello{kProtocolVersion, "x", "a"})), now);
  (void)first.on_message(1, encode(AgentMessage(Join{offer, -1})), now);
  disk += first.take_records();

  Coordinator second;
  now = TimePoint(1h);
  second.replay(decode_journal(disk), now, "boot 2");
  for (const TimePoint end = now + 10min; now < end; now += 500ms) (void)second.on_tick(now);
  return disk + second.take_records();
}

TEST_CASE("Coordinator: a run that is forgotten as a journal is read wants no tick",
          "[coordinator]") {
  const Journal journal = decode_journal(journal_of_two_boots());
  Coordinator next;
  const TimePoint now{2h};
  next.replay(journal, now, "boot 2");
  next.check_invariants();
  (void)next.on_tick(now + 24h);
  next.check_invariants();
  CHECK(next.runs().empty());
}

}  // namespace
}  // namespace ddprun::rendezvous
