#pragma once
// One description of each message serves both directions: `fields(archive, message)` is called with
// a Writer to encode and with a Reader to decode. Shared by the messages of agents and daemon
// (wire.cc) and by what the daemon remembers of a run (run/run_report.cc); not included elsewhere.

#include <algorithm>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "rendezvous/protocol/json_text.h"
#include "rendezvous/protocol/wire.h"

namespace ddprun::rendezvous::archive {

using nlohmann::json;

constexpr std::size_t kTextBytesMax = std::size_t{64} * 1024;
constexpr std::size_t kListMax = 200'000;
// Far from where time points overflow, and longer than any machine stays up.
constexpr std::int64_t kTimeDistanceMax = std::int64_t{100} * 365 * 86'400 * 1'000'000'000;

// So little that thousands of such counts can be added up.
constexpr std::uint64_t kCountMax = std::uint64_t{1} << 53;

// Thrown by Reader, caught in decode(): the field that is not what it should be.
struct BadField {
  std::string name;
};

// The object that it writes is open from the beginning; take() closes it.
class Writer {
 public:
  explicit Writer(TimePoint at = {}) : at_(at) { out_.open('{'); }

  std::string take() {
    out_.close('}');
    return out_.take();
  }

  // A field that the first release did not have: if it is missing, the default stays.
  void added(const char* name, const auto& v) { (*this)(name, v); }

  void operator()(const char* name, const std::string& v) { out_.name(name), out_.text(v); }
  void operator()(const char* name, const int& v) { out_.name(name), out_.whole(v); }
  void operator()(const char* name, const bool& v) { out_.name(name), out_.truth(v); }
  void operator()(const char* name, const Milliseconds& v) { (*this)(name, v.count()); }
  void operator()(const char* name, const std::int64_t& v) { out_.name(name), out_.whole(v); }
  void operator()(const char* name, const std::uint64_t& v) {
    (*this)(name, static_cast<std::int64_t>(std::min(v, kCountMax)));
  }
  void operator()(const char* name, const TimePoint& v) { (*this)(name, (v - at_).count()); }
  void operator()(const char* name, const TimeParts& v) { (*this)(name, to_text(v)); }
  void operator()(const char* name, const TimePart& v) { (*this)(name, static_cast<int>(v)); }
  void operator()(const char* name, const TimeParts::Time& v) { (*this)(name, v.count()); }
  void operator()(const char* name, const Fault& v) { out_.name(name), out_.text(fault_name(v)); }
  template <class E>
  void enumerator(const char* name, const E& v, E /*last*/) {
    (*this)(name, static_cast<int>(v));
  }
  template <class T>
  void operator()(const char* name, const std::optional<T>& v) {
    if (v) (*this)(name, *v);
  }
  template <class T>
  void operator()(const char* name, const std::vector<T>& v) {
    list(name, v, [this](const T& item) {
      if constexpr (std::is_same_v<T, std::string>) {
        out_.text(item);
      } else {
        object([&] { fields(*this, item); });
      }
    });
  }
  template <class Key>
  void operator()(const char* name, const std::map<Key, std::string>& v) {
    list(name, v, [this](const auto& item) {
      object([&] { (*this)("key", item.first), (*this)("text", item.second); });
    });
  }
  template <class T>
  void operator()(const char* name, const T& v) {
    out_.name(name);
    object([&] { fields(*this, v); });
  }

  // What is not described by `fields`: `write` is called for each item, and writes one value.
  void list(const char* name, const auto& items, const auto& write) {
    out_.name(name);
    out_.open('[');
    for (const auto& item : items) write(item);
    out_.close(']');
  }
  void object(const auto& write) {
    out_.open('{');
    write();
    out_.close('}');
  }

 private:
  JsonText out_;
  const TimePoint at_;  // Points of time are written as nanoseconds from here.
};

struct Reader {
  const json& object;
  TimePoint at{};
  std::size_t text_bytes_max = kTextBytesMax;

