#include "rendezvous/journal/run_history.h"

#include <array>
#include <cmath>
#include <ctime>
#include <nlohmann/json.hpp>

#include "common/system/log.h"
#include "rendezvous/run/verdict.h"

namespace ddprun::rendezvous {
namespace {

using json = nlohmann::ordered_json;

// The page shows these, and the daemon's decisions know neither.
void complete_account(RunRecord& record) {
  json account = json::parse(record.account, nullptr, /*allow_exceptions=*/false);
  if (!account.is_object() || !account["run"].is_object()) return;
  std::tm fields{};
  std::array<char, 32> text{};
  const std::time_t started = record.started;
  std::strftime(text.data(), text.size(), "%FT%TZ", ::gmtime_r(&started, &fields));
  account["run"]["started_utc"] = text.data();
  if (!record.command.empty()) account["run"]["command"] = record.command;
  record.account = account.dump(-1, ' ', /*ensure_ascii=*/true, json::error_handler_t::replace);
}

}  // namespace

RunRecord finished_record(EndedRun ended) {
  RunRecord& record = ended.record;
  const std::time_t now = std::time(nullptr);
  record.started = now - static_cast<std::int64_t>(std::llround(record.took_s.value_or(0)));
  record.verdict = verdict_json(ended.verdict, record.run_id, now);
  complete_account(record);
  return std::move(record);
}

void FolderHistory::start(Remember remember) {
  remember_ = std::move(remember);
  for (const std::string& name : folder_.names()) {
    const auto text = folder_.read(name);
    auto record = text ? decode_record(*text) : Failure{Errc::kNotFound, ""};
    if (record && record->took_s) remember_(std::move(*record));
  }
}

void FolderHistory::put(RunRecord record) {
  using Safety = RecordFolder::Safety;
  const std::string name = record_name();
  const auto kept = folder_.put(name, encode_within(record, kLimits.record_bytes),
                                sync_ ? Safety::kMachine : Safety::kProcess);
  folder_.make_room(name);
  if (!kept && !complained_) {
    log::warning("the record of an ended run cannot be kept: " + to_string(kept.error()));
  }
  complained_ = !kept;
  remember_(std::move(record));
}

}  // namespace ddprun::rendezvous
