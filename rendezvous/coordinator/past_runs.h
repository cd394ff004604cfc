#pragma once
// The runs of a daemon that have ended, as it answers for them: their records, the newest first,
// bounded in number and in bytes. Pure. Filled in by journal/run_history, which keeps them on disk.

#include <cstddef>
#include <deque>
#include <optional>
#include <string>
#include <string_view>

#include "common/history/run_record.h"

namespace ddprun::rendezvous {

class PastRuns {
 public:
  struct Limits {
    std::size_t runs = 100;
    std::size_t bytes = std::size_t{32} << 20;
  };

  PastRuns() : PastRuns(Limits()) {}
  explicit PastRuns(Limits limits) : limits_(limits) {}

  // As the newest. The oldest go as long as there are too many; this one stays.
  void add(RunRecord record);

  bool empty() const { return runs_.empty(); }
  // {"runs": [...]} in plain ASCII: summaries of all, or the one that `word` means, without its
  // account. A word is a run id, of which the newest counts, or a number in the list.
  std::string list() const;
  std::optional<std::string> one(std::string_view word) const;
  // Of the newest run with that id. Nothing: there is no such run, or it has none.
  std::optional<std::string> account(std::string_view run_id) const;

 private:
  struct Past {
    std::string run_id = {};
    std::string summary = {};
    std::string whole = {};  // Without its account.
    std::string account = {};
    std::size_t bytes() const { return summary.size() + whole.size() + account.size(); }
  };

  const Past* find(std::string_view word) const;

  Limits limits_;
  std::deque<Past> runs_;  // The newest first.
  std::size_t bytes_ = 0;
};

}  // namespace ddprun::rendezvous
