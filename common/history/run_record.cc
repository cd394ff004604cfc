#include "common/history/run_record.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace ddprun {
namespace {

using json = nlohmann::ordered_json;  // A verdict keeps its order.

constexpr const char* kSchema = "ddprun.history/1";
constexpr std::int64_t kLatest = 253'402'300'799;  // The end of the year 9999.

json to_json(const RunTail& tail) {
  return {{"rank", tail.rank}, {"stream", tail.stream}, {"text", tail.text}, {"end", tail.end}};
}

json to_json(const RunEventText& event) {
  return {{"at_s", event.at_s},
          {"level", event.is_trouble ? "warning" : "info"},
          {"text", event.text}};
}

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

// What is missing, or of another type, is as good as nothing: an older ddprun may have written it.
template <class T>
T value_of(const json& object, const char* name, T otherwise) {
  const auto it = object.find(name);
  if (it == object.end()) return otherwise;
  const bool fits = std::is_same_v<T, std::string> ? it->is_string()
                    : std::is_integral_v<T>        ? it->is_number_integer()
                                                   : it->is_number();
  return fits ? it->get<T>() : otherwise;
}

std::vector<RunTail> tails_from(const json& object) {
  std::vector<RunTail> tails;
  const auto it = object.find("tails");
  if (it == object.end() || !it->is_array()) return tails;
  for (const json& tail : *it) {
    if (!tail.is_object()) continue;
    tails.push_back({value_of<int>(tail, "rank", -1), value_of<std::string>(tail, "stream", ""),
                     value_of<std::string>(tail, "text", ""),
                     value_of<std::uint64_t>(tail, "end", 0)});
  }
  return tails;
}

std::vector<RunEventText> events_from(const json& object) {
  std::vector<RunEventText> events;
  const auto it = object.find("events");
  if (it == object.end() || !it->is_array()) return events;
  for (const json& event : *it) {
    if (!event.is_object()) continue;
    events.push_back({value_of<double>(event, "at_s", 0),
                      value_of<std::string>(event, "level", "") == "warning",
                      value_of<std::string>(event, "text", "")});
  }
  return events;
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

void take_ending(RunRecord& record, const json& object) {
  record.world_size = value_of<int>(object, "world_size", record.world_size);
  record.nodes = value_of<int>(object, "nodes", record.nodes);
  record.restarts = value_of<int>(object, "restarts", record.restarts);
  take_object(record.verdict, object, "verdict");
  for (RunTail& tail : tails_from(object)) record.tails.push_back(std::move(tail));
}

void put_object(json& object, const char* name, const std::string& text) {
  json part = parsed(text);
  if (part.is_object()) object[name] = std::move(part);
}

json to_json(const RunRecord& record) {
  const LauncherLife& life = record.launcher;
  json object = {{"schema", kSchema},         {"run_id", record.run_id},
                 {"command", record.command}, {"host", record.host},
                 {"started", record.started}, {"max_restarts", record.max_restarts},
                 {"launcher_pid", life.pid},  {"launcher_started", life.started},
                 {"boot", life.boot},         {"folder", record.folder}};
  if (!record.took_s) {  // What a signal has begun to end has a verdict already.
    put_object(object, "verdict", record.verdict);
    return object;
  }
  object["took_s"] = *record.took_s;
  object["exit_code"] = record.exit_code;
  object["world_size"] = record.world_size;
  object["nodes"] = record.nodes;
  object["restarts"] = record.restarts;
  put_object(object, "verdict", record.verdict);
  object["tails"] = json::array();
  for (const RunTail& tail : record.tails) object["tails"].push_back(to_json(tail));
  for (const RunEventText& event : record.events) object["events"].push_back(to_json(event));
  return object;
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
  return with_account(
      object.dump(-1, ' ', /*ensure_ascii=*/true, json::error_handler_t::replace), "}", record);
}

Result<RunRecord> decode_record(std::string_view text) {
  const json object = parsed(text);
  if (!object.is_object() || value_of<std::string>(object, "schema", "") != kSchema) {
    return Failure{Errc::kBadMessage, "decoding the record of a run"};
  }
  RunRecord record{.run_id = value_of<std::string>(object, "run_id", ""),
                   .command = value_of<std::string>(object, "command", ""),
                   .host = value_of<std::string>(object, "host", ""),
                   .started = std::clamp<std::int64_t>(value_of<std::int64_t>(object, "started", 0),
                                                       0, kLatest),
                   .max_restarts = value_of<int>(object, "max_restarts", 0),
                   .launcher = {value_of<int>(object, "launcher_pid", 0),
                                value_of<std::uint64_t>(object, "launcher_started", 0),
                                value_of<std::string>(object, "boot", "")},
                   .folder = value_of<std::string>(object, "folder", "")};
  if (!object.contains("took_s")) {
    take_object(record.verdict, object, "verdict");
    return record;
  }
  record.took_s = value_of<double>(object, "took_s", 0);
  record.exit_code = value_of<int>(object, "exit_code", 0);
  take_ending(record, object);
  take_object(record.account, object, "account");
  record.events = events_from(object);
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
