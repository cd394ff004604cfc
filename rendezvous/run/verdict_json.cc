// The JSON form of a verdict.

#include <csignal>
#include <cstring>
#include <nlohmann/json.hpp>

#include "rendezvous/run/status.h"
#include "rendezvous/run/verdict.h"

namespace ddprun::rendezvous {
namespace {

using nlohmann::ordered_json;

ordered_json to_json(const WorkerDeath& death) {
  ordered_json object = {{"rank", death.rank},
                         {"local_rank", death.local_rank},
                         {"host", death.host},
                         {"pid", death.pid}};
  if (death.signal != 0) {
    const char* name = ::sigabbrev_np(death.signal);
    object["signal"] = death.signal;
    object["signal_name"] = name ? "SIG" + std::string(name) : std::to_string(death.signal);
  } else {
    object["exit_code"] = death.exit_code;
  }
  // One that is stuck does not end by itself.
  object["stopped_by_ddprun"] = death.stopped_by_us || death.fault == Fault::kStuck;
  object["fault"] = fault_name(death.fault);
  object["evidence"] = death.evidence;
  object["last_words"] = death.detail;
  if (death.collective > 0) object["collective"] = death.collective;
  if (death.steps > 0) object["steps"] = death.steps;
  if (!death.work.empty()) object["work"] = death.work;
  return object;
}

ordered_json to_json(const LedgerTotals& ledger) {
  const auto seconds = [](TimeParts::Time time) {
    return std::chrono::duration<double>(time).count();
  };
  ordered_json parts = ordered_json::object();
  for (std::size_t i = 0; i < kTimeParts; ++i) {
    parts[name_of(static_cast<TimePart>(i))] = seconds(ledger.parts.times[i]);
  }
  const ordered_json goodput =
      ledger.knows_goodput() ? ordered_json(ledger.goodput()) : ordered_json(nullptr);
  return {{"wall_s", seconds(ledger.wall)},
          {"places", ledger.places},
          {"goodput", goodput},
          {"changes", ledger.changes},
          {"steps_repeated", ledger.repeated},
          {"parts_s", std::move(parts)}};
}

}  // namespace

std::string verdict_json(const Verdict& verdict, std::string_view run_id, std::int64_t timestamp) {
  const std::string words = verdict.first_cause ? verdict.first_cause->detail : "";
  ordered_json object = {{"kind", kind_name(verdict.kind)},
                         {"run_id", run_id},
                         {"exit_code", verdict.exit_code},
                         {"text", verdict.text}};
  if (verdict.first_cause) {
    object["advice"] = verdict.advice;
    object["first_cause"] = to_json(*verdict.first_cause);
  }
  object["victims"] = ordered_json::array();
  for (const WorkerDeath& death : verdict.victims) object["victims"].push_back(to_json(death));
  if (verdict.ledger) object["ledger"] = to_json(*verdict.ledger);
  object["message"] = {{"message", words.empty() ? verdict.text : words},
                       {"errorCode", verdict.exit_code},
                       {"extraInfo", {{"timestamp", std::to_string(timestamp)}}}};
  // Last words may hold any bytes; JSON text may not.
  return object.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace ddprun::rendezvous
