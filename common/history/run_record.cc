#include "common/history/run_record.h"

#include <algorithm>
#include <iterator>

#include "common/archive/json.h"
#include "common/history/run_record.h"

namespace ddprun {
namespace {

using json = nlohmann::ordered_json;  // A verdict keeps its order.

constexpr const char* kSchema = "ddprun.history/1";
constexpr std::int64_t kLatest = 253'402'300'799;  // The end of the year 9999.
constexpr archive::Bounds kRecordLimits{.text_bytes = std::numeric_limits<std::size_t>::max(),
                                        .count = std::numeric_limits<std::uint64_t>::max()};

// An older ddprun may have left out anything, or written it differently.
using Reader = archive::Reader<json, /*kForgives=*/true>;

// What is nested deeper is left out: to write it anew takes a stack frame for each level.
json parsed(std::string_view text) {
  constexpr int kDepthMax = 64;
  const auto is_kept = [](int depth, json::parse_event_t, json&) { return depth <= kDepthMax; };
  return json::parse(text, is_kept, /*allow_exceptions=*/false);
}

std::string text_of(const json& object) {
  // Arguments and workers' lines may hold any bytes; JSON text may not.
  return object.dump(1, ' ', /*ensure_ascii=*/false, json::error_handler_t::replace) + "\n";
}

// One that is an object, as text.
void take_object(std::string& text, const json& object, const char* name) {
  const auto it = object.find(name);
  if (it == object.end() || !it->is_object()) return;
  text = it->dump(-1, ' ', /*ensure_ascii=*/true, json::error_handler_t::replace);
}

// An account is long and not interpreted here: it is checked and passed on as text.
bool is_plain_object(std::string_view text) {
  const auto is_ascii = [](char c) { return static_cast<unsigned char>(c) < 0x80; };
  return text.starts_with('{') && std::ranges::all_of(text, is_ascii) && json::accept(text);
}

void beginning(auto& a, auto& m) {
  a("run_id", m.run_id), a("command", m.command), a("host", m.host);
  a("started", m.started), a("max_restarts", m.max_restarts);
  a("launcher_pid", m.launcher.pid), a("launcher_started", m.launcher.started);
  a("boot", m.launcher.boot), a("folder", m.folder);
}
void ending(auto& a, auto& m) {
  a("world_size", m.world_size), a("nodes", m.nodes), a("restarts", m.restarts);
}

void take_ending(RunRecord& record, const json& object) {
  const Reader reader(object, kRecordLimits);
  ending(reader, record);
  take_object(record.verdict, object, "verdict");
  std::vector<RunTail> tails;
  reader("tails", tails);
  std::ranges::move(tails, std::back_inserter(record.tails));
}

void put_verdict(auto& writer, const RunRecord& record) {
  json verdict = parsed(record.verdict);
  if (!verdict.is_object()) return;
  writer.sink().name("verdict");
  writer.sink().value(std::move(verdict));
}

json to_json(const RunRecord& record) {
  archive::Writer<archive::Tree<json>> writer(kRecordLimits);
  writer("schema", kSchema), beginning(writer, record);
  // What a signal has begun to end has a verdict already.
  if (record.took_s) {
    writer("took_s", *record.took_s), writer("exit_code", record.exit_code);
    ending(writer, record);
  }
  put_verdict(writer, record);
  if (record.took_s) writer("tails", record.tails), writer.sparse("events", record.events);
  return writer.take();
}

// `text`, an object that is not empty, ends with `end`.
std::string with_account(std::string text, std::string_view end, const RunRecord& record) {
  if (!record.took_s || !is_plain_object(record.account)) return text;
  text.resize(text.size() - end.size());
  return text.append(",\"account\":").append(record.account).append(end);
}

}  // namespace

std::string encode(const RunRecord& record) {
  return with_account(text_of(to_json(record)), "\n}\n", record);
}

std::string encode_plain(const RunRecord& record) {
  const json object = to_json(record);
  return with_account(object.dump(-1, ' ', /*ensure_ascii=*/true, json::error_handler_t::replace),
                      "}", record);
}

Result<RunRecord> decode_record(std::string_view text) {
  const json object = parsed(text);
  RunRecord record;
  try {
    if (!object.is_object()) throw archive::BadField{"schema"};
    archive::Reader(object).constant("schema", kSchema);
  } catch (const archive::BadField& bad) {
    return archive::failure_of(bad, "the record of a run");
  }
  const Reader reader(object, kRecordLimits);
  beginning(reader, record);
  record.started = std::clamp<std::int64_t>(record.started, 0, kLatest);
  if (!object.contains("took_s")) {
    take_object(record.verdict, object, "verdict");
    return record;
  }
  reader("took_s", record.took_s.emplace()), reader("exit_code", record.exit_code);
  take_ending(record, object);
  take_object(record.account, object, "account");
  reader("events", record.events);
  return record;
}

RunRecord summary_of(RunRecord record) {
  record.account.clear(), record.tails.clear(), record.events.clear();
  json verdict = parsed(record.verdict);
  if (!verdict.is_object()) return record;
  verdict.erase("victims");
  record.verdict = verdict.dump(-1, ' ', /*ensure_ascii=*/true, json::error_handler_t::replace);
  return record;
}

bool add_ending(RunRecord& record, std::string_view ending) {
  const std::size_t line = std::min(ending.find('\n'), ending.size());
  const json object = parsed(ending.substr(0, line));
  if (!object.is_object()) return false;
  take_ending(record, object);
  const std::string_view account = ending.substr(std::min(line + 1, ending.size()));
  if (is_plain_object(account)) record.account = account;
  return true;
}

std::string plain_verdict(std::string_view kind, std::string_view run_id, int exit_code,
                          std::string_view text) {
  return text_of({{"kind", kind}, {"run_id", run_id}, {"exit_code", exit_code}, {"text", text}});
}

std::string encode_within(RunRecord record, std::size_t bytes_max) {
  std::string text = encode(record);
  if (text.size() > bytes_max && !record.account.empty()) {
    record.account.clear();
    text = encode(record);
  }
  while (text.size() > bytes_max && !record.tails.empty()) {
    const auto longest = std::ranges::max_element(
        record.tails, {}, [](const RunTail& tail) { return tail.text.size(); });
    const std::size_t keep = longest->text.size() / 2;
    for (RunTail& tail : record.tails) {
      if (tail.text.size() > keep) tail.text.erase(0, tail.text.size() - keep);
    }
    if (keep == 0) record.tails.clear();
    text = encode(record);
  }
  if (text.size() <= bytes_max) return text;
  record.verdict.clear();  // It may list thousands of victims; the exit code is enough.
  return encode(record);
}

}  // namespace ddprun
