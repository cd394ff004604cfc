#include "rendezvous/protocol/wire_relay.h"

#include "common/archive/json.h"

namespace ddprun::rendezvous {
namespace {

constexpr std::size_t kRelayNameMax = 256;
constexpr std::size_t kRelayErrorMax = 4096;
constexpr archive::Bounds kRelayLimits{.depth = 2};  // No message of these has anything inside.
constexpr int kPortMax = 65'535;

void require_field(bool good, const char* name) {
  if (!good) throw archive::BadField{name};
}

}  // namespace

template <class A>
void fields(A& a, archive::Is<Dial> auto& m) {
  a("version", m.version), a.text("run_id", m.run_id, kRelayNameMax);
  a.text("node", m.node, kRelayNameMax), a("port", m.port);
  if constexpr (!A::kReads) return;
  require_field(!m.run_id.empty(), "run_id"), require_field(!m.node.empty(), "node");
  require_field(m.port > 0 && m.port <= kPortMax, "port");
}
template <class A>
void fields(A& a, archive::Is<Meet> auto& m) {
  a("version", m.version), a.text("run_id", m.run_id, kRelayNameMax);
  a.text("node", m.node, kRelayNameMax), a("stream", m.stream);
  a.text("error", m.error, kRelayErrorMax);
  if constexpr (!A::kReads) return;
  require_field(!m.run_id.empty(), "run_id"), require_field(!m.node.empty(), "node");
}
void fields(auto& a, archive::Is<Joined> auto& m) {
  a.constant("is", "joined"), a.text("error", m.error, kRelayErrorMax);
  a.added("again", m.again);
}

std::string encode(const RelayRequest& request) {
  return archive::write_variant<archive::JsonText>(request, "is");
}
std::string encode(const Joined& joined) { return archive::text_of(archive::tree_of(joined)); }

Result<RelayRequest> decode_relay_request(std::string_view body) {
  return archive::read_variant<RelayRequest>(body, "is");
}
Result<Joined> decode_joined(std::string_view body) {
  return archive::read_message<Joined>(body, "'joined'", kRelayLimits);
}

}  // namespace ddprun::rendezvous
