#include "common/worker_link.h"

#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <type_traits>

namespace ddprun::worker_link {
namespace {

using nlohmann::json;

// One description of each message for both directions.
void fields(auto&& a, const Ready*, auto& m) {
  a("version", m.version), a.added("min_world", m.min_world);
}
void fields(auto&& a, const LeftRound*, auto& m) { a("round", m.round), a("step", m.step); }
void fields(auto&& a, const Resumed*, auto& m) {
  a("round", m.round), a("step", m.step), a("repeated", m.repeated), a("lost_us", m.lost_us);
}
void fields(auto&& a, const Seated*, auto& m) {
  a("round", m.round), a("restart_count", m.restart_count);
  a("rank", m.rank), a("world_size", m.world_size);
  a("local_rank", m.local_rank), a("local_world_size", m.local_world_size);
  a("group_rank", m.group_rank), a("group_world_size", m.group_world_size);
  a("master_address", m.master_address), a("master_port", m.master_port);
  a.added("skip", m.skip);
}
void fields(auto&& a, const Fence*, auto& m) {
  a("round", m.round), a("lost_rank", m.lost_rank), a("why", m.why);
}
void fields(auto&& a, const Change*, auto& m) { a("round", m.round), a("why", m.why); }
void fields(auto&& a, const Refused*, auto& m) { a("why", m.why); }

const char* type_of(const Ready*) { return "ready"; }
const char* type_of(const LeftRound*) { return "left"; }
const char* type_of(const Resumed*) { return "resumed"; }
const char* type_of(const Seated*) { return "seated"; }
const char* type_of(const Fence*) { return "fence"; }
const char* type_of(const Change*) { return "change"; }
const char* type_of(const Refused*) { return "refused"; }

// Puts fields into an object.
class Writer {
 public:
  explicit Writer(json& object) : object_(object) {}

  void operator()(const char* name, const std::string& value) {
    object_[name] = value.substr(0, kTextBytesMax);
  }
  template <class Number>
  void operator()(const char* name, Number value) {
    object_[name] = value;
  }
  void added(const char* name, const std::string& value) {
    if (!value.empty()) (*this)(name, value);
  }
  void added(const char* name, int value) {
    if (value != 0) (*this)(name, value);
  }

 private:
  json& object_;
};

template <class Message>
std::string write(const Message& message) {
  return std::visit(
      []<class M>(const M& m) {
        json object{{"type", type_of(static_cast<const M*>(nullptr))}};
        fields(Writer(object), static_cast<const M*>(nullptr), m);
        return object.dump(-1, ' ', /*ensure_ascii=*/false, json::error_handler_t::ignore);
      },
      message);
}

// Takes fields out of an object; the first that is not what it should be is remembered.
class Reader {
 public:
  explicit Reader(const json& object) : object_(object) {}

  void operator()(const char* name, std::string& value) {
    const json* found = find(name);
    if (!found || !found->is_string()) return reject(name);
    const auto& text = found->get_ref<const std::string&>();
    if (text.size() > kTextBytesMax) return reject(name);
    value = text;
  }
  template <class Number>
  void operator()(const char* name, Number& value) {
    const json* found = find(name);
    if (!found || !found->is_number_integer()) return reject(name);
    const auto wide = found->get<std::int64_t>();
    const bool too_large = found->is_number_unsigned() && wide < 0;
    if (too_large || wide < -1 || wide > std::numeric_limits<Number>::max()) return reject(name);
    value = static_cast<Number>(wide);
  }
  // A field that a peer of an earlier version leaves out.
  template <class Field>
  void added(const char* name, Field& value) {
    if (find(name)) (*this)(name, value);
  }
  const char* bad() const { return bad_; }

 private:
  const json* find(const char* name) const {
    const auto it = object_.find(name);
    return it == object_.end() ? nullptr : &*it;
  }
  void reject(const char* name) {
    if (!bad_) bad_ = name;
  }

  const json& object_;
  const char* bad_ = nullptr;
};

Failure bad(const std::string& what) { return {Errc::kBadMessage, "the worker link: " + what}; }

template <class M, class... Others>
Result<std::variant<M, Others...>> read(const json& object, const std::string& type,
                                        const std::variant<M, Others...>*) {
  std::optional<Result<std::variant<M, Others...>>> found;
  const auto attempt = [&]<class T>(const T* tag) {
    if (found || type != type_of(tag)) return;
    T message;
    Reader reader(object);
    fields(reader, tag, message);
    if (reader.bad()) {
      found = bad(std::string("bad field \"") + reader.bad() + "\"");
    } else {
      found = std::variant<M, Others...>(std::move(message));
    }
  };
  attempt(static_cast<const M*>(nullptr));
  (attempt(static_cast<const Others*>(nullptr)), ...);
  if (!found) return bad("unknown type");
  return *found;
}

template <class Message>
Result<Message> decode(std::string_view datagram) {
  if (datagram.size() > kMessageBytesMax) return bad("message too long");
  constexpr int kDepthMax = 2;
  const json::parser_callback_t shallow = [](int depth, json::parse_event_t, json&) {
    return depth <= kDepthMax;
  };
  const json object = json::parse(datagram, shallow, /*allow_exceptions=*/false);
  if (!object.is_object()) return bad("no JSON object");
  const auto type = object.find("type");
  if (type == object.end() || !type->is_string()) return bad("bad field \"type\"");
  return read(object, type->get<std::string>(), static_cast<const Message*>(nullptr));
}

}  // namespace

std::string encode(const WorkerMessage& message) { return write(message); }
std::string encode(const AgentMessage& message) { return write(message); }

Result<WorkerMessage> decode_worker_message(std::string_view datagram) {
  return decode<WorkerMessage>(datagram);
}
Result<AgentMessage> decode_agent_message(std::string_view datagram) {
  return decode<AgentMessage>(datagram);
}

}  // namespace ddprun::worker_link
