#include "common/worker_link.h"

#include "common/archive/json.h"

namespace ddprun::worker_link {
namespace {

constexpr archive::Bounds kLinkLimits{
    .bytes = kMessageBytesMax, .text_bytes = kTextBytesMax, .least = -1, .cuts_texts = true};

}  // namespace

void fields(auto& a, archive::Is<Ready> auto& m) {
  a("version", m.version), a.sparse("min_world", m.min_world);
}
void fields(auto& a, archive::Is<LeftRound> auto& m) { a("round", m.round), a("step", m.step); }
void fields(auto& a, archive::Is<Resumed> auto& m) {
  a("round", m.round), a("step", m.step), a("repeated", m.repeated), a("lost_us", m.lost_us);
}
void fields(auto& a, archive::Is<Seated> auto& m) {
  a("round", m.round), a("restart_count", m.restart_count);
  a("rank", m.rank), a("world_size", m.world_size);
  a("local_rank", m.local_rank), a("local_world_size", m.local_world_size);
  a("group_rank", m.group_rank), a("group_world_size", m.group_world_size);
  a("master_address", m.master_address), a("master_port", m.master_port);
  a.sparse("skip", m.skip), a.sparse("lost_work", m.lost_work);
}
void fields(auto& a, archive::Is<Fence> auto& m) {
  a("round", m.round), a("lost_rank", m.lost_rank), a("why", m.why);
}
void fields(auto& a, archive::Is<Change> auto& m) { a("round", m.round), a("why", m.why); }
void fields(auto& a, archive::Is<Refused> auto& m) { a("why", m.why); }

namespace {

// What is not UTF-8 is left out: a text that was cut may end in the middle of a letter.
std::string encode_any(const auto& message) {
  using archive::json;
  return archive::write_variant<archive::Tree<>>(message, "type", kLinkLimits)
      .dump(-1, ' ', /*ensure_ascii=*/false, json::error_handler_t::ignore);
}

}  // namespace

std::string encode(const WorkerMessage& message) { return encode_any(message); }
std::string encode(const AgentMessage& message) { return encode_any(message); }

Result<WorkerMessage> decode_worker_message(std::string_view datagram) {
  return archive::read_variant<WorkerMessage>(datagram, "type", kLinkLimits);
}
Result<AgentMessage> decode_agent_message(std::string_view datagram) {
  return archive::read_variant<AgentMessage>(datagram, "type", kLinkLimits);
}

}  // namespace ddprun::worker_link
