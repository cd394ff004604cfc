#pragma once
// ddprun's own words to the user: one line each, on standard error, never mixed into workers'
// output. A daemon can be told to say them as JSON, one object a line.

#include <functional>
#include <string>
#include <string_view>

namespace ddprun::log {

enum class Level { kDebug, kInfo, kWarning, kError };

enum class Format {
  kText,  // "ddprun: warning: ...": for people.
  kJson,  // {"time":"...","level":"warning","who":"ddprun","text":"...","run":"..."}: for machines.
};

// What a line is about, where that is known. In text it has to be in the words.
struct Fields {
  std::string_view run = {};
  std::string_view node = {};
  std::string_view peer = {};  // An address.
};

// What is said below `level` is dropped. `program` names the program in each line ("ddprun",
// "ddprun node 1"). Call it once, before the first line and again after a fork that changes who
// speaks.
void start(std::string program, Level level, Format format = Format::kText);

void debug(std::string_view text, const Fields& about = {});
bool debugs();  // Whether debug() says anything: where making the text costs something.
// Plain progress: what is being waited for, where to look.
void info(std::string_view text, const Fields& about = {});
// Something the user did not ask for; the run goes on.
void warning(std::string_view text, const Fields& about = {});
// Why this program is about to fail.
void error(std::string_view text, const Fields& about = {});

// For whoever has a line of another kind on the terminal that ddprun's own lines (log.h) go to.

// Called before each line that is said. Empty: nobody is.
void before_lines(std::function<void()> then);

}  // namespace ddprun::log
