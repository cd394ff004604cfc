#include "rendezvous/coordinator/past_runs.h"

#include <utility>

#include "common/assert.h"
#include "common/text/figures.h"

namespace ddprun::rendezvous {
namespace {

constexpr std::string_view kBegin = "{\"runs\":[", kEnd = "]}";

}  // namespace

void PastRuns::add(RunRecord record) {
  DDPRUN_ASSERT(record.took_s.has_value());
  Past past{.run_id = record.run_id, .account = std::exchange(record.account, "")};
  past.whole = encode_plain(record);
  past.summary = encode_plain(summary_of(std::move(record)));
  bytes_ += past.bytes();
  runs_.push_front(std::move(past));
  while (runs_.size() > 1 && (runs_.size() > limits_.runs || bytes_ > limits_.bytes)) {
    bytes_ -= runs_.back().bytes();
    runs_.pop_back();
  }
}

std::string PastRuns::list() const {
  std::string text(kBegin);
  for (const Past& past : runs_) {
    if (text.size() > kBegin.size()) text += ',';
    text += past.summary;
  }
  return text.append(kEnd);
}

std::optional<std::string> PastRuns::one(std::string_view word) const {
  const Past* past = find(word);
  if (!past) return std::nullopt;
  return std::string(kBegin) + past->whole + std::string(kEnd);
}

std::optional<std::string> PastRuns::account(std::string_view run_id) const {
  for (const Past& past : runs_) {
    if (past.run_id != run_id) continue;
    if (past.account.empty()) return std::nullopt;
    return past.account;
  }
  return std::nullopt;
}

const PastRuns::Past* PastRuns::find(std::string_view word) const {
  for (const Past& past : runs_) {
    if (past.run_id == word) return &past;
  }
  const auto number = as_number<std::size_t>(word);
  if (!number || *number == 0 || *number > runs_.size()) return nullptr;
  return &runs_[*number - 1];
}

}  // namespace ddprun::rendezvous
