#include "rendezvous/protocol/wire_request.h"

#include <algorithm>
#include <array>

#include "common/archive/json.h"

namespace ddprun::rendezvous {
namespace {

constexpr std::size_t kReasonBytesMax = 4096;
constexpr archive::Bounds kCommandLimits{.depth = 2};  // No message of these has anything inside.

constexpr std::array<const char*, 7> kVerbs = {"status", "drain", "cancel", "report",
                                               "resize", "watch", "history"};

}  // namespace

const char* name_of(Command::Verb verb) { return kVerbs.at(static_cast<std::size_t>(verb)); }

static std::string to_archive(Command::Verb verb) { return name_of(verb); }
static bool from_archive(const std::string& word, Command::Verb& verb) {
  const auto* const found = std::ranges::find(kVerbs, word);
  verb = static_cast<Command::Verb>(found - kVerbs.begin());
  return found != kVerbs.end();
}

void fields(auto& a, archive::Is<Command> auto& m) {
  a.constant("is", "command"), a("version", m.version), a("verb", m.verb);
  a.text("run_id", m.run_id, kNameBytesMax), a.text("node", m.node, kNameBytesMax);
  a.text("reason", m.reason, kReasonBytesMax);
  a.added("nodes", m.nodes), a.added("force", m.force);
}
void fields(auto& a, archive::Is<Answer> auto& m) {
  a.constant("is", "report"), a("error", m.error), a("text", m.text), a("more", m.more);
}

std::string encode(const Command& command) { return archive::text_of(archive::tree_of(command)); }
std::string encode(const Answer& answer) { return archive::text_of(archive::tree_of(answer)); }

Result<Command> decode_command(std::string_view body) {
  return archive::read_message<Command>(body, "'command'", kCommandLimits);
}
Result<Answer> decode_answer(std::string_view body) {
  return archive::read_message<Answer>(body, "'report'", kCommandLimits);
}

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
