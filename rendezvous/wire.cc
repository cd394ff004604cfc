#include "rendezvous/wire.h"

#include <limits>
#include <nlohmann/json.hpp>

namespace ddprun::rendezvous {
namespace {

using nlohmann::json;

constexpr std::size_t kTextBytesMax = std::size_t{64} * 1024;
constexpr std::size_t kListMax = 200'000;

// Thrown by Reader, caught in decode(): the field that is not what it should be.
struct BadField {
  std::string name;
};

// One description of each message serves both directions: `fields(archive, message)` is called with
// a Writer to encode and with a Reader to decode.
struct Writer {
  json object = json::object();

  // A field that the first release did not have: where it is missing, the default stays.
  void added(const char* name, const auto& v) { (*this)(name, v); }

  void operator()(const char* name, const std::string& v) { object[name] = v; }
  void operator()(const char* name, const int& v) { object[name] = v; }
  void operator()(const char* name, const bool& v) { object[name] = v; }
  void operator()(const char* name, const Milliseconds& v) { object[name] = v.count(); }
  void operator()(const char* name, const Verdict::Kind& v) { object[name] = static_cast<int>(v); }
  template <class T>
  void operator()(const char* name, const std::optional<T>& v) {
    if (v) (*this)(name, *v);
  }
  template <class T>
  void operator()(const char* name, const std::vector<T>& v) {
    json list = json::array();
    for (const T& item : v) {
      if constexpr (std::is_same_v<T, std::string>) {
        list.push_back(item);
      } else {
        Writer inner;
        fields(inner, item);
        list.push_back(std::move(inner.object));
      }
    }
    object[name] = std::move(list);
  }
  template <class T>
  void operator()(const char* name, const T& v) {
    Writer inner;
    fields(inner, v);
    object[name] = std::move(inner.object);
  }
};

struct Reader {
  const json& object;

  void added(const char* name, auto& v) const {
    if (object.contains(name)) (*this)(name, v);
  }

