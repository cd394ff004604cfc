#include "bench/programs/barrier_messages.h"

#include <array>
#include <charconv>
#include <cstring>

#include "bench/programs/store_script.h"
#include "tests/support/store_requests.h"

namespace ddprun::bench {
namespace {

std::optional<long> number_in(std::string_view text) {
  long value = 0;
  if (std::from_chars(text.data(), text.data() + text.size(), value).ec != std::errc()) return {};
  return value;
}

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

BarrierMessages tcp_store(bool new_dialect, const std::string& name) {
  const test::StoreRequests to(new_dialect);
  BarrierMessages messages;
  if (new_dialect) {
    messages.hello = to.validate() + to.ping(1);
    messages.hello_reply_bytes = 4;
  }
  messages.arrive = to.add(name + "/count", 1);
  messages.wait = to.wait({name + "/go"});
  messages.release_and_wait = to.set(name + "/go", "1") + messages.wait;
  messages.arrived = [](std::string_view reply) -> std::optional<long> {
    if (reply.size() < 8) return {};
    std::int64_t count = 0;
    std::memcpy(&count, reply.data(), sizeof count);
    return count;
  };
  messages.released = [](std::string_view reply) { return !reply.empty(); };
  return messages;
}

// A stream is what many can wait for and one command ends all waits for.
BarrierMessages redis(const std::string& name) {
  BarrierMessages messages;
  messages.arrive = resp({"INCR", name + "/count"});
  messages.wait = resp({"XREAD", "BLOCK", "0", "STREAMS", name + "/go", "0"});
  messages.release_and_wait = resp({"XADD", name + "/go", "*", "go", "1"}) + messages.wait;
  messages.arrived = [](std::string_view reply) -> std::optional<long> {
    if (!reply.ends_with('\n')) return {};
    return number_in(reply.substr(1));
  };
  messages.released = [](std::string_view reply) { return contains(reply, "*1\r\n"); };
  return messages;
}

std::string base64(std::string_view in) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (std::size_t i = 0; i < in.size(); i += 3) {
    unsigned bits = 0;
    for (std::size_t j = i; j < i + 3; ++j) {
      bits = bits << 8 | (j < in.size() ? static_cast<unsigned char>(in[j]) : 0U);
    }
    for (std::size_t j = 0; j < 4; ++j) {
      out += i + j > in.size() ? '=' : kDigits[bits >> (18 - 6 * j) & 63];
    }
  }
  return out;
}

std::string post(const std::string& path, const std::string& body) {
  return "POST /v3/" + path +
         " HTTP/1.1\r\nHost: etcd\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" +
         body;
}

// etcd does not count; a transaction puts a key of one's own and asks how many there are.
BarrierMessages etcd(const std::string& name, int client) {
  const std::string first = base64(name + "/count/");
  const std::string end = base64(name + "/count0");  // '0' follows '/'.
  const std::string mine = base64(name + "/count/" + std::to_string(client));
  const std::string go = base64(name + "/go");
  BarrierMessages messages;
  messages.arrive = post("kv/txn", R"({"success":[{"requestPut":{"key":")" + mine +
                                       R"("}},{"requestRange":{"key":")" + first +
                                       R"(","range_end":")" + end + R"(","count_only":true}}]})");
  messages.wait =
      post("watch", R"({"create_request":{"key":")" + go + R"(","start_revision":"1"}})");
  messages.release_and_wait = post("kv/put", R"({"key":")" + go + R"("})") + messages.wait;
  messages.arrived = [](std::string_view reply) -> std::optional<long> {
    constexpr std::string_view kCount = R"("count":")";
    const std::size_t at = reply.find(kCount);
    if (at == std::string_view::npos || !contains(reply.substr(at), "}}]}")) return {};
    return number_in(reply.substr(at + kCount.size()));
  };
  messages.released = [](std::string_view reply) { return contains(reply, R"("events")"); };
  return messages;
}

}  // namespace

BarrierMessages barrier_messages(std::string_view protocol, const std::string& name, int client) {
  if (protocol == "redis") return redis(name);
  if (protocol == "etcd") return etcd(name, client);
  return tcp_store(protocol == "new", name);
}

}  // namespace ddprun::bench
