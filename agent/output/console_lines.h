#pragma once
// Workers' lines on their way to one console: dressed as the user wants them, and folded if he
// wants that. Owned by Output, called by WorkerStream.

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "agent/lines/line_fold.h"
#include "agent/lines/line_format.h"
#include "agent/output/console.h"

namespace ddprun::agent {

struct ConsoleLinesOptions {
  LineFormat format = LineFormat::kText;
  std::optional<Milliseconds> fold{};  // How long an equal line of another rank is waited for.
};

class ConsoleLines {
 public:
  ConsoleLines(boost::asio::io_context& loop, Console& console, ConsoleLinesOptions options);

  // A stream begins and ends. The number stands for it below.
  int enter(Speaker speaker);
  void leave(int source);

  // `whole`: false for a piece of an over-long line that goes on.
  void line(int source, std::string_view text, bool whole);
  void progress(int source, std::string_view text);

  void write_out();  // After a batch of lines.
  void close();      // Nothing waits any longer.
  bool holding() const { return console_.holding(); }

 private:
  void show(const std::set<int>& ranks, const Speaker& speaker, std::string_view text, bool whole);
  void show_json(const std::set<int>& ranks, const Speaker& speaker, std::string_view text,
                 bool whole);
  void show_folded(bool all);
  void arm();

  Console& console_;
  ConsoleLinesOptions options_;
  std::optional<LineFold> fold_;
  boost::asio::steady_timer timer_;
  std::vector<Speaker> sources_;
  std::vector<int> free_;  // Numbers for whoever comes next.
  std::vector<int> left_;  // Free as soon as none of their lines waits.
  std::int64_t time_ = 0;  // Of this batch.
  std::string scratch_;
  std::shared_ptr<const bool> alive_ = std::make_shared<const bool>(true);
};

}  // namespace ddprun::agent
