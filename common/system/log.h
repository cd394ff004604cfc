#pragma once
// ddprun's own messages to the user: one line each, on standard error, never mixed into workers'
// output. A daemon can print them as JSON, one object per line.

#include <functional>
#include <string>
#include <string_view>

namespace ddprun::log {

enum class Level { kDebug, kInfo, kWarning, kError };

enum class Format {
  kText,  // "ddprun: warning: ...": for people.
  kJson,  // {"time":"...","level":"warning","who":"ddprun","text":"...","run":"..."}: for machines.
};

// What a line is about, if that is known. In text it has to be in the words.
struct Fields {
  std::string_view run = {};
  std::string_view node = {};
  std::string_view peer = {};  // An address.
};

// Messages below `level` are dropped. `program` names the program in each line ("ddprun", "ddprun
// node 1"). Call it once, before the first line and again after a fork if the child prints under
// another name.
void start(std::string program, Level level, Format format = Format::kText);

void debug(std::string_view text, const Fields& about = {});
bool debugs();  // Whether debug() prints anything; for texts that are expensive to make.
// Plain progress: what is being waited for, where to look.
void info(std::string_view text, const Fields& about = {});
// Something the user did not ask for; the run goes on.
void warning(std::string_view text, const Fields& about = {});
// Why this program is about to fail.
void error(std::string_view text, const Fields& about = {});

// For code that shows a line of another kind on the terminal to which ddprun's own lines go.

// `then` is called before each printed line; an empty one is not.
void before_lines(std::function<void()> then);

}  // namespace ddprun::log
