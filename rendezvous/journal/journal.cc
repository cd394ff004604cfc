#include "rendezvous/journal/journal.h"

#include <algorithm>
#include <array>
#include <optional>

#include "common/archive/json.h"
#include "common/assert.h"

namespace ddprun::rendezvous {
namespace {

using archive::json;

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

constexpr archive::Bounds kEntryLimits{.text_bytes = std::numeric_limits<std::size_t>::max()};

using Writer = archive::Writer<archive::JsonText>;
using Reader = archive::Reader<>;

// The field by which the daemon's own events differ from each other, and from agents' messages.
constexpr const char* key_of(const Lost&) { return "lost"; }
constexpr const char* key_of(const Tick&) { return "tick"; }
constexpr const char* key_of(const Begin&) { return "begin"; }
constexpr const char* key_of(const Recovered&) { return "recovered"; }
constexpr const char* key_of(const Returned&) { return "returned"; }
constexpr const char* key_of(const Unseen&) { return "unseen"; }
constexpr const char* key_of(const StoodStill&) { return "stood_still_ms"; }
constexpr const char* key_of(const Cancel&) { return "cancel"; }
constexpr const char* key_of(const Drain&) { return "drain"; }
constexpr const char* key_of(const Resize&) { return "resize"; }

void event_fields(auto& a, archive::Is<Lost> auto& m) { a(key_of(m), m.how); }
void event_fields(auto& a, archive::Is<StoodStill> auto& m) { a(key_of(m), m.how_long); }
void event_fields(auto& a, archive::Is<Cancel> auto& m) {
  a(key_of(m), m.reason), a("signal", m.signal);
}
void event_fields(auto& a, archive::Is<Drain> auto& m) { a(key_of(m), m.reason); }
void event_fields(auto& a, archive::Is<Resize> auto& m) {
  a(key_of(m), m.reason), a("nodes", m.nodes);
}
template <class A>
void event_fields(A& a, auto& mark) {  // Whatever its value is.
  if constexpr (!A::kReads) a(key_of(mark), true);
}

template <class What>
constexpr bool kIsMessage = std::is_constructible_v<AgentMessage, What>;

// An agent's message is recorded as the agent sent it.
void write_event(Writer& writer, const auto& what) {
  if constexpr (kIsMessage<std::decay_t<decltype(what)>>) {
    writer("said", encode(AgentMessage(what)));
  } else {
    event_fields(writer, what);
  }
}
void write_event(Writer& /*writer*/, const Heartbeat& /*what*/) {
  DDPRUN_ASSERT(!"a heartbeat is not recorded");
}

bool read_message(const Reader& reader, RunEvent& event) {
  std::string text;
  reader("said", text);
  const Result<AgentMessage> message = decode_agent_message(text);
  if (!message || std::holds_alternative<Hello>(*message)) return false;
  std::visit(
      [&]<class M>(const M& m) {
        if constexpr (!std::is_same_v<M, Hello>) event.what = m;
      },
      *message);
  return true;
}

template <class What>
bool read_as(const Reader& reader, RunEvent& event) {
  if constexpr (!kIsMessage<What>) {
    What what;
    if (!reader.find(key_of(what))) return false;
    event_fields(reader, what);
    return event.what = std::move(what), true;
  }
  return false;
}

template <class... Whats>
bool read_event(const Reader& reader, RunEvent& event, const std::variant<Whats...>&) {
  if (reader.find("said")) return read_message(reader, event);
  return (read_as<Whats>(reader, event) || ...);
}

std::optional<JournalEntry> decode_entry(const json& object) {
  const Reader reader(object, kEntryLimits);
  TimePoint when{};
  std::string run, clock, text, node;
  reader("t_ns", when);
  if (reader.find("clock")) return reader("clock", clock), ClockChange{clock, when};
  reader("run", run);
  if (reader.find("snapshot")) {
    reader("snapshot", text);
    Result<Run> restored = Run::restore(text, when);
    if (!restored) return std::nullopt;
    return RunSnapshot{run, when, std::move(*restored)};
  }
  reader("node", node);
  Record record{run, when, {node, Tick{}}};
  if (!read_event(reader, record.event, record.event.what)) return std::nullopt;
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

std::string line_of(Writer& writer) {
  const std::string body = writer.take();
  return checksum(body) + " " + body + "\n";
}

void write_entry(Writer& writer, const Record& record) {
  writer("run", record.run_id), writer("node", record.event.node), writer("t_ns", record.when);
  std::visit([&](const auto& what) { write_event(writer, what); }, record.event.what);
}
void write_entry(Writer& writer, const RunSnapshot& snapshot) {
  writer("run", snapshot.run_id), writer("t_ns", snapshot.when);
  writer("snapshot", snapshot.run.snapshot(snapshot.when));
}
void write_entry(Writer& writer, const ClockChange& change) {
  writer("clock", change.clock), writer("t_ns", change.when);
}

// Understands `object` as the next line of `journal`; false if it cannot.
bool take(const json& object, Journal& journal) {
  try {
    // Also if a snapshot follows that did not become a journal of its own.
    const Reader reader(object);
    if (reader.find("format")) {
      reader("format", journal.format);
      return journal.format <= kJournalFormat;
    }
    std::optional<JournalEntry> entry = decode_entry(object);
    if (!entry) return false;
    journal.entries.push_back(std::move(*entry));
    return true;
  } catch (const archive::BadField&) {
    return false;
  }
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
  Writer writer;
  writer("journal", "ddprun"), writer("format", kJournalFormat);
  return line_of(writer);
}

std::string encode_record(const JournalEntry& entry) {
  Writer writer;
  std::visit([&](const auto& what) { write_entry(writer, what); }, entry);
  return line_of(writer);
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
