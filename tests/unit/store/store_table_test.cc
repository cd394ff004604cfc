#include "common/store/store_table.h"

#include <catch2/catch.hpp>
#include <limits>

namespace ddprun::store {
namespace {

constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();

TEST_CASE("Store table: what replaces or erases a value returns it", "[store]") {
  StoreTable table({});
  CHECK(table.set("k", "one").value() == std::nullopt);
  CHECK(table.set("k", "two").value() == "one");
  REQUIRE(table.append("k", "three").has_value());
  CHECK(table.erase("k") == "twothree");
  CHECK(table.erase("k") == std::nullopt);
  CHECK(table.find("k") == nullptr);
}

TEST_CASE("Store table: counters do not overflow, and are read as strtoll reads them", "[store]") {
  StoreTable table({});
  CHECK(table.sum("n", -7).value() == -7);
  CHECK(table.find("n") == nullptr);
  REQUIRE(table.set("n", std::to_string(kMost)).has_value());
  CHECK(table.sum("n", 0).value() == kMost);
  CHECK_FALSE(table.sum("n", 1).has_value());
  for (const char* text : {"", " ", "x", "+-1", "9223372036854775808"}) {
    CAPTURE(text);
    REQUIRE(table.set("t", text).has_value());
    CHECK_FALSE(table.sum("t", 1).has_value());
  }
  for (const char* text : {" 1", "1 ", "+1", "1x"}) {
    CAPTURE(text);
    REQUIRE(table.set("t", text).has_value());
    CHECK(table.sum("t", 1).value() == 2);
  }
}

TEST_CASE("Store table: what a limit refuses changes nothing", "[store]") {
  StoreTable table({.key_bytes_max = 8, .value_bytes_max = 10, .keys_max = 2});
  REQUIRE(table.set("k", "0123456789").has_value());
  const Result<std::optional<std::string>> large = table.set("k", "0123456789x");
  REQUIRE(large.has_error());
  CHECK(large.error().context == "storing a key of 1 and a value of 11 bytes");
  CHECK_FALSE(table.set("123456789", "").has_value());
  CHECK_FALSE(table.append("k", "x").has_value());
  CHECK(*table.find("k") == "0123456789");
  REQUIRE(table.reserve(1, 0).has_value());
  CHECK_FALSE(table.set("l", "").has_value());
  CHECK(table.set("k", "").has_value());
  table.release(1, 0);
  CHECK(table.set("l", "").has_value());
  CHECK(table.has_all({"k", "l"}));
  CHECK_FALSE(table.has_all({"k", "m"}));
}

}  // namespace
}  // namespace ddprun::store