  const json& at(const char* name) const {
    const auto it = object.find(name);
    if (it == object.end()) throw BadField{name};
    return *it;
  }
  static std::string text(const json& value, const char* name) {
    if (!value.is_string()) throw BadField{name};
    auto& s = value.get_ref<const std::string&>();
    if (s.size() > kTextBytesMax) throw BadField{name};
    return s;
  }
  void operator()(const char* name, std::string& v) const { v = text(at(name), name); }
  void operator()(const char* name, int& v) const {
    const json& value = at(name);
    if (!value.is_number_integer()) throw BadField{name};
    const auto wide = value.get<std::int64_t>();
    if (wide < std::numeric_limits<int>::min() || wide > std::numeric_limits<int>::max()) {
      throw BadField{name};
    }
    v = static_cast<int>(wide);
  }
  void operator()(const char* name, bool& v) const {
    if (!at(name).is_boolean()) throw BadField{name};
    v = at(name).get<bool>();
  }
  void operator()(const char* name, Milliseconds& v) const {
    const json& value = at(name);
    if (!value.is_number_integer()) throw BadField{name};
    const auto count = value.get<std::int64_t>();
    // A year is longer than anything one may wait for, and far from where time points overflow.
    if (count < 0 || count > 31'536'000'000) throw BadField{name};
    v = Milliseconds(count);
  }
  void operator()(const char* name, Verdict::Kind& v) const {
    int kind = 0;
    (*this)(name, kind);
    if (kind < 0 || kind > static_cast<int>(Verdict::Kind::kInterrupted)) throw BadField{name};
    v = static_cast<Verdict::Kind>(kind);
  }
  template <class T>
  void operator()(const char* name, std::optional<T>& v) const {
    if (object.contains(name)) (*this)(name, v.emplace());
  }
  template <class T>
  void operator()(const char* name, std::vector<T>& v) const {
    const json& list = at(name);
    if (!list.is_array() || list.size() > kListMax) throw BadField{name};
    for (const json& item : list) {
      if constexpr (std::is_same_v<T, std::string>) {
        v.push_back(text(item, name));
      } else {
        if (!item.is_object()) throw BadField{name};
        fields(Reader{item}, v.emplace_back());
      }
    }
  }
  template <class T>
  void operator()(const char* name, T& v) const {
    if (!at(name).is_object()) throw BadField{name};
    fields(Reader{at(name)}, v);
  }
};

template <class M, class A>
concept Is = std::is_same_v<std::remove_const_t<M>, A>;

void fields(auto&& a, Is<RunConfig> auto& m) {
  a("nnodes_min", m.nnodes_min), a("nnodes_max", m.nnodes_max), a("max_restarts", m.max_restarts);
  a("join_timeout_ms", m.join_timeout), a("last_call_ms", m.last_call);
  a("heartbeat_timeout_ms", m.heartbeat_timeout), a("stop_timeout_ms", m.stop_timeout);
  a.added("join_at_restart", m.join_at_restart);
}
void fields(auto&& a, Is<NodeOffer> auto& m) {
  a("host", m.host), a("address", m.address), a("store_port", m.store_port);
  a("local_world_size", m.local_world_size), a("role", m.role), a("node_rank", m.node_rank);
  a("hosts_endpoint", m.hosts_endpoint), a("config", m.config);
}
void fields(auto&& a, Is<Seat> auto& m) {
  a("round", m.round), a("restart_count", m.restart_count), a("group_rank", m.group_rank);
  a("group_world_size", m.group_world_size), a("base_rank", m.base_rank);
  a("world_size", m.world_size), a("role_base_rank", m.role_base_rank);
  a("role_world_size", m.role_world_size), a("master_address", m.master_address);
  a("master_port", m.master_port), a("members", m.members);
}
void fields(auto&& a, Is<WorkerDeath> auto& m) {
  a("rank", m.rank), a("local_rank", m.local_rank), a("pid", m.pid), a("host", m.host);
  a("exit_code", m.exit_code), a("signal", m.signal), a("stopped_by_us", m.stopped_by_us);
  a("detail", m.detail);
}
void fields(auto&& a, Is<Verdict> auto& m) {
  a("kind", m.kind), a("exit_code", m.exit_code), a("text", m.text);
  a("first_cause", m.first_cause), a("victims", m.victims);
}

void fields(auto&& a, Is<Hello> auto& m) {
  a("version", m.version), a("run_id", m.run_id), a("node", m.node);
}
void fields(auto&& a, Is<Join> auto& m) { a("offer", m.offer), a("after_round", m.after_round); }
void fields(auto&& a, Is<Heartbeat> auto& m) { a("round", m.round); }
void fields(auto&& a, Is<Finished> auto& m) { a("round", m.round); }
void fields(auto&& a, Is<Failed> auto& m) { a("round", m.round), a("death", m.death); }
void fields(auto&& a, Is<Stopped> auto& m) { a("round", m.round), a("deaths", m.deaths); }
void fields(auto&& a, Is<Leave> auto& m) { a("signal", m.signal), a("reason", m.reason); }
void fields(auto&& a, Is<Waiting> auto& m) {
  a("ready", m.ready), a("nnodes_min", m.nnodes_min), a("nnodes_max", m.nnodes_max);
  a("left_ms", m.left), a("last_call", m.last_call), a("spare", m.spare), a("text", m.text);
}
void fields(auto&& a, Is<Assign> auto& m) { a("seat", m.seat); }
void fields(auto&& a, Is<StopRound> auto& m) {
  a("round", m.round), a("reason", m.reason), a("final", m.final);
}
void fields(auto&& a, Is<EndRun> auto& m) { a("verdict", m.verdict); }
void fields(auto&& a, Is<Refuse> auto& m) { a("reason", m.reason); }
void fields(auto&& a, Is<Dismiss> auto& m) { a("reason", m.reason); }
void fields(auto&& a, Is<Alive> auto& m) { a.added("beat_ms", m.beat); }

const char* name_of(const Hello*) { return "hello"; }
const char* name_of(const Join*) { return "join"; }
const char* name_of(const Heartbeat*) { return "heartbeat"; }
const char* name_of(const Finished*) { return "finished"; }
const char* name_of(const Failed*) { return "failed"; }
const char* name_of(const Stopped*) { return "stopped"; }
const char* name_of(const Leave*) { return "leave"; }
const char* name_of(const Waiting*) { return "waiting"; }
const char* name_of(const Assign*) { return "assign"; }
const char* name_of(const StopRound*) { return "stop_round"; }
const char* name_of(const EndRun*) { return "end_run"; }
const char* name_of(const Refuse*) { return "refuse"; }
const char* name_of(const Dismiss*) { return "dismiss"; }
const char* name_of(const Alive*) { return "alive"; }

template <class Message>
std::string encode_any(const Message& message) {
  return std::visit(
      [](const auto& m) {
        Writer writer;
        writer.object["is"] = name_of(&m);
        fields(writer, m);
        // Host names and log lines may hold any bytes; JSON text may not.
        return writer.object.dump(-1, ' ', false, json::error_handler_t::replace);
      },
      message);
}

template <class Message, std::size_t I = 0>
Result<Message> decode_as(const std::string& is, const json& object) {
  if constexpr (I == std::variant_size_v<Message>) {
    return Failure{Errc::kBadMessage,
                   "decoding a message of unknown kind '" + is.substr(0, 40) + "'"};
  } else {
    std::variant_alternative_t<I, Message> message;
    if (is != name_of(&message)) return decode_as<Message, I + 1>(is, object);
    try {
      fields(Reader{object}, message);
    } catch (const BadField& bad) {
      return Failure{Errc::kBadMessage, "decoding field '" + bad.name + "' of '" + is + "'"};
    }
    return Message(std::move(message));
  }
}

template <class Message>
Result<Message> decode_any(std::string_view body) {
  // Nesting is bounded by parsing with a callback; no message is deeper than this.
  constexpr int kDepthMax = 8;
  bool deep = false;
  const json object = json::parse(
      body,
      [&](int depth, json::parse_event_t, json&) { return !(deep = deep || depth > kDepthMax); },
      /*allow_exceptions=*/false);
  if (deep || !object.is_object()) {
    return Failure{Errc::kBadMessage, "decoding a message that is not a JSON object"};
  }
  const auto is = object.find("is");
  if (is == object.end() || !is->is_string()) {
    return Failure{Errc::kBadMessage, "decoding field 'is' of a message"};
  }
  return decode_as<Message>(is->get<std::string>(), object);
}

}  // namespace

std::string encode(const AgentMessage& message) { return encode_any(message); }
std::string encode(const DaemonMessage& message) { return encode_any(message); }
Result<AgentMessage> decode_agent_message(std::string_view body) {
  return decode_any<AgentMessage>(body);
}
Result<DaemonMessage> decode_daemon_message(std::string_view body) {
  return decode_any<DaemonMessage>(body);
}

}  // namespace ddprun::rendezvous
