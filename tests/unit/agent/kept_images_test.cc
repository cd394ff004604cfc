#include "agent/process/kept_images.h"

#include <catch2/catch.hpp>
#include <random>
#include <string>

#include "tests/fuzz/agent/kept_fuzz.h"

namespace ddprun::agent {
namespace {

using namespace std::string_literals;

const KeptFacts kFacts = {
    .key = "00ff", .program = "/usr/bin/python3 /home/a/train.py", .modules = 120};
const std::string kText = "ddprun kept 1\00000ff\0/usr/bin/python3 /home/a/train.py\000120\0"s;

TEST_CASE("the facts of a kept fork server come first in its file") {
  CHECK(encode(kFacts) == kText);
  CHECK(decode_kept_facts(kText).value() == kFacts);
  CHECK(decode_kept_facts(kText + std::string(100, '\0') + "conditions").value() == kFacts);
}

TEST_CASE("what is no facts is refused") {
  const std::string bad[] = {""s,
                             "\0"s,
                             "ddprun kept 1"s,
                             "ddprun kept 2\000ff\0python3\0001\0"s,
                             "ddprun kept 1\000ff\0python3\000-1\0"s,
                             "ddprun kept 1\000ff\0python3\0001000001\0"s,
                             "ddprun kept 1\000ff\0python3\0001x\0"s,
                             "ddprun kept 1\0"s + std::string(100, 'f') + "\0python3\0001\0"s,
                             "ddprun kept 1\000ff\0"s + std::string(5000, 'f') + "\0001\0"s,
                             std::string(kKeptFactsMax, 'x')};
  for (const std::string& bytes : bad) {
    INFO(bytes.substr(0, 100));
    CHECK(decode_kept_facts(bytes).has_error());
  }
}

TEST_CASE("a program's name cannot move the facts that follow") {
  KeptFacts facts = kFacts;
  facts.program = "a\0b"s;
  CHECK(decode_kept_facts(encode(facts)).value().modules == 120);
  facts.program = std::string(100'000, 'x');
  CHECK(decode_kept_facts(encode(facts)).value().program.size() < kKeptFactsMax);
}

TEST_CASE("a file is sealed with its facts, and its time can be moved") {
  const auto file = make_image_file();
  REQUIRE(file);
  CHECK_FALSE(is_sealed(file->get()));
  REQUIRE(seal_image(file->get(), kFacts));
  CHECK(is_sealed(file->get()));
  CHECK(facts_of(file->get()).value() == kFacts);
  CHECK(seal_image(file->get(), kFacts).has_error());
  REQUIRE(keep_for(file->get(), std::chrono::minutes(30)));
  const std::time_t first = kept_until(file->get());
  REQUIRE(keep_for(file->get(), std::chrono::minutes(60)));
  CHECK(kept_until(file->get()) >= first + 1800);
}

TEST_CASE("any bytes are facts that can be kept, or refused", "[fuzz]") {
  std::mt19937 random(7);
  for (int i = 0; i < 20'000; ++i) {
    std::string bytes = kText;
    for (unsigned n = random() % 6; n > 0; --n) {
      const std::size_t at = random() % bytes.size();
      random() % 2 == 0 ? void(bytes[at] = static_cast<char>(random()))
                        : void(bytes.insert(at, 1, "\0001x"[random() % 3]));
    }
    fuzz::fuzz_kept(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
  }
  SUCCEED("every promise of kept_fuzz.cc held");
}

}  // namespace
}  // namespace ddprun::agent
