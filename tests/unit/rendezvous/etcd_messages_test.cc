#include "rendezvous/etcd/etcd_messages.h"

#include <catch2/catch.hpp>
#include <random>

#include "rendezvous/etcd/etcd_client.h"
#include "tests/fuzz/etcd_fuzz.h"

namespace ddprun::rendezvous {
namespace {

using Endpoints = std::vector<EtcdEndpoint>;

TEST_CASE("Etcd messages: a login is read, and nothing that would break a header", "[etcd]") {
  CHECK(etcd::log_in("root", "a \"b\"").path == "/v3/auth/authenticate");
  CHECK(etcd::log_in("root", "a \"b\"").body == R"({"name":"root","password":"a \"b\""})");
  CHECK_FALSE(etcd::log_in("root", "\xff").body.empty());
  CHECK(etcd::read_login(R"({"header":{},"token":"abc.17"})").value() == "abc.17");
  for (const char* bad : {"", "{}", R"({"token":1})", R"({"token":""})", R"({"token":"a\r\nX: y"})",
                          R"({"token":"a b"})", R"({"error":"no","token":"a"})"}) {
    INFO(bad);
    CHECK(etcd::read_login(bad).has_error());
  }
  CHECK(etcd::read_login(R"({"token":")" + std::string(9000, 'x') + R"("})").has_error());
}

TEST_CASE("Etcd: base64 is what RFC 4648 says, both ways", "[etcd]") {
  const std::vector<std::pair<std::string, std::string>> known = {{"", ""},
                                                                  {"f", "Zg=="},
                                                                  {"fo", "Zm8="},
                                                                  {"foo", "Zm9v"},
                                                                  {"foob", "Zm9vYg=="},
                                                                  {"fooba", "Zm9vYmE="},
                                                                  {"foobar", "Zm9vYmFy"},
                                                                  {"\xff\xfe", "//4="}};
  for (const auto& [plain, text] : known) {
    CHECK(etcd::base64(plain) == text);
    CHECK(etcd::from_base64(text).value() == plain);
  }
  for (const char* bad : {"Z", "Zg=x", "Z m9", "Zm9v!"}) CHECK(etcd::from_base64(bad).has_error());
}

TEST_CASE("Etcd: requests are what the gateway of 3.4 takes", "[etcd]") {
  CHECK(etcd::grant_lease(2).body == R"({"TTL":"2"})");
  CHECK(etcd::renew_lease(7).path == "/v3/lease/keepalive");
  CHECK(etcd::revoke_lease(7).path == "/v3/lease/revoke");
  CHECK(etcd::revoke_lease(7).body == R"({"ID":"7"})");
  CHECK(etcd::get_range("a", "b", 8).body == R"({"key":"YQ==","limit":"8","range_end":"Yg=="})");
  CHECK(etcd::create("k", "v", 5).body ==
        R"({"compare":[{"create_revision":"0","key":"aw==","result":"EQUAL","target":"CREATE"}],)"
        R"("success":[{"request_put":{"key":"aw==","lease":"5","value":"dg=="}}]})");
  CHECK(etcd::write_if("k", 9, {{"a", "b"}}, {{"c", "d"}}).body ==
        R"({"compare":[{"create_revision":"9","key":"aw==","result":"EQUAL","target":"CREATE"}],)"
        R"("success":[{"request_delete_range":{"key":"Yw==","range_end":"ZA=="}},)"
        R"({"request_put":{"key":"YQ==","value":"Yg=="}}]})");
}

// As a real server of version 3.4 wrote them.
const char* const kGranted =
    R"({"header":{"cluster_id":"3","member_id":"3","revision":"1","raft_term":"2"},)"
    R"("ID":"23240355","TTL":"2"})";
const char* const kRenewed =
    R"({"result":{"header":{"revision":"2","raft_term":"2"},"ID":"23240355","TTL":"2"}})";
const char* const kFound =
    R"({"header":{"revision":"5"},"kvs":[{"key":"Zm9v","create_revision":"2",)"
    R"("mod_revision":"2","version":"1","value":"YmFy"}],"more":true,"count":"2"})";
const char* const kWon = R"({"header":{"revision":"10"},"succeeded":true,"responses":[{}]})";

TEST_CASE("Etcd: answers are understood, absent fields are zero", "[etcd]") {
  CHECK(etcd::read_lease(kGranted)->id == 23240355);
  CHECK(etcd::read_lease(kRenewed)->ttl_seconds == 2);
  CHECK(etcd::read_lease(R"({"result":{"header":{},"ID":"7"}})")->ttl_seconds == 0);
  const auto range = etcd::read_range(kFound);
  REQUIRE(range.has_value());
  CHECK(range->more);
  CHECK(range->found.at(0).key == "foo");
  CHECK(range->found.at(0).value == "bar");
  CHECK(range->found.at(0).create_revision == 2);
  CHECK(etcd::read_range(R"({"header":{}})")->found.empty());
  CHECK(etcd::read_outcome(kWon)->succeeded);
  CHECK_FALSE(etcd::read_outcome(R"({"header":{"revision":"3"}})")->succeeded);
  const auto failed = etcd::read_outcome(R"({"error":"etcdserver: request timed out","code":14})");
  REQUIRE(failed.has_error());
  CHECK(failed.error().context == "etcd says: etcdserver: request timed out");
}

TEST_CASE("Etcd: damaged answers break no promise", "[etcd][fuzz]") {
  std::mt19937 random(5);
  const auto feed = [](const std::string& text) {
    fuzz::fuzz_etcd(reinterpret_cast<const std::uint8_t*>(text.data()), text.size());
  };
  for (const std::string& real :
       {std::string(kGranted), std::string(kRenewed), std::string(kFound), std::string(kWon),
        etcd::manifest_text({3, 4}), std::string("http://[::1]:2379,http://a")}) {
    for (int round = 0; round < 3'000; ++round) {
      std::string damaged = real;
      for (unsigned n = random() % 4; n > 0; --n) {
        const std::size_t at = random() % damaged.size();
        damaged[at] = "0123456789-\"{}[],:ez="[random() % 21];
      }
      feed(damaged);
    }
  }
  SUCCEED("nothing aborted");
}

TEST_CASE("Etcd: endpoints are plain HTTP, several with commas", "[etcd]") {
  CHECK(parse_etcd_endpoints("http://a:1,http://10.0.0.1/,http://[::1]:99").value() ==
        Endpoints{{"a", 1}, {"10.0.0.1", 2379}, {"::1", 99}});
  for (const char* bad : {"", "a:1", "http://", "http://a:x", "http://a:70000", "http://[::1",
                          "http://a,", "http://u@a", "http://a/path"}) {
    INFO(bad);
    CHECK(parse_etcd_endpoints(bad).has_error());
  }
  CHECK(parse_etcd_endpoints("https://a:3,http://b").value() ==
        std::vector<EtcdEndpoint>{{"a", 3, true}, {"b", 2379, false}});
}

}  // namespace
}  // namespace ddprun::rendezvous
