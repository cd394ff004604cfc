#include "agent/lines/console_queue.h"

#include <catch2/catch.hpp>
#include <sstream>

namespace ddprun::agent {
namespace {

// Writes everything that waits, at most `chunk` bytes at a time.
std::string write_all(ConsoleQueue& queue, std::size_t chunk = 4096) {
  std::string written;
  while (!queue.empty()) {
    const std::string part(queue.front(chunk));
    written += part;
    queue.consume(part.size());
  }
  return written;
}

std::string lines(int count, char letter) {
  std::string text;
  for (int i = 0; i < count; ++i) text += std::string(9, letter) + "\n";
  return text;
}

void add_lines(ConsoleQueue& queue, int count, char letter) {
  for (int i = 0; i < count; ++i) queue.add_line("", std::string(9, letter));
}

TEST_CASE("ConsoleQueue: lines come out as they went in", "[console_queue]") {
  ConsoleQueue queue("standard output", 1000);
  queue.add_line("[default0]:", "hello", "!");
  queue.add_line("", "");
  CHECK(write_all(queue) == "[default0]:hello!\n\n");
  CHECK(queue.state() == ConsoleQueue::State::kOpen);
}

TEST_CASE("ConsoleQueue: a write holds whole lines wherever one fits", "[console_queue]") {
  ConsoleQueue queue("standard output", 1000);
  add_lines(queue, 3, 'a');
  CHECK(queue.front(25) == lines(2, 'a'));
  CHECK(queue.front(30) == lines(3, 'a'));
  CHECK(queue.front(4) == "aaaa");
  queue.consume(4);
  CHECK(queue.front(4) == "aaaa");
  CHECK(queue.front(20) == "aaaaa\n" + lines(1, 'a'));
}

TEST_CASE("ConsoleQueue: a full queue first holds, and loses nothing", "[console_queue]") {
  ConsoleQueue queue("standard output", 100);
  add_lines(queue, 10, 'a');
  CHECK(queue.state() == ConsoleQueue::State::kHolding);
  add_lines(queue, 3, 'b');  // Had been read already.
  CHECK(queue.dropped() == 0);
  CHECK(write_all(queue, 10) == lines(10, 'a') + lines(3, 'b'));
  CHECK(queue.state() == ConsoleQueue::State::kOpen);
}

TEST_CASE("ConsoleQueue: after that it drops whole lines, and says in their place how many",
          "[console_queue]") {
  ConsoleQueue queue("standard output", 100);
  add_lines(queue, 10, 'a');
  queue.give_up();
  CHECK(queue.state() == ConsoleQueue::State::kDropping);
  add_lines(queue, 1234, 'b');
  CHECK(queue.dropped() == 1234);
  queue.consume(50);
  CHECK(queue.state() == ConsoleQueue::State::kOpen);
  add_lines(queue, 1, 'c');
  CHECK(write_all(queue) ==
        lines(5, 'a') + "[ddprun: 1234 lines dropped, standard output too slow]\n" + lines(1, 'c'));
}

TEST_CASE("ConsoleQueue: what was dropped last is said at the end", "[console_queue]") {
  ConsoleQueue queue("standard error", 100);
  add_lines(queue, 10, 'a');
  queue.give_up();
  add_lines(queue, 2, 'b');
  queue.close_gap();
  queue.close_gap();
  CHECK(write_all(queue) ==
        lines(10, 'a') + "[ddprun: 2 lines dropped, standard error too slow]\n");
}

TEST_CASE("ConsoleQueue: even while holding it is bounded", "[console_queue]") {
  ConsoleQueue queue("standard output", 100);
  const std::string line(1 << 16, 'x');
  for (int i = 0; i < 100; ++i) queue.add_line("", line);
  CHECK(queue.size() < 3u << 20);
  CHECK(queue.dropped() > 0);
}

TEST_CASE("ConsoleQueue: what was said to be dropped and what was written make what was added",
          "[console_queue]") {
  ConsoleQueue queue("standard output", 1000);
  std::string written;
  for (int i = 0; i < 5000; ++i) {
    queue.add_line("", "123456789");
    if (i % 3 == 0) queue.give_up();
    if (i % 7 != 0) continue;
    const std::string part(queue.front(30));
    queue.consume(part.size());
    written += part;
  }
  queue.close_gap();
  written += write_all(queue);

  std::istringstream in(written);
  std::uint64_t lines_seen = 0, drops_reported = 0, notices = 0;
  for (std::string line; std::getline(in, line);) {
    if (line == "123456789") {
      ++lines_seen;
    } else {
      REQUIRE(line.starts_with("[ddprun: "));
      drops_reported += std::stoull(line.substr(9));
      ++notices;
    }
  }
  CHECK(drops_reported == queue.dropped());
  CHECK(lines_seen + drops_reported == 5000);
  CHECK(notices > 1);
}

TEST_CASE("ConsoleQueue: progress is shown only when nothing waits, and is erased by the next line",
          "[console_queue]") {
  ConsoleQueue queue("standard output", 1000);
  queue.add_transient("[r0]:", "10%", 80);
  CHECK(write_all(queue) == "\r\x1b[K[r0]:10%");
  queue.add_transient("[r0]:", "20%", 80);
  queue.add_transient("[r1]:", "left out", 80);
  CHECK(write_all(queue) == "\r\x1b[K[r0]:20%");
  queue.add_line("", "line");
  queue.add_line("", "next");
  CHECK(write_all(queue) == "\r\x1b[Kline\nnext\n");
}

TEST_CASE("ConsoleQueue: what is overwritten by the next line can be taken away before",
          "[console_queue]") {
  ConsoleQueue queue("standard error", 1000);
  queue.erase_transient();
  CHECK(queue.empty());
  queue.add_transient("", "status", 80);
  CHECK(queue.shows_transient());
  queue.erase_transient();
  queue.add_line("", "line");
  CHECK(write_all(queue) == "\r\x1b[Kstatus\r\x1b[Kline\n");
  CHECK_FALSE(queue.shows_transient());
}

TEST_CASE("ConsoleQueue: progress is cut to the terminal's width", "[console_queue]") {
  CHECK(fit_columns("12345", 3) == "123");
  CHECK(fit_columns("12345", 5) == "12345");
  CHECK(fit_columns("\u2588\u2588\u2588", 2) == "\u2588\u2588");
  CHECK(fit_columns("", 0).empty());
}

}  // namespace
}  // namespace ddprun::agent
