#include "rendezvous/journal.h"

#include <catch2/catch.hpp>
#include <random>

namespace ddprun::rendezvous {
namespace {

std::vector<Record> records() {
  const TimePoint t(std::chrono::seconds(5));
  NodeOffer offer;
  offer.host = "line\nbreak";
  return {{"job", t, {"a", Join{offer, -1}}},
          {"job", t, {"a", Failed{0, WorkerDeath{.rank = 1, .exit_code = 7}}}},
          {"job", t, {"a", Stopped{0, {}}}},
          {"job", t, {"a", Finished{0}}},
          {"job", t, {"a", Leave{2, "ctrl-c"}}},
          {"job", t, {"a", Lost{"was silent"}}},
          {"job", t, {"", Tick{}}},
          {"job", t, {"", Begin{}}},
          {"job", t, {"", Recovered{}}},
          {"job", t, {"", Cancel{15, "told to end"}}}};
}

std::string text_of(const std::vector<Record>& list) {
  std::string text;
  for (const Record& record : list) text += encode_record(record);
  return text;
}

TEST_CASE("Journal: every kind of record comes back as it was", "[journal]") {
  const std::string text = text_of(records());
  const Journal journal = decode_journal(text);
  CHECK(journal.records.size() == records().size());
  CHECK(journal.bytes_good == text.size());
  CHECK(text_of(journal.records) == text);
}

TEST_CASE("Journal: a record cut short anywhere is not read, those before it are", "[journal]") {
  const std::string text = text_of(records());
  for (std::size_t cut = 0; cut < text.size(); ++cut) {
    const Journal journal = decode_journal(std::string_view(text).substr(0, cut));
    REQUIRE(journal.bytes_good <= cut);
    REQUIRE(text_of(journal.records) == text.substr(0, journal.bytes_good));
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
    REQUIRE(text_of(journal.records) == text.substr(0, journal.bytes_good));
  }
}

}  // namespace
}  // namespace ddprun::rendezvous
