#pragma once
// What a worker's line looks like on our console: behind a prefix, or as a JSON object. Pure.

#include <cstdint>
#include <set>
#include <string>
#include <string_view>

namespace ddprun::agent {

enum class LineFormat {
  kText,  // "[default3]:text"
  kJson,  // {"time":1700000000.123456,"host":"a",...,"rank":3,"stream":"stderr","line":"text"}
};

// Who says a line, ready to be put around it.
struct Speaker {
  int rank = 0;
  bool is_stderr = false;
  std::string prefix;     // kText
  std::string json_head;  // kJson: the members before "rank", which all of a node share.
  std::string json_tail;  // kJson: those after the ranks, up to the line's own text.
};

struct SpeakerFacts {
  std::string hostname;
  std::string role;
  int rank = 0;
  int local_rank = 0;
  int restart_count = 0;
  bool is_stderr = false;
};
Speaker make_speaker(const SpeakerFacts& facts, std::string prefix);

// What comes before and after the text of a line. `time`: microseconds since 1970.
std::string json_before(const Speaker& speaker, std::int64_t time);
std::string json_before_folded(const Speaker& speaker, const std::set<int>& ranks,
                               std::int64_t time);
std::string_view json_after(bool whole);

// `text` as the inside of a JSON string, valid UTF-8 whatever it was; `scratch` holds it where it
// had to be changed.
std::string_view json_text(std::string_view text, std::string& scratch);

}  // namespace ddprun::agent
