#pragma once
// Lines of workers' output: cut out of a stream of bytes, folded if ranks print the same, prefixed
// and formatted; and what a user chooses of them. Pure.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "common/time.h"

namespace ddprun::agent {

// Cuts a stream of bytes, which may arrive in pieces of any size, into lines. Pure; copies only
// what a piece leaves unfinished. One for each stream of each worker, fed by Output.
//
//   "step 1\n"        a line
//   "10%\r20%\r\n"    progress "10%", progress "20%", then the line "20%": the last state is kept
//   "text\r\n"        a line
//   "tail" <end>      a line, as is progress that nothing followed
constexpr std::size_t kLineBytesMax = std::size_t{64} * 1024;

class LineSink {
 public:
  virtual ~LineSink() = default;
  virtual void on_line(std::string_view line) = 0;  // Without its end of line.
  virtual void on_piece(
      std::string_view piece) = 0;  // Of a line above kLineBytesMax; more of it follows.
  virtual void on_progress(std::string_view state) = 0;  // To be overwritten by what comes next.
};

class LineSplitter {
 public:
  // What the sink is given is valid only until it returns.
  void feed(std::string_view bytes, LineSink& sink);

  // The stream has ended: gives what is left as a line.
  void finish(LineSink& sink);

  // What has come since the last end of a line, such as a prompt.
  std::string_view unfinished() const { return partial_; }

 private:
  void end_line(std::string_view rest, LineSink& sink);
  std::string_view take_progress(std::string_view bytes, LineSink& sink);
  std::string_view cut(std::string_view text, LineSink& sink);

  std::string partial_;   // Since the last '\n' or '\r'.
  std::string progress_;  // The last progress since the last '\n'.
};

// Equal lines of many ranks become one, on request: "[0-7] x8: text". Pure.
//
// A line waits until every rank that is there has printed it, or for `delay`; those behind it wait
// with it, so that each rank's lines come out in its order. A rank's line joins an equal one that
// waits only if that one comes after all that this rank has waiting.
class LineFold {
 public:
  struct Line {
    std::set<int> ranks;
    int source = 0;  // The source that was given to add() with the first of these lines.
    int kind = 0;
    std::string text;
    bool whole = true;
  };

  explicit LineFold(Duration delay, std::size_t bytes_max = std::size_t{1} << 20)
      : delay_(delay), bytes_max_(bytes_max) {}

  // Counts the open streams of this rank: one begins, one has ended.
  void enter(int rank) { ++present_[rank]; }
  void leave(int rank);

  // Adds a line of `rank`. A piece of an over-long line is not folded, nor are lines of different
  // kinds of streams.
  void add(int rank, Line line, TimePoint now);

  // The next line that has waited long enough, was printed by all, or must make room; with `all`,
  // simply the next.
  std::optional<Line> take(TimePoint now, bool all = false);

  std::optional<TimePoint> deadline() const;

 private:
  struct Waiting {
    Line line;
    TimePoint due;
  };
  using Key = std::string;
  static Key key_of(const Line& line);
  bool printed_by_all(const std::set<int>& ranks) const;

