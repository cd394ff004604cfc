// --rdzv-conf k=v,k=v: parse_rdzv_conf of option_values.h. torchrun hands unknown keys on in
// silence, so that a mistyped join_timeout waits ten minutes; here every key is known or refused.

#include "launcher/options/option_values.h"
#include "launcher/options/suggest.h"

namespace ddprun::launcher {
namespace {

constexpr std::size_t kBytesMax = 4'096;

constexpr const char* kMoreThanZero = "give more than 0 seconds";

struct TimeKey {
  std::string_view name;
  std::optional<Milliseconds> RdzvConf::*member;
  bool may_be_zero = false;
};

constexpr TimeKey kTimeKeys[] = {
    {"join_timeout", &RdzvConf::join_timeout},
    {"last_call_timeout", &RdzvConf::last_call_timeout, true},
    {"close_timeout", &RdzvConf::close_timeout, true},
    {"heartbeat_timeout", &RdzvConf::heartbeat_timeout},
    {"heartbeat_interval", &RdzvConf::heartbeat_interval},
    {"standstill_timeout", &RdzvConf::standstill_timeout, true},
    {"read_timeout", &RdzvConf::read_timeout},
    {"fence_timeout", &RdzvConf::fence_timeout, true},
};

const std::vector<std::string> kKeys = {"join_timeout",
                                        "last_call_timeout",
                                        "close_timeout",
                                        "heartbeat_timeout",
                                        "heartbeat_interval",
                                        "standstill_timeout",
                                        "keep_alive_interval",
                                        "keep_alive_max_attempt",
                                        "read_timeout",
                                        "fence_timeout",
                                        "timeout",
                                        "is_host",
                                        "auth",
                                        "join",
                                        "store_users",
                                        "store_type",
                                        "use_libuv"};

std::string known_keys() {
  std::string text;
  for (const std::string& key : kKeys) text += (text.empty() ? "; keys are " : ", ") + key;
  return text;
}

// torchrun's keys that only mean something together with others.
struct TorchrunKeys {
  std::optional<Milliseconds> keep_alive_interval;
  std::optional<Milliseconds> timeout;  // The static backend's name for join_timeout.
  std::optional<int> keep_alive_attempts;
};

Failure bad_value(std::string_view key, std::string_view value, const std::string& what) {
  return usage(std::string(key) + "=" + std::string(value) + " cannot be: " + what);
}

Result<void> read_word(std::string_view key, std::string_view value, RdzvConf& conf,
                       TorchrunKeys& torchrun) {
  if (key == "timeout" || key == "keep_alive_interval") {
    const Result<Milliseconds> time = parse_seconds(value);
    if (!time) return bad_value(key, value, time.error().context);
    if (*time == Milliseconds::zero()) return bad_value(key, value, kMoreThanZero);
    (key == "timeout" ? torchrun.timeout : torchrun.keep_alive_interval) = *time;
  } else if (key == "keep_alive_max_attempt") {
    const Result<int> attempts = parse_integer(value, 1, 1000);
    if (!attempts) return bad_value(key, value, attempts.error().context);
    torchrun.keep_alive_attempts = *attempts;
  } else if (key == "is_host") {
    const Result<bool> is_host = parse_switch(value);
    if (!is_host) return bad_value(key, value, is_host.error().context);
    conf.is_host = *is_host;
  } else if (key == "auth") {
    if (value != "none" && value != "token") return bad_value(key, value, "give token or none");
    conf.authenticated = value == "token";
  } else if (key == "join") {
    if (value != "now" && value != "restart") return bad_value(key, value, "give now or restart");
    conf.join_at_restart = value == "restart";
  } else if (key == "store_users") {
    if (value != "own" && value != "any") return bad_value(key, value, "give own or any");
    conf.store_for_all_users = value == "any";
  } else if (key == "store_type") {
    if (value != "tcp") return bad_value(key, value, "the store is always tcp");
  } else if (key == "use_libuv") {
    // Says how PyTorch's own server would read its sockets. There is none here; nothing changes.
  } else {
    const std::string meant = did_you_mean(key, kKeys);
    const std::string unknown = "unknown key '" + std::string(key) + "'";
    return usage(unknown + (meant.empty() ? known_keys() : meant));
  }
  return {};
}

Result<void> read_pair(std::string_view key, std::string_view value, RdzvConf& conf,
                       TorchrunKeys& torchrun) {
  for (const TimeKey& known : kTimeKeys) {
    if (known.name != key) continue;
    const Result<Milliseconds> time = parse_seconds(value);
    if (!time) return bad_value(key, value, time.error().context);
    const bool zero = *time == Milliseconds::zero();
    if (zero && !known.may_be_zero) return bad_value(key, value, kMoreThanZero);
    conf.*known.member = *time;
    return {};
  }
  return read_word(key, value, conf, torchrun);
}

// The daemon is told when a node is lost and derives the beats from that; an interval that the user
// gave is turned around. torchrun calls a node lost after keep_alive_max_attempt missed beats.
std::optional<Milliseconds> implied_timeout(const RdzvConf& conf, const TorchrunKeys& torchrun) {
  constexpr int kBeatsInTimeout = 4;  // As rendezvous/protocol/wire.h's.
  if (torchrun.keep_alive_interval || torchrun.keep_alive_attempts) {
    const Milliseconds interval = torchrun.keep_alive_interval.value_or(Milliseconds(5'000));
    return interval * torchrun.keep_alive_attempts.value_or(3);
  }
  if (!conf.heartbeat_interval) return std::nullopt;
  return *conf.heartbeat_interval * kBeatsInTimeout;
}

}  // namespace

Result<RdzvConf> parse_rdzv_conf(std::string_view text) {
  RdzvConf conf;
  TorchrunKeys torchrun;
  if (text.size() > kBytesMax) return usage("it is longer than 4096 bytes");
  while (!text.empty()) {
    const std::size_t comma = text.find(',');
    const std::string_view pair = text.substr(0, comma);
    text.remove_prefix(comma == std::string_view::npos ? text.size() : comma + 1);
    const std::size_t equals = pair.find('=');
    if (equals == std::string_view::npos || equals == 0 || equals + 1 == pair.size()) {
      return usage("'" + std::string(pair) + "' is not KEY=VALUE");
    }
    const Result<void> read =
        read_pair(pair.substr(0, equals), pair.substr(equals + 1), conf, torchrun);
    if (!read) return read.error();
  }
  if (!conf.join_timeout) conf.join_timeout = torchrun.timeout;
  if (!conf.heartbeat_timeout) conf.heartbeat_timeout = implied_timeout(conf, torchrun);
  return conf;
}

}  // namespace ddprun::launcher
