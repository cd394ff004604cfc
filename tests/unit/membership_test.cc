#include "worker_sdk/membership.h"

#include <catch2/catch.hpp>

#include "worker_sdk/shm_team.h"

namespace ddprun::worker_sdk {
namespace {

Hello rank_on(const std::string& host, const std::string& backend = "auto") {
  return {.host = host,
          .domain = "boot of " + host,
          .pid = 7,
          .address = "10.0.0.1",
          .backend = backend};
}

TEST_CASE("Membership: hellos and tables survive the store", "[membership]") {
  Table table = decide({rank_on("a:b\n", "shm"), rank_on("")});
  table.control = {.pid = 1, .fd = 2, .inode = ~std::uint64_t{0}, .bytes = 3};
  table.error = "9:oh no";
  table.culprit = -1;
  const auto decoded = decode_table(encode(table));
  REQUIRE(decoded);
  CHECK(encode(*decoded) == encode(table));
  CHECK(decoded->hellos[0].host == "a:b\n");
  CHECK(decoded->control == table.control);
}

TEST_CASE("Membership: text that is cut, longer or garbled is no table", "[membership]") {
  const std::string text = encode(decide({rank_on("a"), rank_on("b")}));
  for (std::size_t n = 0; n < text.size(); ++n) {
    CAPTURE(n);
    CHECK_FALSE(decode_table(text.substr(0, n)));
  }
  CHECK_FALSE(decode_table(text + "1:x"));
  CHECK_FALSE(decode_table("99999999999999999999:"));
  CHECK_FALSE(decode_table("18446744073709551615:x"));
  CHECK_FALSE(decode_hello("-1:x"));
}

TEST_CASE("Membership: ranks of one host choose shm, others gloo", "[membership]") {
  CHECK(decide({rank_on("a"), rank_on("a")}).backend == "shm");
  CHECK(decide({rank_on("a"), rank_on("a"), rank_on("b")}).backend == "gloo");
  CHECK(decide({rank_on("a", "gloo"), rank_on("a", "gloo")}).backend == "gloo");
  // Two containers of one host and name, in different namespaces.
  Hello elsewhere = rank_on("a");
  elsewhere.domain += "'s container";
  CHECK(decide({rank_on("a"), elsewhere}).backend == "gloo");
  const std::vector<Hello> many(static_cast<std::size_t>(kShmRanksMax) + 1, rank_on("a"));
  CHECK(decide(many).backend == "gloo");
}

TEST_CASE("Membership: shm that cannot be is refused and says why", "[membership]") {
  const Table apart = decide({rank_on("a", "shm"), rank_on("b", "shm")});
  CHECK(apart.backend.empty());
  CHECK(apart.culprit == 1);
  CHECK(apart.error.find("rank 1 on b") != std::string::npos);
  const std::vector<Hello> many(static_cast<std::size_t>(kShmRanksMax) + 1, rank_on("a", "shm"));
  CHECK_FALSE(decide(many).error.empty());
}

TEST_CASE("Membership: different wishes are refused and say who wants what", "[membership]") {
  const Table table = decide({rank_on("a", "shm"), rank_on("a", "shm"), rank_on("c", "gloo")});
  CHECK(table.error ==
        "rank 2 on c wants the backend gloo where rank 0 on a wants the backend shm");
  CHECK(table.culprit == 2);
}

TEST_CASE("Membership: local ranks count the ranks of one's own host", "[membership]") {
  const std::vector<Hello> hellos{rank_on("a"), rank_on("b"), rank_on("a"), rank_on("a")};
  CHECK(local_place(hellos, 0).rank == 0);
  CHECK(local_place(hellos, 3).rank == 2);
  CHECK(local_place(hellos, 3).size == 3);
  CHECK(local_place(hellos, 1).rank == 0);
  CHECK(local_place(hellos, 1).size == 1);
}

}  // namespace
}  // namespace ddprun::worker_sdk
