#include "agent/output/log_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>


namespace ddprun::agent {
namespace {

using namespace std::chrono_literals;
namespace fs = std::filesystem;

struct Folder {
  fs::path path;
  Folder() {
    char folder[] = "/tmp/ddprun-log-XXXXXX";
    path = ::mkdtemp(folder);
  }
  ~Folder() { fs::remove_all(path); }
  std::string file(const std::string& name) const { return (path / name).string(); }
  std::string text(const std::string& name) const {
    std::ifstream in(path / name);
    return {std::istreambuf_iterator<char>(in), {}};
  }
};

TEST_CASE("LogFile: a new file at the limit, lines whole, the oldest gone", "[log_file]") {
  const Folder folder;
  LogFile log = LogFile::open(folder.file("x"), {.bytes = 10, .keep = 2}).value();
  log.write(0, "aaaa\nbbbb\ncccc\nddd");  // 18 bytes, the last line is under way.
  CHECK(folder.text("x.1") == "aaaa\nbbbb\n");
  log.write(0, "d\neeee\n");
  CHECK(folder.text("x.1") == "cccc\ndddd\n");
  CHECK(folder.text("x.2") == "aaaa\nbbbb\n");
  log.write(0, "ffff\ngggg\n");
  CHECK(folder.text("x") == "gggg\n");
  CHECK(folder.text("x.1") == "eeee\nffff\n");
  CHECK_FALSE(fs::exists(folder.path / "x.3"));
}

TEST_CASE("LogFile: a line longer than the limit has a file for itself", "[log_file]") {
  const Folder folder;
  LogFile log = LogFile::open(folder.file("x"), {.bytes = 8, .keep = 9}).value();
  log.write(0, "a\n0123456789012\nb\n");
  CHECK(folder.text("x.2") == "a\n");
  CHECK(folder.text("x.1") == "0123456789012\n");
  CHECK(folder.text("x") == "b\n");
}

TEST_CASE("LogFile: what is kept is the end of what was written, whatever the cuts", "[log_file]") {
  std::mt19937 random(7);
  for (int round = 0; round < 20; ++round) {
    const Folder folder;
    std::string all;
    for (int i = 0; i < 300; ++i) all += std::to_string(i) + std::string(random() % 40, 'x') + "\n";
    LogFile log = LogFile::open(folder.file("x"), {.bytes = 500, .keep = 3}).value();
    for (std::size_t at = 0; at < all.size();) {
      const std::size_t part = 1 + random() % 700;
      log.write(0, std::string_view(all).substr(at, part));
      at += part;
    }
    std::string kept;
    for (const char* name : {"x.3", "x.2", "x.1", "x"}) {
      CHECK(folder.text(name).size() <= 500 + 45);  // A line under way goes on.
      CHECK(folder.text(name).ends_with("\n"));
      kept += folder.text(name);
    }
    CHECK(all.ends_with(kept));
    CHECK(kept.size() > 1000);
  }
}

TEST_CASE("LogFile: a full disk loses lines, is said, and is over when there is room",
          "[log_file]") {
  LogFile full = LogFile::open("/dev/full", {}).value();
  full.write(0, "one\ntwo\n");
  full.write(0, "three\n");
  CHECK(full.lost() == 14);
  CHECK(full.error() == ENOSPC);

  const Folder folder;
  LogFile log = LogFile::open(folder.file("x"), {}).value();
  log.write(0, "begin\nhal");
  log.write(9, "f a line\nend\n");  // What came between had no room.
  CHECK(folder.text("x") == "begin\nhal\n[ddprun: 18 bytes were lost here]\nend\n");
  CHECK(log.lost() == 18);
}

TEST_CASE("LogWriter: everything is written, in order", "[log_writer]") {
  const Folder folder;
  boost::asio::io_context loop;
  LogWriter writer(loop, {.queue_bytes = 1 << 20, .hold_max = 30s});
  auto a = writer.open(folder.file("a"), {}).value();
  auto b = writer.open(folder.file("b"), {}).value();
  std::string all;
  for (int i = 0; i < 20'000; ++i) {
    const std::string line = std::to_string(i) + "\n";
    writer.write(i % 3 ? a : b, line);
    if (i % 3) all += line;
  }
  CHECK(writer.finish(30s) == 0);
  CHECK(folder.text("a") == all);
  CHECK(writer.dropped() == 0);
}

TEST_CASE("LogWriter: a disk that hangs holds for a moment, then lines are dropped and said",
          "[log_writer]") {
  const Folder folder;
  const std::string path = folder.file("fifo");
  REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
  const UniqueFd reader(::open(path.c_str(), O_RDWR | O_CLOEXEC));  // It takes 64 KiB and no more.
  boost::asio::io_context loop;
  LogWriter writer(loop, {.queue_bytes = 100'000, .hold_max = 1ms});
  auto stream = writer.open(path, {}).value();
  int over = 0;
  writer.on_hold_over = [&] { ++over; };
  const std::string line = std::string(999, 'x') + "\n";
  for (int i = 0; i < 100'000 && writer.dropped() == 0; ++i) {
    writer.write(stream, line);
    if (writer.holding()) loop.run(), loop.restart();
  }
  CHECK(over > 0);
  CHECK_FALSE(writer.holding());
  for (int i = 0; i < 50; ++i) writer.write(stream, line);
  CHECK(writer.dropped() == 51'000);
  CHECK(writer.finish(1ms) > 0);
  // It moves again.
  std::string seen, block(4096, '\0');
  const auto read_some = [&] {
    const ssize_t got = ::read(reader.get(), block.data(), block.size());
    REQUIRE(got > 0);
    seen.append(block, 0, static_cast<std::size_t>(got));
  };
  while (writer.finish(1ms) > 0) read_some();
  REQUIRE(loop.run_one_for(10s) == 1);  // There is room.
  writer.write(stream, line + "end\n");
  while (!seen.ends_with("end\n")) read_some();
  CHECK(seen.find("[ddprun: 52000 bytes were lost here]\nend\n") != std::string::npos);
}

}  // namespace
}  // namespace ddprun::agent
