#include "rendezvous/journal/journal.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>

#include "common/assert.h"
#include "rendezvous/protocol/json_text.h"

namespace ddprun::rendezvous {
namespace {

using nlohmann::json;

constexpr std::size_t kChecksumDigits = 8;

std::uint32_t crc32(std::string_view bytes) {
  static const std::array<std::uint32_t, 256> table = [] {
    std::array<std::uint32_t, 256> t{};
    for (std::uint32_t i = 0; i < t.size(); ++i) {
      t[i] = i;
      for (int bit = 0; bit < 8; ++bit) t[i] = t[i] >> 1 ^ (t[i] & 1 ? 0xEDB88320u : 0);
    }
    return t;
  }();
  std::uint32_t crc = ~0u;
  for (const char c : bytes) crc = crc >> 8 ^ table[(crc ^ static_cast<unsigned char>(c)) & 0xff];
  return ~crc;
}

std::string checksum(std::string_view bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  const std::uint32_t crc = crc32(bytes);
  for (int shift = 28; shift >= 0; shift -= 4) text += kDigits[crc >> shift & 15];
  return text;
}

void write_text(JsonText& out, const char* name, std::string_view text) {
  out.name(name);
  out.text(text);
}

void write_time(JsonText& out, TimePoint when) {
  out.name("t_ns");
  out.whole(when.time_since_epoch().count());
}

// An agent's message is recorded as the agent sent it; the other records are the daemon's own.
struct ToJson {
  JsonText& out;
  void operator()(const Heartbeat&) const { DDPRUN_ASSERT(!"a heartbeat is not recorded"); }
  void operator()(const Lost& lost) const { write_text(out, "lost", lost.how); }
  void operator()(const Tick&) const { out.name("tick"), out.truth(true); }
  void operator()(const Begin&) const { out.name("begin"), out.truth(true); }
  void operator()(const Recovered&) const { out.name("recovered"), out.truth(true); }
  void operator()(const Returned&) const { out.name("returned"), out.truth(true); }
  void operator()(const Unseen&) const { out.name("unseen"), out.truth(true); }
  void operator()(const StoodStill& still) const {
    out.name("stood_still_ms"), out.whole(still.how_long.count());
  }
  void operator()(const Cancel& cancel) const {
    write_text(out, "cancel", cancel.reason);
    out.name("signal"), out.whole(cancel.signal);
  }
  void operator()(const Drain& drain) const { write_text(out, "drain", drain.reason); }
  void operator()(const Resize& resize) const {
    write_text(out, "resize", resize.reason);
    out.name("nodes"), out.whole(resize.nodes);
  }
  void operator()(const auto& message) const {
    write_text(out, "said", encode(AgentMessage(message)));
  }
};

template <class T>
std::optional<T> field(const json& object, const char* name) {
  const auto it = object.find(name);
  if (it == object.end()) return std::nullopt;
  if constexpr (std::is_same_v<T, std::string>) {
    if (!it->is_string()) return std::nullopt;
  } else {
    if (!it->is_number_integer() && !it->is_boolean()) return std::nullopt;
  }
  return it->template get<T>();
}

bool read_message(const std::string& message_text, RunEvent& event) {
  const Result<AgentMessage> message = decode_agent_message(message_text);
  if (!message) return false;
  return std::visit(
      [&](const auto& m) {
        if constexpr (std::is_same_v<std::decay_t<decltype(m)>, Hello>)
          return false;
        else
          return event.what = m, true;
      },
      *message);
}

bool read_event(const json& object, RunEvent& event) {
  if (const auto message_text = field<std::string>(object, "said"))
    return read_message(*message_text, event);
  if (const auto how = field<std::string>(object, "lost")) return event.what = Lost{*how}, true;
  if (object.contains("tick")) return event.what = Tick{}, true;
  if (object.contains("begin")) return event.what = Begin{}, true;
  if (object.contains("recovered")) return event.what = Recovered{}, true;
  if (object.contains("returned")) return event.what = Returned{}, true;
  if (object.contains("unseen")) return event.what = Unseen{}, true;
  if (const auto ms = field<std::int64_t>(object, "stood_still_ms")) {
    // A year; what is beyond is nonsense.
    if (*ms < 0 || *ms > 31'536'000'000) return false;
    return event.what = StoodStill{Milliseconds(*ms)}, true;
  }
  if (const auto why = field<std::string>(object, "drain")) return event.what = Drain{*why}, true;
  const auto resized = field<std::string>(object, "resize");
  const auto nodes = field<int>(object, "nodes");
  if (resized && nodes) return event.what = Resize{*nodes, *resized}, true;
  const auto reason = field<std::string>(object, "cancel");
  const auto signal = field<int>(object, "signal");
  if (reason && signal) return event.what = Cancel{*signal, *reason}, true;
  return false;
}

// A distance from a clock's zero that no clock reaches would overflow when times are added.
std::optional<TimePoint> time_of(const json& object) {
  constexpr std::int64_t kMax = std::int64_t{100} * 365 * 86'400 * 1'000'000'000;
  const auto when = field<std::int64_t>(object, "t_ns");
  if (!when || *when > kMax || *when < -kMax) return std::nullopt;
  return TimePoint(Duration(*when));
}

std::optional<JournalEntry> decode_entry(const json& object) {
  const auto when = time_of(object);
  if (!when) return std::nullopt;
  if (const auto clock = field<std::string>(object, "clock")) return ClockChange{*clock, *when};
  const auto run = field<std::string>(object, "run");
  if (!run) return std::nullopt;
  if (const auto text = field<std::string>(object, "snapshot")) {
    Result<Run> restored = Run::restore(*text, *when);
    if (!restored) return std::nullopt;
    return RunSnapshot{*run, *when, std::move(*restored)};
  }
  const auto node = field<std::string>(object, "node");
  Record record{*run, *when, {node.value_or(""), Tick{}}};
  if (!node || !read_event(object, record.event)) return std::nullopt;
  return record;
}

// The JSON of one line, if its checksum is right.
std::optional<json> decode_line(std::string_view line) {
  if (line.size() <= kChecksumDigits || line[kChecksumDigits] != ' ') return std::nullopt;
  const std::string_view body = line.substr(kChecksumDigits + 1);
  if (checksum(body) != line.substr(0, kChecksumDigits)) return std::nullopt;
  json object = json::parse(body, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) return std::nullopt;
  return object;
}

std::string line_of(JsonText out) {
  out.close('}');
  const std::string body = out.take();
  return checksum(body) + " " + body + "\n";
}

void write_entry(JsonText& out, const Record& record) {
  write_text(out, "run", record.run_id);
  write_text(out, "node", record.event.node);
  write_time(out, record.when);
  std::visit(ToJson{out}, record.event.what);
}

void write_entry(JsonText& out, const RunSnapshot& snapshot) {
  write_text(out, "run", snapshot.run_id);
  write_time(out, snapshot.when);
  write_text(out, "snapshot", snapshot.run.snapshot(snapshot.when));
}

void write_entry(JsonText& out, const ClockChange& change) {
  write_text(out, "clock", change.clock);
  write_time(out, change.when);
}

// Understands `object` as the next line of `journal`; false if it cannot.
bool take(const json& object, Journal& journal) {
  const auto format = field<int>(object, "format");
  if (format) {  // Also if a snapshot follows that did not become a journal of its own.
    journal.format = *format;
    return *format <= kJournalFormat;
  }
  std::optional<JournalEntry> entry = decode_entry(object);
  if (!entry) return false;
  journal.entries.push_back(std::move(*entry));
  return true;
}

// Reads lines until the end, or the first one that is not whole or not understood.
Journal read_lines(std::string_view bytes) {
  Journal journal;
  for (;;) {
    const std::string_view rest = bytes.substr(journal.bytes_good);
    const std::size_t end = rest.find('\n');
    if (end == std::string_view::npos) return journal;
    const std::optional<json> line = decode_line(rest.substr(0, end));
    if (!line) return journal;
    if (!take(*line, journal)) {
      // Whole, and yet not understood: this is not damage.
      journal.refusal = "it was written by a newer ddprun-rendezvous (journal format " +
                        std::to_string(journal.format) + ", this one knows " +
                        std::to_string(kJournalFormat) +
                        "); start that version again, or another state folder";
      return journal;
    }
    journal.bytes_good += end + 1;
  }
}

const Record* begin_in(const JournalEntry& entry) {
  const Record* const record = std::get_if<Record>(&entry);
  return record && std::holds_alternative<Begin>(record->event.what) ? record : nullptr;
}

// A record that begins a run anew although the run goes on cannot be ours: its nodes would be lost
// without notice. Only a replay shows that, and it is made only if a run begins anew.
void refuse_wrong_begins(Journal& journal) {
  std::vector<JournalEntry>& entries = journal.entries;
  if (std::none_of(entries.begin(), entries.end(), begin_in)) return;
  Replay replay;
  for (auto entry = entries.begin(); entry != entries.end(); ++entry) {
    if (replay.take(*entry)) continue;
    const std::string why = "it begins run '" + begin_in(*entry)->run_id +
                            "' again, which has not ended: it is damaged; move it away, or "
                            "start with another state folder";
    if (!journal.refusal) journal.refusal = why;
    entries.erase(entry, entries.end());
    return;
  }
}

}  // namespace

std::string journal_header() {
  JsonText out;
  out.open('{');
  write_text(out, "journal", "ddprun");
  out.name("format"), out.whole(kJournalFormat);
  return line_of(std::move(out));
}

std::string encode_record(const JournalEntry& entry) {
  JsonText out;
  out.open('{');
  std::visit([&](const auto& what) { write_entry(out, what); }, entry);
  return line_of(std::move(out));
}

Journal decode_journal(std::string_view bytes) {
  Journal journal = read_lines(bytes);
  refuse_wrong_begins(journal);
  return journal;
}

bool Replay::take(const JournalEntry& entry) {
  return std::visit([&](const auto& what) { return read(what); }, entry);
}

void Replay::rebase(TimePoint to) {
  for (auto& [run_id, run] : runs) {
    Result<Run> moved = Run::restore(run.snapshot(now), to);
    DDPRUN_ASSERT(moved.has_value());
    run = std::move(*moved);
  }
  now = to;
}

// The time runs backwards only if a daemon has changed the clock, as after a boot, without
// recording the change.
void Replay::reach(TimePoint when) {
  if (when < now) rebase(when);
  now = when;
}

bool Replay::read(const Record& record) {
  const bool begins = std::holds_alternative<Begin>(record.event.what);
  if (begins && runs[record.run_id].state() != Run::State::kEnded) return false;
  reach(record.when);
  (void)runs[record.run_id].step(record.event, now);
  return true;
}

bool Replay::read(const RunSnapshot& snapshot) {
  reach(snapshot.when);
  runs[snapshot.run_id] = snapshot.run;
  return true;
}

bool Replay::read(const ClockChange& change) {
  if (change.clock != clock) rebase(change.when);
  clock = change.clock;
  reach(change.when);
  return true;
}

}  // namespace ddprun::rendezvous