  Duration delay_;
  std::size_t bytes_max_;
  std::map<int, int> present_;  // Streams of each rank.
  std::deque<Waiting> waiting_;
  std::uint64_t first_ = 0;                         // The number of waiting_.front().
  std::unordered_map<Key, std::uint64_t> numbers_;  // The last one of each text.
  std::map<int, std::uint64_t> last_of_rank_;
  std::size_t bytes_ = 0;
};

// "0-3,6": neighbours as ranges.
std::string rank_ranges(const std::set<int>& ranks);

// What stands before each line of a worker. Pure. Used by Output.
constexpr std::string_view kDefaultLinePrefix = "[${role_name}${rank}]:";

struct LinePrefixFacts {
  std::string role_name;
  int rank = 0;
  int local_rank = 0;
  std::string hostname;
};

// Replaces ${role_name} ${rank} ${local_rank} ${hostname}; anything else stays as it is.
std::string expand_line_prefix(std::string_view line_template, const LinePrefixFacts& facts);

// What a worker's line looks like on our console: behind a prefix, or as a JSON object. Pure.
enum class LineFormat {
  kText,  // "[default3]:text"
  kJson,  // {"time":1700000000.123456,"host":"a",...,"rank":3,"stream":"stderr","line":"text"}
};

// The source of a line, ready to be put around it.
struct LineOrigin {
  int rank = 0;
  bool is_stderr = false;
  std::string prefix;     // kText
  std::string json_head;  // kJson: the members before "rank", which all of a node share.
  std::string json_tail;  // kJson: those after the ranks, up to the line's own text.
};

struct LineOriginFacts {
  std::string hostname;
  std::string role;
  int rank = 0;
  int local_rank = 0;
  int restart_count = 0;
  bool is_stderr = false;
};
LineOrigin make_line_origin(const LineOriginFacts& facts, std::string prefix);

// What comes before and after the text of a line. `time`: microseconds since 1970.
std::string json_before(const LineOrigin& origin, std::int64_t time);
std::string json_before_folded(const LineOrigin& origin, const std::set<int>& ranks,
                               std::int64_t time);
std::string_view json_after(bool whole);

// `text` as the inside of a JSON string, valid UTF-8 whatever it was; `scratch` holds it if it had
// to be changed.
std::string_view json_text(std::string_view text, std::string& scratch);

// The beginning or end of a text, at most so many bytes, without a part of a letter of UTF-8.
std::string head_of(std::string_view text, std::size_t max);
std::string tail_of(std::string_view text, std::size_t max);
// Both, where the whole is longer: "ValueError: got 17 ... 5120 bytes ... of 4096". `max`: at least
// 40, else the beginning alone.
std::string shortened(std::string_view text, std::size_t max);

// The last lines of one stream, kept when everything else about a worker is gone, for the
// verdict.
constexpr std::size_t kTailBytes = std::size_t{16} * 1024;
constexpr std::size_t kTailLines = 40;
// A line from this length on is kept as its beginning and its end, half as long: the type of an
// exception is in the one, what follows often in the other.
constexpr std::size_t kTailLineBytes = kTailBytes / 2;

class TailRing {
 public:
  void add(std::string_view line);  // The ring is allocated once.

  // The last kTailLines at most, oldest first; the oldest may lack its beginning.
  std::vector<std::string> lines() const;

  // All that is kept; its last byte is the end()th that was ever added. Each line ends in '\n'.
  std::string text() const;
  std::uint64_t end() const { return end_; }

 private:
  void append(std::string_view bytes);

  std::string ring_;      // At most kTailBytes; each line ends in '\n'.
  std::size_t next_ = 0;  // Where the next byte goes once the ring is full.
  std::uint64_t end_ = 0;
};

// The last kTailLines of `text`, without the ends of line. A last line without one counts.
std::vector<std::string> last_lines_of(std::string_view text);

// What a user chooses of the workers' output and input: where it goes, and behind which prefix. The
// launcher reads it from the command line; Output, LogFile and the Agent act on it.

// Which workers have the launcher's standard input, by local rank; that of the others is /dev/null.
struct StdinChoice {
  bool all = false;
  int local_rank = -1;  // -1: none.
  bool has(int rank) const { return all || rank == local_rank; }
  bool operator==(const StdinChoice&) const = default;
};

// When a log file gives way to a fresh one, as in `--log-rotate 100M:5`. The launcher reads it from
// the command line, LogFile acts on it.

// stdout.log becomes stdout.log.1 before a line that would take it beyond `bytes`, that one becomes
// stdout.log.2, and so on.
struct LogRotation {
  std::uint64_t bytes = 0;  // 0: one file, however long.
  int keep = 5;             // Files beside the one that grows.
  bool operator==(const LogRotation&) const = default;
};

// Which of a worker's two output streams something applies to, as in `--redirects 0:1,1:3`. The
// launcher reads it from the command line, Output acts on it.
struct StreamMap {
  enum Streams : std::uint8_t { kNone = 0, kStdout = 1, kStderr = 2, kBoth = 3 };
  std::uint8_t others = kNone;            // For every local rank not in of_rank.
  std::map<int, std::uint8_t> of_rank{};  // By local rank.

  bool has(int local_rank, Streams stream) const {
    const auto found = of_rank.find(local_rank);
    return ((found == of_rank.end() ? others : found->second) & stream) != 0;
  }
  bool operator==(const StreamMap&) const = default;
};

struct OutputChoice {
  std::string prefix_template = std::string(kDefaultLinePrefix);
  StreamMap redirects = {};                      // -r: to a file and not to the console.
  StreamMap tee = {};                            // -t: to both.
  std::vector<int> local_ranks_filter = {};      // Only these reach the console; empty: all.
  std::vector<std::string> stdout_needles = {};  // --duplicate-stdout-filters, of what is teed.
  std::vector<std::string> stderr_needles = {};
  LogRotation rotation = {};
};

}  // namespace ddprun::agent
