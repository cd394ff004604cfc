// The memory servers' messages, and the folders that they send and put together.

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>

#include "agent/memory/memory_files.h"
#include "agent/memory/memory_link.h"
#include "agent/memory/memory_wire.h"
#include "common/checksum.h"
#include "common/system/folder.h"
#include "tests/fuzz/agent/memory_wire_fuzz.h"

namespace ddprun::agent::memory {
namespace {

namespace fs = std::filesystem;

class Folder {
 public:
  Folder() {
    char name[] = "/tmp/ddprun-memory-test-XXXXXX";
    path_ = ::mkdtemp(name);
  }
  ~Folder() { fs::remove_all(path_); }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

void write(const std::string& path, const std::string& text) {
  fs::create_directories(fs::path(path).parent_path());
  std::ofstream(path, std::ios::binary) << text;
}

std::string read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// "a/b:bytes" of all files below, in order.
std::vector<std::string> all(const std::string& folder) {
  std::vector<std::string> found;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) {
      found.push_back(fs::relative(entry.path(), folder).string() + ":" + read(entry.path()));
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

Piece piece_of(const std::string& folder, const std::vector<Entry>& entries, const Want& want,
               std::uint64_t offset, std::size_t size) {
  const Entry& entry = entries[want.entry];
  Piece piece{want.entry, offset, 0, offset + size == entry.bytes,
              read(folder + "/" + entry.path).substr(offset, size)};
  piece.checksum = checksum(piece.bytes.data(), piece.bytes.size());
  return piece;
}

// Sends all that is wanted, in pieces of `size` bytes.
void send(Staging& staging, const std::string& folder, const std::vector<Entry>& entries,
          const std::vector<Want>& wants, std::size_t size = 3) {
  for (const Want& want : wants) {
    std::uint64_t at = want.offset;
    do {
      const auto part = std::min<std::uint64_t>(size, entries[want.entry].bytes - at);
      REQUIRE(staging.add(piece_of(folder, entries, want, at, part)));
      at += part;
    } while (at < entries[want.entry].bytes);
  }
}

void copy(const std::string& from, const std::string& scratch, Staging staging) {
  const auto snapshot = take_snapshot(from, scratch);
  REQUIRE(snapshot);
  const auto wants = staging.begin(snapshot->entries);
  REQUIRE(wants);
  send(staging, scratch, snapshot->entries, *wants);
  REQUIRE(staging.complete());
  REQUIRE(staging.commit());
  remove_tree(scratch);
}

TEST_CASE("Memory wire: every message survives the way, and no other bytes do", "[memory]") {
  const std::vector<Message> messages = {
      Open{"run", "node", {}},
      Open{"run", "node", {"old", "older"}},
      Index{{{"a/b c\n\xff", 7, -3, false}, {"d", 0, 0, true}}, true},
      Index{{}, true},
      Lacks{{{0, 5}, {9, 0}}, false},
      Piece{3, 1 << 20, 99, true, std::string(5, '\0')},
      Skip{4},
      Ack{},
      Committed{2, 1ull << 40},
      Denial{"no room"}};
  for (const Message& message : messages) {
    const std::string body = encode(message);
    REQUIRE(decode(body));
    CHECK(*decode(body) == message);
    CHECK_FALSE(decode(body + "x"));
    for (std::size_t cut = 0; cut < body.size(); ++cut) CHECK_FALSE(decode(body.substr(0, cut)));
  }
}

TEST_CASE("Memory wire: paths that lead out of the folder are refused", "[memory]") {
  for (const std::string path : {"a", "a/b", "a..b", "..a", "a/.b"}) CHECK(is_safe_path(path));
  const std::string nul("a\0b", 3);
  for (const std::string& path :
       {std::string(), std::string("/a"), std::string("a/"), nul, std::string("a//b"),
        std::string(".."), std::string("a/../b"), std::string("."), std::string(256, 'x'),
        std::string(5000, '/')}) {
    INFO(path);
    CHECK_FALSE(is_safe_path(path));
    CHECK_FALSE(decode(encode(Index{{{path, 1, 1, false}}, true})));
  }
  CHECK(decode(encode(Index{{{"a", kFileBytesMax, 1, false}}, true})));
  CHECK_FALSE(decode(encode(Index{{{"a", kFileBytesMax + 1, 1, false}}, true})));
  CHECK(folder_name("../node/0.ab") == "_._node_0.ab");
  // A name that begins with two dots names no other folder; libFuzzer has found it.
  const std::string dots = encode(Index{{{"..\xba/x", 1, 1, false}}, true});
  CHECK(decode(dots));
  fuzz::fuzz_memory_wire(reinterpret_cast<const std::uint8_t*>(dots.data()), dots.size());
}

TEST_CASE("Memory wire: seeded bytes", "[memory][fuzz]") {
  std::mt19937 random(11);
  for (int i = 0; i < 20'000; ++i) {
    std::string body = encode(Index{{{"a/b", 7, 1, false}, {"c", 2, 5, true}}, true});
    for (int k = 0; k < 3; ++k) body[random() % body.size()] = static_cast<char>(random());
    fuzz::fuzz_memory_wire(reinterpret_cast<const std::uint8_t*>(body.data()), body.size());
  }
}

TEST_CASE("Memory orders: what agent and server exchange survives the way", "[memory]") {
  const rendezvous::MemoryPeer peer{"n", "host", "::1", 7};
  for (const Order& order :
       {Order{.node = "me"}, Order{.node = "me", .copy_to = peer},
        Order{.node = "me", .copy_to = peer, .fill = {{peer, {"a", "b"}}}},
        Order{.node = "me", .daemon_host = "h", .daemon_port = 9, .one_port = true}}) {
    REQUIRE(decode_order(encode(order)));
    CHECK(*decode_order(encode(order)) == order);
  }
  const Report report{Report::Kind::kCopied, 3};
  REQUIRE(decode_report(encode(report)));
  CHECK(*decode_report(encode(report)) == report);
  for (const char* text : {"", "{", "[]", "{\"node\":3}", "{\"kind\":99}"}) {
    CHECK_FALSE(decode_order(text));
    CHECK_FALSE(decode_report(text));
  }
}

TEST_CASE("Memory files: a folder arrives as it was at the snapshot", "[memory]") {
  const Folder here;
  const std::string from = here / "own", to = here / "copy";
  write(from + "/a", "first");
  write(from + "/deep/er/with blank\nand line", "second");
  write(from + "/empty", "");
  write(from + "/.hidden", "x");
  write(from + "/half.tmp", "x");
  fs::create_symlink("/etc/passwd", from + "/link");
  copy(from, here / "snapshot", Staging(to, here / "work"));
  CHECK(all(to) ==
        std::vector<std::string>{"a:first", "deep/er/with blank\nand line:second", "empty:"});

  const auto inode = [](const std::string& path) {
    struct stat status {};
    REQUIRE(::stat(path.c_str(), &status) == 0);
    return status.st_ino;
  };
  const auto before = inode(to + "/a");
  fs::remove(from + "/empty");
  write(from + "/b", "third");
  copy(from, here / "snapshot", Staging(to, here / "work"));
  CHECK(all(to) ==
        std::vector<std::string>{"a:first", "b:third", "deep/er/with blank\nand line:second"});
  CHECK(inode(to + "/a") == before);  // It was not sent again.
}

TEST_CASE("Memory files: what is replaced while it is sent arrives as it was", "[memory]") {
  const Folder here;
  const std::string from = here / "own";
  write(from + "/a", "old");
  const auto snapshot = take_snapshot(from, here / "snapshot");
  REQUIRE(snapshot);
  write(from + "/.a", "new!");
  fs::rename(from + "/.a", from + "/a");
  Staging staging(here / "copy", here / "work");
  const auto wants = staging.begin(snapshot->entries);
  REQUIRE(wants);
  send(staging, here / "snapshot", snapshot->entries, *wants);
  REQUIRE(staging.commit());
  CHECK(all(here / "copy") == std::vector<std::string>{"a:old"});
}

TEST_CASE("Memory files: a file that is open for writing leaves the older copy alone", "[memory]") {
  const Folder here;
  const std::string from = here / "own", to = here / "copy";
  write(from + "/a", "whole");
  copy(from, here / "snapshot", Staging(to, here / "work"));
  const int writer = ::open((from + "/a").c_str(), O_WRONLY | O_TRUNC);
  REQUIRE(writer >= 0);
  REQUIRE(::write(writer, "ha", 2) == 2);
  const auto snapshot = take_snapshot(from, here / "snapshot");
  REQUIRE(snapshot);
  REQUIRE(snapshot->entries.size() == 1);
  CHECK(snapshot->entries[0].keep);
  remove_tree(here / "snapshot");
  copy(from, here / "snapshot", Staging(to, here / "work"));
  CHECK(all(to) == std::vector<std::string>{"a:whole"});
  ::close(writer);
  copy(from, here / "snapshot", Staging(to, here / "work"));
  CHECK(all(to) == std::vector<std::string>{"a:ha"});
}

TEST_CASE("Memory files: a file without permission to write is whole, unless it is locked",
          "[memory]") {
  const Folder here;
  const std::string from = here / "own", to = here / "copy";
  write(from + "/a", "whole");
  const int owner = ::open((from + "/a").c_str(), O_RDWR);
  REQUIRE(owner >= 0);
  REQUIRE(::fchmod(owner, 0400) == 0);
  {
    const auto snapshot = take_snapshot(from, here / "snapshot");
    REQUIRE(snapshot);
    CHECK_FALSE(snapshot->entries.at(0).keep);
    CHECK(::flock(owner, LOCK_EX | LOCK_NB) != 0);  // Its owner learns that it is in use.
    remove_tree(here / "snapshot");
  }
  CHECK(::flock(owner, LOCK_EX | LOCK_NB) == 0);
  const auto snapshot = take_snapshot(from, here / "snapshot");
  REQUIRE(snapshot);
  CHECK(snapshot->entries.at(0).keep);
  ::close(owner);
}

TEST_CASE("Memory files: a transfer that breaks is continued, and shows nothing before it is whole",
          "[memory]") {
  const Folder here;
  const std::string from = here / "own", to = here / "copy";
  write(from + "/a", "one");
  copy(from, here / "snapshot", Staging(to, here / "work"));
  write(from + "/a", "another one");
  write(from + "/b", "0123456789");
  const auto snapshot = take_snapshot(from, here / "snapshot");
  REQUIRE(snapshot);
  {
    Staging broken(to, here / "work");
    const auto wants = broken.begin(snapshot->entries);
    REQUIRE(wants);
    REQUIRE(wants->size() == 2);
    send(broken, here / "snapshot", snapshot->entries, {wants->front()});
    REQUIRE(broken.add(piece_of(here / "snapshot", snapshot->entries, (*wants)[1], 0, 4)));
    CHECK_FALSE(broken.complete());
  }
  CHECK(all(to) == std::vector<std::string>{"a:one"});
  Staging again(to, here / "work");
  const auto wants = again.begin(snapshot->entries);
  REQUIRE(wants);
  REQUIRE(wants->back().offset == 4);
  send(again, here / "snapshot", snapshot->entries, *wants);
  REQUIRE(again.commit());
  CHECK(all(to) == std::vector<std::string>{"a:another one", "b:0123456789"});
}

TEST_CASE("Memory files: damaged, foreign and misplaced pieces are refused", "[memory]") {
  const Folder here;
  const std::string from = here / "own";
  write(from + "/a", "0123456789");
  const auto snapshot = take_snapshot(from, here / "snapshot");
  REQUIRE(snapshot);
  Staging staging(here / "copy", here / "work");
  const auto wants = staging.begin(snapshot->entries);
  REQUIRE(wants);
  const Piece good = piece_of(from, snapshot->entries, wants->front(), 0, 10);
  Piece damaged = good, foreign = good, late = good, cut = good, lengthy = good;
  damaged.bytes[3] ^= 1;
  foreign.entry = 1;
  late.offset = 3;
  lengthy.bytes += "x";
  cut.bytes.resize(5);
  cut.checksum = checksum(cut.bytes.data(), 5);
  for (const Piece& wrong : {damaged, foreign, late, lengthy, cut}) {
    Staging fresh(here / "copy", here / "work");
    REQUIRE(fresh.begin(snapshot->entries));
    CHECK_FALSE(fresh.add(wrong));
    CHECK_FALSE(fresh.complete());
  }
  CHECK_FALSE(fs::exists(here / "copy"));
}

TEST_CASE("Memory files: links that lead out of the folder are not followed", "[memory]") {
  const Folder here;
  const std::string from = here / "own", to = here / "copy";
  write(here / "outside/secret", std::string(1 << 20, 's'));
  write(from + "/a", "inside");
  fs::create_directory_symlink(here / "outside", from + "/folder");
  fs::create_symlink(here / "outside/secret", from + "/file");
  fs::create_symlink("..", from + "/up");
  copy(from, here / "snapshot", Staging(to, here / "work"));
  CHECK(all(to) == std::vector<std::string>{"a:inside"});
  CHECK(occupied_bytes(from) < (1 << 20));
  remove_tree(from);
  CHECK(fs::exists(here / "outside/secret"));
}

// DDPRUN_TEST_FILES=100000 copies as many.
TEST_CASE("Memory files: many small files, and two versions of one", "[memory]") {
  const Folder here;
  const char* wanted = std::getenv("DDPRUN_TEST_FILES");
  const int files = wanted ? std::atoi(wanted) : 2000;
  for (int i = 0; i < files; ++i) {
    write(here / ("own/d" + std::to_string(i % 10) + "/f" + std::to_string(i)), std::to_string(i));
  }
  copy(here / "own", here / "snapshot", Staging(here / "copy", here / "work"));
  CHECK(all(here / "copy") == all(here / "own"));
  CHECK(occupied_bytes(here / "copy") > 0);
}

}  // namespace
}  // namespace ddprun::agent::memory
