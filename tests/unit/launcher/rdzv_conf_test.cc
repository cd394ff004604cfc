#include <catch2/catch.hpp>

#include "launcher/options/option_values.h"

namespace ddprun::launcher {
namespace {

using namespace std::chrono_literals;

std::string refusal(const std::string& text) {
  const Result<RdzvConf> conf = parse_rdzv_conf(text);
  return conf ? "(no error)" : conf.error().context;
}

TEST_CASE("RdzvConf: every key that ddprun knows", "[options]") {
  const RdzvConf conf =
      parse_rdzv_conf(
          "join_timeout=600,last_call_timeout=0.5,close_timeout=0,"
          "heartbeat_timeout=2,heartbeat_interval=0.25,read_timeout=60,fence_timeout=0,"
          "standstill_timeout=30,is_host=true,auth=none,store_type=tcp,use_libuv=0")
          .value();
  CHECK(conf.join_timeout == 600s);
  CHECK(conf.last_call_timeout == 500ms);
  CHECK(conf.close_timeout == 0s);
  CHECK(conf.heartbeat_timeout == 2s);
  CHECK(conf.heartbeat_interval == 250ms);
  CHECK(conf.read_timeout == 60s);
  CHECK(conf.fence_timeout == 0s);
  CHECK(conf.standstill_timeout == 30s);
  CHECK(conf.is_host == true);
  CHECK_FALSE(conf.authenticated);
  CHECK(parse_rdzv_conf("").value() == RdzvConf{});
  CHECK(parse_rdzv_conf("auth=token").value().authenticated);
}

TEST_CASE("RdzvConf: torchrun's other names for the same things", "[options]") {
  CHECK(parse_rdzv_conf("timeout=9").value().join_timeout == 9s);
  CHECK(parse_rdzv_conf("timeout=9,join_timeout=5").value().join_timeout == 5s);
  const auto lost_after = [](const char* text) {
    return parse_rdzv_conf(text).value().heartbeat_timeout;
  };
  CHECK(lost_after("keep_alive_interval=2,keep_alive_max_attempt=4") == 8s);
  CHECK(lost_after("keep_alive_interval=2") == 6s);
  CHECK(lost_after("keep_alive_max_attempt=4") == 20s);
  CHECK(lost_after("keep_alive_interval=2,heartbeat_timeout=1") == 1s);
  CHECK(lost_after("heartbeat_interval=0.5") == 2s);
  CHECK_FALSE(lost_after("join_timeout=1"));
  CHECK(refusal("keep_alive_interval=0").starts_with("keep_alive_interval=0 cannot be"));
}

TEST_CASE("RdzvConf: an unknown key is an error with the nearest one", "[options]") {
  CHECK(refusal("join_timout=5") == "unknown key 'join_timout'; did you mean join_timeout?");
  CHECK(refusal("auht=none") == "unknown key 'auht'; did you mean auth?");
  CHECK(refusal("protocol=https")
            .starts_with("unknown key 'protocol'; keys are join_timeout, last_call_timeout, "));
}

TEST_CASE("RdzvConf: wrong pairs and values are refused", "[options]") {
  CHECK(refusal("join_timeout") == "'join_timeout' is not KEY=VALUE");
  CHECK(refusal("=5") == "'=5' is not KEY=VALUE");
  CHECK(refusal("join_timeout=") == "'join_timeout=' is not KEY=VALUE");
  CHECK(refusal("a=1,,b=2").find("KEY=VALUE") == std::string::npos);
  CHECK(refusal("is_host=1,,auth=none") == "'' is not KEY=VALUE");
  CHECK(refusal("join_timeout=soon").starts_with("join_timeout=soon cannot be: give seconds"));
  CHECK(refusal("join_timeout=0") == "join_timeout=0 cannot be: give more than 0 seconds");
  CHECK(refusal("heartbeat_timeout=1e99").starts_with("heartbeat_timeout=1e99 cannot be"));
  CHECK(refusal("is_host=maybe") == "is_host=maybe cannot be: give 1 or 0");
  CHECK(refusal("auth=tls") == "auth=tls cannot be: give token or none");
  CHECK(refusal("store_type=file") == "store_type=file cannot be: the store is always tcp");
  CHECK(refusal("keep_alive_max_attempt=0").starts_with("keep_alive_max_attempt=0 cannot be"));
  CHECK(refusal(std::string(5000, 'x')) == "it is longer than 4096 bytes");
}

}  // namespace
}  // namespace ddprun::launcher
