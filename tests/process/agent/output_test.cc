#include "agent/output/output.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <catch2/catch.hpp>
#include <filesystem>
#include <sstream>
#include <thread>

#include "agent/workers/posix_process_host.h"
#include "common/system/secrets.h"
#include "tests/process/agent/processes.h"
#include "tests/support/loop.h"

namespace ddprun::agent {
namespace {

using namespace std::chrono_literals;
namespace fs = std::filesystem;

const std::string kWorker = AGENT_TEST_WORKER;

struct Pipe {
  UniqueFd reading, writing;
  Pipe() {
    int ends[2];
    REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
    reading.reset(ends[0]);
    writing.reset(ends[1]);
  }
};

UniqueFd append_to(const fs::path& path) {
  return UniqueFd(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
}

// Reads everything until the other end is closed.
std::string read_all(int fd) {
  std::string text;
  std::string block(1 << 20, '\0');
  for (ssize_t got = 0; (got = ::read(fd, block.data(), block.size())) != 0;) {
    if (got < 0 && errno != EINTR) break;
    if (got > 0) text.append(block, 0, static_cast<std::size_t>(got));
  }
  return text;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

// An agent's output with workers, without the rest of the agent.
struct Stage {
  boost::asio::io_context loop{1};
  test::Mark mark;
  PosixProcessHost host{loop};
  std::map<int, WorkerDeath> exits;
  std::unique_ptr<Output> output;
  int drained = 0;

  explicit Stage(OutputOptions options) {
    output = std::make_unique<Output>(loop, std::move(options));
    output->on_drained = [this](int) { ++drained; };
    host.on_exit = [this](const WorkerDeath& exit, auto) {
      exits[exit.local_rank] = exit;
      output->exited(exit.local_rank);
    };
  }

  void spawn(int local_rank, std::vector<std::string> arguments, int rank = -1) {
    arguments.insert(arguments.begin(), kWorker);
    spawn_program(local_rank, std::move(arguments), rank);
  }

  void spawn_program(int local_rank, std::vector<std::string> arguments, int rank = -1) {
    const WorkerEnds ends = output->open({local_rank, rank < 0 ? local_rank : rank, 0}).value();
    host.spawn({local_rank,
                std::move(arguments),
                {mark.variable()},
                ends.stdout_end.get(),
                ends.stderr_end.get()})
        .value();
  }

  // Until `workers` have been drained.
  bool run(int workers) {
    const auto until = std::chrono::steady_clock::now() + 60s;
    while (drained < workers) {
      if (loop.run_one_until(until) == 0) return false;
    }
    return true;
  }
};

// What one worker with these arguments makes come out of our standard output.
std::string one_worker(std::vector<std::string> arguments, OutputOptions options = {}) {
  Pipe pipe;
  std::string seen;
  std::thread reader([&, fd = pipe.reading.get()] { seen = read_all(fd); });
  {
    options.stdout_fd = options.stderr_fd = pipe.writing.get();
    Stage stage(std::move(options));
    pipe.writing.reset();
    stage.spawn(0, std::move(arguments));
    CHECK(stage.run(1));
    CHECK(stage.output->flush() == 0);
  }
  reader.join();
  return seen;
}

TEST_CASE("Output: 8 workers, 50,000 lines each, none torn, each worker's in order", "[output]") {
  constexpr int kWorkers = 8, kLines = 50'000;
  Pipe pipe;
  std::string seen;
  std::thread reader([&] { seen = read_all(pipe.reading.get()); });
  {
    OutputOptions options;
    options.stdout_fd = options.stderr_fd = pipe.writing.get();
    options.hold_max =
        30s;  // The reader may be starved on a busy machine; here nothing may be dropped.
    Stage stage(std::move(options));
    pipe.writing.reset();
    for (int rank = 0; rank < kWorkers; ++rank) {
      stage.spawn(rank, {"lines", std::to_string(kLines), "180", "rank" + std::to_string(rank)});
    }
    REQUIRE(stage.run(kWorkers));
    CHECK(stage.output->flush() == 0);
    CHECK(stage.output->dropped() == 0);
  }
  reader.join();
  std::array<int, kWorkers> next{};
  const std::string fill(180, 'x');
  int torn = 0;
  for (const std::string& line : lines_of(seen)) {
    const int rank = line.size() > 8 ? line[8] - '0' : -1;
    if (rank < 0 || rank >= kWorkers) {
      ++torn;
      continue;
    }
    const std::string name = std::to_string(rank);
    const std::string expected =
        "[default" + name + "]:rank" + name + " " + std::to_string(next[rank]) + " " + fill;
    torn += line != expected;
    ++next[rank];
  }
  CHECK(torn == 0);
  for (const int count : next) CHECK(count == kLines);
}

TEST_CASE("Output: a reader that stands still stops no worker, and every dropped line is counted",
          "[output]") {
  constexpr int kWorkers = 2, kLines = 100'000;
  Pipe pipe;
  OutputOptions options;
  options.stdout_fd = options.stderr_fd = pipe.writing.get();
  options.queue_bytes = 1 << 20;
  options.hold_max = 50ms;
  Stage stage(std::move(options));
  pipe.writing.reset();
  for (int rank = 0; rank < kWorkers; ++rank) {
    stage.spawn(rank, {"lines", std::to_string(kLines), "100", std::to_string(rank)});
  }
  REQUIRE(stage.run(kWorkers));  // No byte has been read yet.
  CHECK((stage.exits[0].exit_code == 0 && stage.exits[1].exit_code == 0));
  const std::uint64_t dropped = stage.output->dropped();
  CHECK(dropped > 100'000);

  std::string seen;
  std::thread reader([&] { seen = read_all(pipe.reading.get()); });
  CHECK(stage.output->flush() == 0);
  stage.output.reset();
  reader.join();
  std::uint64_t shown = 0, reported = 0;
  for (const std::string& line : lines_of(seen)) {
    if (line.starts_with("[ddprun: ")) {
      reported += std::stoull(line.substr(9));
      CHECK(line.ends_with(" lines dropped, standard output too slow]"));
    } else {
      REQUIRE(line.starts_with("[default"));
      ++shown;
    }
  }
  CHECK(reported == dropped);
  CHECK(shown + reported == kWorkers * kLines);
}

TEST_CASE("Output: a closed standard output kills nobody", "[output]") {
  Pipe pipe;
  OutputOptions options;
  options.stdout_fd = options.stderr_fd = pipe.writing.get();
  Stage stage(std::move(options));
  pipe.reading.reset();
  stage.spawn(0, {"lines", "100000", "100"});
  stage.spawn(1, {"write_and_die", "kept"});
  REQUIRE(stage.run(2));
  CHECK((stage.exits[0].exit_code == 0 && stage.exits[0].signal == 0));
  CHECK(stage.output->last_lines(1) == std::vector<std::string>{"kept"});
  CHECK(stage.output->flush() == 0);
}

TEST_CASE("Output: a full disk kills nobody", "[output]") {
  const UniqueFd full(::open("/dev/full", O_WRONLY | O_CLOEXEC));
  OutputOptions options;
  options.stdout_fd = options.stderr_fd = full.get();
  Stage stage(std::move(options));
  stage.spawn(0, {"lines", "1000", "100"});
  REQUIRE(stage.run(1));
  CHECK(stage.exits[0].exit_code == 0);
}

TEST_CASE("Output: the last words before SIGKILL are kept, 200 times of 200", "[output]") {
  Pipe pipe;
  OutputOptions options;
  options.stdout_fd = options.stderr_fd = pipe.writing.get();
  options.prefix_template = "${hostname}/${role_name}${rank}/${local_rank} ";
  options.hostname = "n1";
  Stage stage(std::move(options));
  pipe.writing.reset();
  int kept = 0;
  std::string expected;
  for (int i = 0; i < 200; ++i) {
    const std::string words = "last words " + std::to_string(i);
    stage.spawn(3, {"write_and_die", words}, 11);
    REQUIRE(stage.run(i + 1));
    CHECK(stage.exits[3].signal == SIGKILL);
    kept += stage.output->last_lines(3) == std::vector<std::string>{words};
    expected += "n1/default11/3 " + words + "\n";
  }
  CHECK(kept == 200);
  std::string seen;
  std::thread reader([&] { seen = read_all(pipe.reading.get()); });
  stage.output->flush();
  stage.output.reset();
  reader.join();
  CHECK(seen == expected);
}

TEST_CASE("Output: what an exited worker left in its pipe is there at the end", "[output]") {
  Pipe pipe;
  std::string seen;
  std::thread reader([&, fd = pipe.reading.get()] { seen = read_all(fd); });
  {
    OutputOptions options;
    options.stdout_fd = options.stderr_fd = pipe.writing.get();
    Stage stage(std::move(options));
    pipe.writing.reset();
    WorkerEnds ends = stage.output->open({0, 0, 0}).value();
    const std::string line(99, 'x');
    for (int i = 0; i < 500; ++i) {
      REQUIRE(::write(ends.stdout_end.get(), (line + "\n").data(), 100) == 100);
    }
    ends = {};
    stage.output->exited(0);  // And the run is over at once: the loop reads no more.
    CHECK(stage.output->flush() == 0);
  }
  reader.join();
  CHECK(lines_of(seen).size() == 500);
}

TEST_CASE("Output: a grandchild that holds the pipe is not waited for", "[output]") {
  const auto start = std::chrono::steady_clock::now();
  CHECK(one_worker({"hold_output"}) == "[default0]:from the worker\n");
  CHECK(std::chrono::steady_clock::now() - start >= 200ms);
}

TEST_CASE("Output: a last line without its end gets one, an over-long line is cut", "[output]") {
  CHECK(one_worker({"write", "no end"}) == "[default0]:no end\n");
  const std::string body(65'536 + 10, 'x');
  CHECK(one_worker({"write", body + "\n"}) ==
        "[default0]:" + body.substr(10) +
            " [ddprun: line above 64 KiB, continues]\n[default0]:xxxxxxxxxx\n");
}

TEST_CASE("Output: without a terminal only the last state of progress is shown", "[output]") {
  CHECK(one_worker({"write", "10%\r20%\r30%\nnext\n40%\r50%\r"}) ==
        "[default0]:30%\n[default0]:next\n[default0]:50%\n");
}

// What a terminal of 20 columns receives.
std::string on_terminal(const std::string& text) {
  const UniqueFd master(::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC));
  REQUIRE((master && ::grantpt(master.get()) == 0 && ::unlockpt(master.get()) == 0));
  UniqueFd terminal(::open(::ptsname(master.get()), O_RDWR | O_NOCTTY | O_CLOEXEC));
  const winsize size{25, 20, 0, 0};
  ::ioctl(terminal.get(), TIOCSWINSZ, &size);
  std::string seen;
  std::thread reader([&] { seen = read_all(master.get()); });  // EIO once the terminal is closed.
  {
    OutputOptions options;
    options.stdout_fd = options.stderr_fd = terminal.get();
    Stage stage(std::move(options));
    CHECK(stage.output->terminal_columns() == 20);
    CHECK((::fcntl(terminal.get(), F_GETFL) & O_NONBLOCK) == 0);
    stage.spawn(0, {"write", text});
    CHECK(stage.run(1));
    stage.output->flush();
  }
  terminal.reset();
  reader.join();
  return seen;
}

TEST_CASE("Output: on a terminal progress is one line that the next one overwrites", "[output]") {
  CHECK(on_terminal("20% and more than fits\r") ==
        "\r\x1b[K[default0]:20% and \r\x1b[K[default0]:20% and more than fits\r\n");
  // What waits behind lines would be out of date when it is seen.
  CHECK(on_terminal("line\n10%\r20%\rend\n") == "[default0]:line\r\n[default0]:end\r\n");
}

// Our terminal, and what it has received.
class Terminal {
 public:
  Terminal() : main_(::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC | O_NONBLOCK)) {
    REQUIRE((main_ && ::grantpt(main_.get()) == 0 && ::unlockpt(main_.get()) == 0));
    fd_.reset(::open(::ptsname(main_.get()), O_RDWR | O_NOCTTY | O_CLOEXEC));
    const winsize size{25, 40, 0, 0};
    ::ioctl(fd_.get(), TIOCSWINSZ, &size);
  }
  int fd() const { return fd_.get(); }
  const std::string& seen() {
    char block[4096];
    for (ssize_t n = 0; (n = ::read(main_.get(), block, sizeof block)) > 0;) {
      seen_.append(block, static_cast<std::size_t>(n));
    }
    return seen_;
  }

 private:
  UniqueFd main_, fd_;
  std::string seen_;
};

TEST_CASE("Output: a prompt stays below all other lines until it is answered", "[output]") {
  const fs::path folder = fs::temp_directory_path() / ("output_test_" + random_hex(8));
  fs::create_directories(folder);
  const std::string answer = folder / "answer";
  REQUIRE(::mkfifo(answer.c_str(), 0600) == 0);
  Terminal terminal;
  OutputOptions options;
  options.stdout_fd = options.stderr_fd = terminal.fd();
  Stage stage(std::move(options));
  const auto until = [&](const std::string& text) {
    const auto limit = std::chrono::steady_clock::now() + 60s;
    while (terminal.seen().find(text) == std::string::npos) {
      if (std::chrono::steady_clock::now() > limit) return false;
      stage.loop.run_one_for(10ms);
    }
    return true;
  };

  const std::string asks = "printf 'ask> '; read -r _ < " + answer + "; echo done";
  stage.spawn_program(0, {"/bin/sh", "-c", asks});
  CHECK(until("[default0]:ask> "));
  stage.output->show_status("status");
  stage.spawn(1, {"write", "other\n"});
  CHECK(until("\r\x1b[K[default1]:other\r\n\r\x1b[K[default0]:ask> "));
  stage.output->show_status("status");
  CHECK(terminal.seen().find("status") == std::string::npos);

  UniqueFd(::open(answer.c_str(), O_WRONLY | O_CLOEXEC));
  CHECK(until("\r\x1b[K[default0]:ask> done\r\n"));
  stage.output->show_status("status");
  CHECK(until("status"));
  CHECK(stage.run(2));
  fs::remove_all(folder);
}

TEST_CASE("Output: the shared description of standard output stays blocking", "[output]") {
  Pipe pipe;
  OutputOptions options;
  options.stdout_fd = options.stderr_fd = pipe.writing.get();
  Stage stage(std::move(options));
  stage.spawn(0, {"write", "hello\n"});
  REQUIRE(stage.run(1));
  CHECK((::fcntl(pipe.writing.get(), F_GETFL) & O_NONBLOCK) == 0);
  char block[64] = {};
  CHECK(::read(pipe.reading.get(), block, sizeof block) == 17);
}

// Standard output and error into two files, so that they can be distinguished.
struct Split {
  fs::path folder = fs::temp_directory_path() / ("output_test_" + random_hex(8));
  UniqueFd out, err;
  OutputOptions options;

  Split() {
    fs::create_directories(folder);
    out = append_to(folder / "out");
    err = append_to(folder / "err");
    options.stdout_fd = out.get();
    options.stderr_fd = err.get();
    options.logs = LogFolder::create((folder / "logs").string(), "job").value();
  }
  ~Split() { fs::remove_all(folder); }

  std::string shown() const { return read_file_end(folder / "out", 1 << 20); }
  std::string errors() const { return read_file_end(folder / "err", 1 << 20); }
  std::string file(int rank, const std::string& name) const {
    return read_file_end(options.logs.folder() + "/attempt_0/" + std::to_string(rank) + "/" + name,
                         1 << 20);
  }
};

TEST_CASE("Output: a worker with another seat is shown as its new rank, in its old files",
          "[output]") {
  Split split;
  split.options.tee.others = StreamMap::kStdout;
  boost::asio::io_context loop{1};
  Output output(loop, split.options);
  WorkerEnds ends = output.open({.local_rank = 1, .rank = 3, .restart_count = 0}).value();
  const auto print = [&](const std::string& line) {
    REQUIRE(::write(ends.stdout_end.get(), line.data(), line.size()) == std::ssize(line));
    const auto reported = [&] { return split.shown().ends_with(":" + line); };
    REQUIRE(test::run_until(loop, reported, 20s));
  };
  print("before\n");
  output.seated(1, 2);
  print("after\n");
  output.seated(7, 2);  // No worker is there.
  ends = {};
  output.exited(1);
  output.drain(1);
  CHECK(output.drained(1));
  CHECK(output.last_lines(1) == std::vector<std::string>{"before", "after"});
  CHECK(output.flush() == 0);
  CHECK(split.shown() == "[default3]:before\n[default2]:after\n");
  CHECK(split.file(1, "stdout.log") == "before\nafter\n");
}

TEST_CASE("Output: -r sends a stream to a file only, -t to both, each for the ranks it names",
          "[output]") {
  Split split;
  split.options.redirects = {.of_rank = {{0, StreamMap::kBoth}, {1, StreamMap::kStdout}}};
  split.options.tee = {.of_rank = {{1, StreamMap::kStdout}, {2, StreamMap::kStderr}}};
  Stage stage(split.options);
  for (int rank = 0; rank < 4; ++rank) stage.spawn(rank, {"write", "out\n"});
  REQUIRE(stage.run(4));
  for (int rank = 0; rank < 4; ++rank) stage.spawn(rank, {"write_and_die", "err"});
  REQUIRE(stage.run(8));
  std::vector<std::string> shown = lines_of(split.shown()), errors = lines_of(split.errors());
  CHECK(stage.output->flush() == 0);  // Files are written on a thread.
  std::sort(shown.begin(), shown.end());
  std::sort(errors.begin(), errors.end());
  CHECK(shown == std::vector<std::string>{"[default1]:out", "[default2]:out", "[default3]:out"});
  CHECK(errors == std::vector<std::string>{"[default1]:err", "[default2]:err", "[default3]:err"});
  CHECK((split.file(0, "stdout.log") == "out\n" && split.file(0, "stderr.log") == "err"));
  CHECK((split.file(1, "stdout.log") == "out\n" && split.file(1, "stderr.log").empty()));
  CHECK((split.file(2, "stdout.log").empty() && split.file(2, "stderr.log") == "err"));
  CHECK((split.file(3, "stdout.log").empty() && split.file(3, "stderr.log").empty()));
  // The verdict finds the last words wherever they went.
  for (int rank = 0; rank < 4; ++rank) {
    CHECK(stage.output->last_lines(rank) == std::vector<std::string>{"err"});
  }
}

TEST_CASE("Output: ranks that are filtered out are silent, but their last words are kept",
          "[output]") {
  Split split;
  split.options.local_ranks_filter = {1};
  Stage stage(split.options);
  for (int rank = 0; rank < 2; ++rank) stage.spawn(rank, {"write", "out\n"});
  REQUIRE(stage.run(2));
  for (int rank = 0; rank < 2; ++rank) stage.spawn(rank, {"write_and_die", "err"});
  REQUIRE(stage.run(4));
  CHECK(split.shown() == "[default1]:out\n");
  CHECK(split.errors() == "[default1]:err\n");
  CHECK(stage.output->last_lines(0) == std::vector<std::string>{"err"});
}

TEST_CASE("Output: a worker's output is drained once it has ended and all lines are shown",
          "[output]") {
  Split split;
  Stage stage(split.options);
  CHECK(stage.output->drained(7));
  stage.spawn(0, {"write_and_die", "err"});
  CHECK(!stage.output->drained(0));
  REQUIRE(stage.run(1));
  CHECK(stage.output->drained(0));
  CHECK(split.errors() == "[default0]:err\n");
}

TEST_CASE("Output: a thousand rounds leave no descriptor", "[output]") {
  Split split;
  split.options.tee = {.others = StreamMap::kBoth};
  Stage stage(split.options);
  stage.spawn(0, {"exit", "0"});
  REQUIRE(stage.run(1));
  const int before = test::open_descriptors();
  for (int i = 0; i < 1000; ++i) {
    stage.spawn(0, {"exit", "0"});
    REQUIRE(stage.run(i + 2));
  }
  CHECK(stage.output->flush() == 0);
  CHECK(test::open_descriptors() == before);
}

}  // namespace
}  // namespace ddprun::agent
