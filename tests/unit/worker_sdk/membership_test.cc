#include "worker_sdk/join/membership.h"

#include <catch2/catch.hpp>

#include "worker_sdk/shm/shm_team.h"

namespace ddprun::worker_sdk {
namespace {

Introduction rank_on(const std::string& host, const std::string& backend = "auto") {
  return {.host = host,
          .domain = "boot of " + host,
          .network = "network of " + host,
          .pid = 7,
          .address = "10.0.0.1",
          .backend = backend};
}

TEST_CASE("Membership: hellos and tables survive the store", "[membership]") {
  Table table = decide({rank_on("a:b\n", "shm"), rank_on("")});
  table.error = "9:oh no";
  table.culprit = -1;
  const auto decoded = decode_table(encode(table));
  REQUIRE(decoded);
  CHECK(encode(*decoded) == encode(table));
  CHECK(decoded->hellos[0].host == "a:b\n");
  CHECK(decoded->hellos[1].network == "network of ");
  const SegmentName segment{.pid = 1, .fd = 2, .inode = ~std::uint64_t{0}, .bytes = 3};
  CHECK(decode_segment(encode(segment)).value() == segment);
  CHECK_FALSE(decode_segment(""));
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
  CHECK_FALSE(decode_introduction("-1:x"));
}

TEST_CASE("Membership: ranks of one host choose shm, of several cpu, each on its own gloo",
          "[membership]") {
  for (const char* wanted : {"auto", "cpu"}) {
    CHECK(decide({rank_on("a", wanted), rank_on("a", wanted)}).backend == "shm");
    CHECK(decide({rank_on("a", wanted), rank_on("b", wanted)}).backend == "gloo");
    CHECK(decide({rank_on("a", wanted), rank_on("a", wanted), rank_on("b", wanted)}).backend ==
          "cpu");
    // Two containers of one host and name, in different namespaces.
    Introduction elsewhere = rank_on("a", wanted);
    elsewhere.domain += "'s container";
    CHECK(decide({rank_on("a", wanted), elsewhere}).backend == "gloo");
  }
  CHECK(decide({rank_on("a", "gloo"), rank_on("a", "gloo")}).backend == "gloo");
  std::vector<Introduction> many(static_cast<std::size_t>(kShmRanksMax) + 1, rank_on("a"));
  CHECK(decide(many).backend == "gloo");
  many.back() = rank_on("b");
  CHECK(decide(many).backend == "cpu");
}

TEST_CASE("Membership: hosts are told apart by memory, in the order of their first ranks",
          "[membership]") {
  const std::vector<Introduction> hellos{rank_on("b"), rank_on("a"), rank_on("b"), rank_on("c")};
  CHECK(hosts_of(hellos) == std::vector<std::vector<int>>{{0, 2}, {1}, {3}});
}

TEST_CASE("Membership: a rank that ended is lost, whatever else is wrong with shared memory",
          "[membership]") {
  const std::string well = encode(Attachment{}), bad = encode(Attachment{"no space"});
  const std::string lost = encode(Attachment{.problem = "no such process", .ended = 1});
  for (const char* wanted : {"shm", "auto", "cpu"}) {
    CHECK(decide_sharing({well, well}, wanted).shares);
    const Sharing sharing = decide_sharing({bad, well, lost}, wanted);
    CHECK_FALSE(sharing.shares);
    CHECK(sharing.kind == ErrorKind::peer_lost);
    CHECK(sharing.culprit == 1);
    CHECK(sharing.error == "rank 1 ended before all had joined");
    CHECK(decide_sharing({well, "x"}, wanted).kind == ErrorKind::mismatch);
    CHECK(decide_sharing({well, "x"}, wanted).culprit == 1);
  }
  const Sharing without = decide_sharing({well, bad}, "auto");
  CHECK_FALSE(without.shares);
  CHECK(without.error.empty());
  const Sharing refused = decide_sharing({well, bad, bad}, "shm");
  CHECK(refused.kind == ErrorKind::system);
  CHECK(refused.error == "rank 1 cannot share memory: no space");
}

TEST_CASE("Membership: shm that cannot be is refused and says why", "[membership]") {
  const Table apart = decide({rank_on("a", "shm"), rank_on("b", "shm")});
  CHECK(apart.backend.empty());
  CHECK(apart.culprit == 1);
  CHECK(apart.error.find("rank 1 on b") != std::string::npos);
  const std::vector<Introduction> many(static_cast<std::size_t>(kShmRanksMax) + 1,
                                       rank_on("a", "shm"));
  CHECK_FALSE(decide(many).error.empty());
  const std::vector<Introduction> more(static_cast<std::size_t>(kShmRanksMax) + 1,
                                       rank_on("a", "cpu"));
  CHECK_FALSE(decide(more).error.empty());
}

TEST_CASE("Membership: different wishes are refused and say who wants what", "[membership]") {
  const Table table = decide({rank_on("a", "shm"), rank_on("a", "shm"), rank_on("c", "gloo")});
  CHECK(table.error ==
        "rank 2 on c requests the backend gloo, but rank 0 on a requests the backend shm");
  CHECK(table.culprit == 2);
}

TEST_CASE("Membership: local ranks count the ranks of one's own host", "[membership]") {
  const std::vector<Introduction> hellos{rank_on("a"), rank_on("b"), rank_on("a"), rank_on("a")};
  CHECK(local_place(hellos, 0).rank == 0);
  CHECK(local_place(hellos, 3).rank == 2);
  CHECK(local_place(hellos, 3).size == 3);
  CHECK(local_place(hellos, 1).rank == 0);
  CHECK(local_place(hellos, 1).size == 1);
}

}  // namespace
}  // namespace ddprun::worker_sdk