  void added(const char* name, auto& v) const {
    if (object.contains(name)) (*this)(name, v);
  }

  const json& value(const char* name) const {
    const auto it = object.find(name);
    if (it == object.end()) throw BadField{name};
    return *it;
  }
  std::string text(const json& item, const char* name) const {
    if (!item.is_string()) throw BadField{name};
    auto& s = item.get_ref<const std::string&>();
    if (s.size() > text_bytes_max) throw BadField{name};
    return s;
  }
  void operator()(const char* name, std::string& v) const { v = text(value(name), name); }
  void operator()(const char* name, int& v) const {
    const json& number = value(name);
    if (!number.is_number_integer()) throw BadField{name};
    const auto wide = number.get<std::int64_t>();
    if (wide < std::numeric_limits<int>::min() || wide > std::numeric_limits<int>::max()) {
      throw BadField{name};
    }
    v = static_cast<int>(wide);
  }
  void operator()(const char* name, bool& v) const {
    if (!value(name).is_boolean()) throw BadField{name};
    v = value(name).get<bool>();
  }
  void operator()(const char* name, Milliseconds& v) const {
    const json& number = value(name);
    if (!number.is_number_integer()) throw BadField{name};
    const auto count = number.get<std::int64_t>();
    // A year is longer than anything one may wait for, and far from where time points overflow.
    if (count < 0 || count > 31'536'000'000) throw BadField{name};
    v = Milliseconds(count);
  }
  void operator()(const char* name, std::int64_t& v) const {
    if (!value(name).is_number_integer()) throw BadField{name};
    v = value(name).get<std::int64_t>();
  }
  void operator()(const char* name, std::uint64_t& v) const {
    const json& number = value(name);
    if (!number.is_number_unsigned()) throw BadField{name};
    v = number.get<std::uint64_t>();
    if (v > kCountMax) throw BadField{name};
  }
  void operator()(const char* name, TimePoint& v) const {
    std::int64_t distance = 0;
    (*this)(name, distance);
    if (distance < -kTimeDistanceMax || distance > kTimeDistanceMax) throw BadField{name};
    v = at + Duration(distance);
  }
  void operator()(const char* name, TimeParts& v) const {
    const auto parts = parse_time_parts(text(value(name), name));
    if (!parts) throw BadField{name};
    v = *parts;
  }
  void operator()(const char* name, TimePart& v) const {  // A newer ddprun may have more.
    int part = 0;
    (*this)(name, part);
    const bool known = part >= 0 && part < static_cast<int>(kTimeParts);
    v = known ? static_cast<TimePart>(part) : TimePart::kUnknown;
  }
  void operator()(const char* name, TimeParts::Time& v) const {
    std::int64_t count = 0;
    (*this)(name, count);
    if (count < 0 || count > kTimeMax.count()) throw BadField{name};
    v = TimeParts::Time(count);
  }
  void operator()(const char* name, Fault& v) const { v = fault_of_name(text(value(name), name)); }
  template <class E>
  void enumerator(const char* name, E& v, E last) const {
    int number = 0;
    (*this)(name, number);
    if (number < 0 || number > static_cast<int>(last)) throw BadField{name};
    v = static_cast<E>(number);
  }
  template <class T>
  void operator()(const char* name, std::optional<T>& v) const {
    if (object.contains(name)) (*this)(name, v.emplace());
  }
  template <class T>
  void operator()(const char* name, std::vector<T>& v) const {
    const json& list = value(name);
    if (!list.is_array() || list.size() > kListMax) throw BadField{name};
    for (const json& item : list) {
      if constexpr (std::is_same_v<T, std::string>) {
        v.push_back(text(item, name));
      } else {
        if (!item.is_object()) throw BadField{name};
        fields(Reader{item, at, text_bytes_max}, v.emplace_back());
      }
    }
  }
  template <class Key>
  void operator()(const char* name, std::map<Key, std::string>& v) const {
    const json& list = value(name);
    if (!list.is_array() || list.size() > kListMax) throw BadField{name};
    for (const json& item : list) {
      if (!item.is_object()) throw BadField{name};
      const Reader inner{item, at, text_bytes_max};
      Key key{};
      inner("key", key);
      inner("text", v[key]);
    }
  }
  template <class T>
  void operator()(const char* name, T& v) const {
    if (!value(name).is_object()) throw BadField{name};
    fields(Reader{value(name), at, text_bytes_max}, v);
  }
};

template <class M, class A>
concept Is = std::is_same_v<std::remove_const_t<M>, A>;

void fields(auto&& a, Is<RunConfig> auto& m) {
  a("nnodes_min", m.nnodes_min), a("nnodes_max", m.nnodes_max), a("max_restarts", m.max_restarts);
  a("join_timeout_ms", m.join_timeout), a("last_call_ms", m.last_call);
  a("heartbeat_timeout_ms", m.heartbeat_timeout), a("stop_timeout_ms", m.stop_timeout);
  a.added("join_at_restart", m.join_at_restart);
  a.added("standstill_timeout_ms", m.standstill_timeout);
  a.added("min_ranks", m.min_ranks);
}
void fields(auto&& a, Is<NodeOffer> auto& m) {
  a("host", m.host), a("address", m.address), a("store_port", m.store_port);
  a("local_world_size", m.local_world_size), a("role", m.role), a("node_rank", m.node_rank);
  a("hosts_endpoint", m.hosts_endpoint), a("config", m.config);
  a.added("scheduler_step", m.scheduler_step);
  a("memory_port", m.memory_port);
}
void fields(auto&& a, Is<MemoryPeer> auto& m) {
  a("node", m.node), a("host", m.host), a("address", m.address), a("port", m.port);
}
void fields(auto&& a, Is<MemoryFill> auto& m) { a("from", m.from), a("as", m.as); }
void fields(auto&& a, Is<Seat> auto& m) {
  a("round", m.round), a("restart_count", m.restart_count), a("group_rank", m.group_rank);
  a("group_world_size", m.group_world_size), a("base_rank", m.base_rank);
  a("world_size", m.world_size), a("role_base_rank", m.role_base_rank);
  a("role_world_size", m.role_world_size), a("master_address", m.master_address);
  a("master_port", m.master_port), a("members", m.members);
  a.added("workers", m.workers), a.added("skip", m.skip);
  a.added("lost_steps", m.lost_steps);
  a("copy_to", m.copy_to), a("fill", m.fill);
}
void fields(auto&& a, Is<WorkerDeath> auto& m) {
  a("rank", m.rank), a("local_rank", m.local_rank), a("pid", m.pid), a("host", m.host);
  a("exit_code", m.exit_code), a("signal", m.signal), a("stopped_by_us", m.stopped_by_us);
  a("detail", m.detail);
  a.added("fault", m.fault), a.added("evidence", m.evidence), a.added("blames", m.blames);
  a.added("was_failing", m.was_failing);
  a.added("collective", m.collective), a.added("steps", m.steps);
  a.added("work", m.work), a.added("can_skip", m.can_skip);
  a.added("kept_steps", m.kept_steps);
}
void fields(auto&& a, Is<LedgerTotals> auto& m) {
  a("places", m.places), a("wall_us", m.wall), a("parts_us", m.parts);
  a.added("changes", m.changes), a.added("repeated", m.repeated);
}
void fields(auto&& a, Is<Verdict> auto& m) {
  a.enumerator("kind", m.kind, Verdict::Kind::kInterrupted), a("exit_code", m.exit_code),
      a("text", m.text);
  a("first_cause", m.first_cause), a("victims", m.victims);
  a.added("advice", m.advice);
  a.added("ledger", m.ledger);
  a.added("restarts", m.restarts), a.added("again", m.again);
}

}  // namespace ddprun::rendezvous::archive
