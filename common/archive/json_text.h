#pragma once
// Writes JSON field by field straight into text, for what is written thousands of times in a
// moment: messages, records and snapshots. It builds no tree, and reads nothing. A sink of a Writer
// (json.h).

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace ddprun::archive {

class JsonText {
 public:
  // Names are ours and need no escapes. A value follows.
  void name(std::string_view name);

  // Any bytes: what is not UTF-8 is replaced, because JSON text may not hold it.
  void text(std::string_view bytes);
  void whole(std::int64_t number);
  void count(std::uint64_t number) { whole(static_cast<std::int64_t>(number)); }  // Below 2^63.
  void truth(bool value);

  void open(char bracket);   // '{' or '['.
  void close(char bracket);  // Its partner.

  std::string take() { return std::move(out_); }

 private:
  void comma();  // Before a name, or a value of a list, that is not the first.

  std::string out_;
  bool first_ = true;   // Of what was opened last.
  bool named_ = false;  // The next value belongs to a name.
};

}  // namespace ddprun::archive
