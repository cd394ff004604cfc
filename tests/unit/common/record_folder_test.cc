#include "common/system/record_folder.h"

#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "common/system/secrets.h"

namespace ddprun {
namespace {

using Safety = RecordFolder::Safety;
namespace fs = std::filesystem;

struct Scratch {
  Scratch() : path(fs::temp_directory_path() / ("ddprun-records-" + random_hex(8))) {}
  ~Scratch() { fs::remove_all(path); }
  const fs::path path;
};

unsigned mode_of(const fs::path& path) {
  struct stat status {};
  return ::lstat(path.c_str(), &status) == 0 ? status.st_mode & 0777 : 0;
}

// The order of writing is that of the files' times, which may be a tick of the clock apart.
void age(const RecordFolder& folder, const std::string& name, int seconds) {
  const fs::path file = fs::path(folder.path()) / name;
  fs::last_write_time(file, fs::last_write_time(file) - std::chrono::seconds(seconds));
}

// As a writer of records does it.
Result<void> keep(const RecordFolder& folder, const std::string& name, const std::string& text) {
  const auto put = folder.put(name, text, Safety::kProcess);
  folder.make_room(name);
  return put;
}

TEST_CASE("Records: what was put is read, by this user only, and can be replaced", "[records]") {
  const Scratch scratch;
  const RecordFolder folder(scratch.path / "a" / "b");
  CHECK(folder.names().empty());
  REQUIRE(folder.put("1.json", "one", Safety::kProcess).has_value());
  REQUIRE(folder.put("2.json", "two", Safety::kMachine).has_value());
  REQUIRE(folder.put("1.json", "one and more", Safety::kMachine).has_value());
  CHECK(folder.names() == std::vector<std::string>{"1.json", "2.json"});
  CHECK(folder.read("1.json") == "one and more");
  CHECK_FALSE(folder.read("3.json").has_value());
  CHECK(mode_of(folder.path()) == 0700);
  CHECK(mode_of(folder.path() + "/1.json") == 0600);
}

TEST_CASE("Records: beyond the limits those written longest ago go", "[records]") {
  const Scratch scratch;
  const RecordFolder folder(scratch.path, {.records = 3, .bytes = 1000, .record_bytes = 400});
  for (const char* name : {"d", "c", "b", "a"}) {
    REQUIRE(keep(folder, name, "x").has_value());
    for (const std::string& old : folder.names()) age(folder, old, 10);
  }
  CHECK(folder.names() == std::vector<std::string>{"a", "b", "c"});
  REQUIRE(keep(folder, "c", std::string(400, 'c')).has_value());  // It is the newest now.
  age(folder, "c", 1);
  REQUIRE(keep(folder, "e", std::string(400, 'e')).has_value());
  CHECK(folder.names() == std::vector<std::string>{"a", "c", "e"});
  REQUIRE(keep(folder, "f", std::string(300, 'f')).has_value());
  CHECK(folder.names() == std::vector<std::string>{"e", "f"});
}

TEST_CASE("Records: one that is too long is refused and changes nothing", "[records]") {
  const Scratch scratch;
  const RecordFolder folder(scratch.path, {.records = 3, .bytes = 1000, .record_bytes = 10});
  REQUIRE(keep(folder, "a", "kept").has_value());
  CHECK_FALSE(keep(folder, "a", std::string(11, 'x')).has_value());
  CHECK(folder.read("a") == "kept");
  std::ofstream(scratch.path / "b") << std::string(11, 'x');
  CHECK_FALSE(folder.read("b").has_value());
}

TEST_CASE("Records: what a writer that died left is no record, and goes in the end", "[records]") {
  const Scratch scratch;
  const RecordFolder folder(scratch.path);
  REQUIRE(keep(folder, "a", "whole").has_value());
  std::ofstream(scratch.path / ".new-0123") << "half of a rec";
  CHECK(folder.names() == std::vector<std::string>{"a"});
  REQUIRE(keep(folder, "b", "whole").has_value());
  CHECK(fs::exists(scratch.path / ".new-0123"));  // Its writer may live.
  age(folder, ".new-0123", 7200);
  REQUIRE(keep(folder, "c", "whole").has_value());
  CHECK_FALSE(fs::exists(scratch.path / ".new-0123"));
}

TEST_CASE("Records: where nothing can be written that is said, and nothing is left", "[records]") {
  const Scratch scratch;
  std::ofstream(scratch.path) << "a file";
  const RecordFolder folder(scratch.path / "below");
  CHECK_FALSE(keep(folder, "a", "x").has_value());
  CHECK(folder.names().empty());
}

TEST_CASE("Records: several that write at once leave whole records only", "[records]") {
  const Scratch scratch;
  const RecordFolder folder(scratch.path, {.records = 5, .bytes = 1 << 20, .record_bytes = 1000});
  std::vector<std::thread> writers;
  for (int writer = 0; writer < 4; ++writer) {
    writers.emplace_back([&folder, writer] {
      for (int i = 0; i < 25; ++i) {
        const std::string name = std::to_string(writer) + "-" + std::to_string(i);
        (void)keep(folder, name, std::string(900, static_cast<char>('a' + writer)));
      }
    });
  }
  for (std::thread& writer : writers) writer.join();
  REQUIRE(keep(folder, "last", "x").has_value());
  CHECK(folder.names().size() == 5);
  for (const std::string& name : folder.names()) {
    const auto text = folder.read(name);
    REQUIRE(text.has_value());
    CHECK(text->size() == (name == "last" ? 1u : 900u));
  }
}

}  // namespace
}  // namespace ddprun
