#include "agent/memory/memory_orders.h"

#include <nlohmann/json.hpp>

namespace ddprun::agent::memory {
namespace {

using nlohmann::json;
using rendezvous::MemoryFill;
using rendezvous::MemoryPeer;

// Names of hosts and nodes may be any bytes.
std::string text_of(const json& object) {
  return object.dump(-1, ' ', false, json::error_handler_t::replace);
}

json to_json(const MemoryPeer& peer) {
  return {{"node", peer.node}, {"host", peer.host}, {"address", peer.address}, {"port", peer.port}};
}

MemoryPeer peer_of(const json& object) {
  return {.node = object.at("node"),
          .host = object.at("host"),
          .address = object.at("address"),
          .port = object.at("port")};
}

template <class T>
Result<T> decoded(std::string_view text, T (*read)(const json&)) {
  try {
    return read(json::parse(text));
  } catch (const json::exception& error) {
    return Failure{Errc::kBadMessage, std::string("reading what the memory server or the agent "
                                                  "sent: ") +
                                          error.what()};
  }
}

}  // namespace

std::string encode(const Order& order) {
  json object{{"node", order.node}};
  if (order.copy_to) object["copy_to"] = to_json(*order.copy_to);
  if (order.fill) object["fill"] = {{"from", to_json(order.fill->from)}, {"as", order.fill->as}};
  return text_of(object);
}

std::string encode(const Report& report) {
  return text_of({{"kind", static_cast<int>(report.kind)},
                  {"why", report.why},
                  {"files", report.files},
                  {"bytes", report.bytes},
                  {"used", report.used}});
}

Result<Order> decode_order(std::string_view text) {
  return decoded<Order>(text, [](const json& object) {
    Order order{.node = object.at("node")};
    if (object.contains("copy_to")) order.copy_to = peer_of(object["copy_to"]);
    if (object.contains("fill")) {
      order.fill = MemoryFill{peer_of(object["fill"].at("from")), object["fill"].at("as")};
    }
    return order;
  });
}

Result<Report> decode_report(std::string_view text) {
  return decoded<Report>(text, [](const json& object) {
    const int kind = object.at("kind");
    if (kind < 0 || kind > static_cast<int>(Report::Kind::kNotCopied)) {
      throw json::other_error::create(500, "unknown kind", &object);
    }
    return Report{.kind = static_cast<Report::Kind>(kind),
                  .why = object.at("why"),
                  .files = object.at("files"),
                  .bytes = object.at("bytes"),
                  .used = object.at("used")};
  });
}

}  // namespace ddprun::agent::memory
