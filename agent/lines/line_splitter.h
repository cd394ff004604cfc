#pragma once
// Cuts a stream of bytes, which may arrive in pieces of any size, into lines. Pure; copies only
// what a piece leaves unfinished. One for each stream of each worker, fed by Output.
//
//   "step 1\n"        a line
//   "10%\r20%\r\n"    progress "10%", progress "20%", then the line "20%": the last state is kept
//   "text\r\n"        a line
//   "tail" <end>      a line, as is progress that nothing followed

#include <cstddef>
#include <string>
#include <string_view>

namespace ddprun::agent {

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

 private:
  void end_line(std::string_view rest, LineSink& sink);
  std::string_view take_progress(std::string_view bytes, LineSink& sink);
  std::string_view cut(std::string_view text, LineSink& sink);

  std::string partial_;   // Since the last '\n' or '\r'.
  std::string progress_;  // The last progress since the last '\n'.
};

}  // namespace ddprun::agent
