#include "agent/memory/memory_orders.h"

#include "common/archive/json.h"
#include "rendezvous/protocol/wire_fields.h"

namespace ddprun::agent::memory {

void fields(auto& a, archive::Is<Order> auto& m) {
  a("node", m.node), a("host", m.host), a("address", m.address);
  a("copy_to", m.copy_to), a("fill", m.fill);
  a("daemon_host", m.daemon_host), a("daemon_port", m.daemon_port);
  a("one_port", m.one_port);
}
void fields(auto& a, archive::Is<Report> auto& m) {
  a.enumerator("kind", m.kind, Report::Kind::kCopied), a("used", m.used);
  a("relayed", m.relayed);
}

std::string encode(const Order& order) { return archive::text_of(archive::tree_of(order)); }
std::string encode(const Report& report) { return archive::text_of(archive::tree_of(report)); }

Result<Order> decode_order(std::string_view text) {
  return archive::read_message<Order>(text, "an order to the memory server");
}
Result<Report> decode_report(std::string_view text) {
  return archive::read_message<Report>(text, "a report of the memory server");
}

}  // namespace ddprun::agent::memory
