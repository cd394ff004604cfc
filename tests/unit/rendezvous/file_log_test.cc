// The journal in a folder of its own, with operations that fail or are the last of a daemon.

#include "rendezvous/journal/file_log.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <functional>

namespace ddprun::rendezvous {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

struct Died {};  // Thrown where the daemon is killed.

// Real files. The operation number `at`, from 1, fails after `at_most` bytes, or is the last.
struct FaultyFiles : FileOperations {
  int at = 0;  // 0: never.
  bool dies = false;
  bool for_good = false;  // All that follow fail too.
  std::size_t at_most = 0;
  int count = 0;

  bool fails() { return ++count == at || (for_good && at > 0 && count > at); }
  Failure full() {
    if (dies) throw Died{};
    errno = ENOSPC;
    return errno_failure("an operation of the test");
  }
  Result<UniqueFd> open(const std::string& path, int flags) override {
    if (fails()) return full();
    return FileOperations::open(path, flags);
  }
  Result<void> append(int fd, std::string_view bytes) override {
    const bool failing = fails();
    if (failing) (void)FileOperations::append(fd, bytes.substr(0, at_most));
    return failing ? Result<void>(full()) : FileOperations::append(fd, bytes);
  }
  Result<void> cut(int fd, std::size_t size) override {
    if (fails()) return full();
    return FileOperations::cut(fd, size);
  }
  Result<void> sync(int fd) override {
    if (fails()) return full();
    return FileOperations::sync(fd);
  }
  Result<void> rename(const std::string& from, const std::string& to) override {
    if (fails()) return full();
    return FileOperations::rename(from, to);
  }
};

struct Folder {
  std::string path = (fs::temp_directory_path() / "ddprun-journal-XXXXXX").string();
  Folder() { REQUIRE(::mkdtemp(path.data())); }
  ~Folder() { fs::remove_all(path); }
};

std::string record(int n) {
  return encode_record(Record{"job", TimePoint(std::chrono::seconds(n)), {"", Cancel{n, "x"}}});
}

std::vector<int> numbers(const Journal& journal) {
  std::vector<int> found;
  for (const JournalEntry& entry : journal.entries) {
    found.push_back(std::get<Cancel>(std::get<Record>(entry).event.what).signal);
  }
  return found;
}

struct Disk {
  boost::asio::io_context io;
  std::shared_ptr<FaultyFiles> files = std::make_shared<FaultyFiles>();
  std::unique_ptr<FileLog> log;
  std::vector<int> acknowledged;

  Result<void> open(const std::string& folder, bool sync = false) {
    auto opened = FileLog::open(io, {.folder = folder,
                                     .sync = sync,
                                     .compact_at = 300,
                                     .retry_first = 1ms,
                                     .retry_max = 4ms,
                                     .files = files});
    if (!opened) return opened.error();
    log = std::move(*opened);
    return {};
  }
  void append(int n) {
    log->append(record(n), [this, n] { acknowledged.push_back(n); });
  }
};

std::vector<int> read_back(const std::string& folder) {
  Disk disk;
  REQUIRE(disk.open(folder).has_value());
  return numbers(disk.log->take_journal());
}

TEST_CASE("FileLog: what was appended is there for the next daemon", "[journal]") {
  const Folder folder;
  const std::string path = folder.path + "/not/there yet";
  {
    Disk disk;
    REQUIRE(disk.open(path, GENERATE(false, true)).has_value());
    disk.append(1), disk.append(2);
    CHECK(disk.acknowledged == std::vector<int>{1, 2});
  }
  CHECK(read_back(path) == std::vector<int>{1, 2});
  struct stat info {};
  REQUIRE(::stat(path.c_str(), &info) == 0);
  CHECK((info.st_mode & 0777) == 0700);
}

TEST_CASE("FileLog: a second daemon is told who uses the journal", "[journal]") {
  const Folder folder;
  Disk first, second;
  REQUIRE(first.open(folder.path).has_value());
  const auto refused = second.open(folder.path);
  REQUIRE(refused.has_error());
  CHECK(refused.error().context.find("process " + std::to_string(::getpid())) != std::string::npos);
  CHECK(refused.error().context.find("--state-dir") != std::string::npos);
}

TEST_CASE("FileLog: a newer daemon's journal is refused and left alone", "[journal]") {
  const Folder folder;
  Disk disk;
  REQUIRE(disk.open(folder.path).has_value());
  disk.append(1);
  disk.log.reset();
  const std::string body = R"({"format":99,"journal":"ddprun"})";
  std::ofstream(folder.path + "/journal") << "13c9566c " + body + "\n";
  const auto bytes = [&] { return fs::file_size(folder.path + "/journal"); };
  const auto before = bytes();
  const auto refused = disk.open(folder.path);
  REQUIRE(refused.has_error());
  CHECK(refused.error().context.find("journal format 99") != std::string::npos);
  CHECK(bytes() == before);
}

TEST_CASE("FileLog: a journal of the first format is read, and rewritten soon", "[journal]") {
  const Folder folder;
  std::ofstream(folder.path + "/journal") << record(1) + record(2) + record(3).substr(0, 20);
  Disk disk;
  REQUIRE(disk.open(folder.path).has_value());
  CHECK(numbers(disk.log->take_journal()) == std::vector<int>{1, 2});
  CHECK(disk.log->wants_snapshot());
  disk.log->replace(record(12));
  CHECK_FALSE(disk.log->wants_snapshot());
  disk.append(3);
  disk.log.reset();
  CHECK(read_back(folder.path) == std::vector<int>{12, 3});
}

// Records 1 to 5; then 9 takes their place, as a snapshot would; then 6 and 7.
void life(Disk& disk) {
  for (int n = 1; n <= 5; ++n) disk.append(n);
  if (disk.log->wants_snapshot()) disk.log->replace(record(9));
  disk.append(6), disk.append(7);
}

TEST_CASE("FileLog: killed at any of its operations, a daemon loses nothing it acknowledged",
          "[journal]") {
  const bool sync = GENERATE(false, true);
  for (int at = 1;; ++at) {
    const Folder folder;
    Disk disk;
    disk.files->at = at;
    disk.files->dies = true;
    disk.files->at_most = static_cast<std::size_t>(at % 3) * 17;
    bool died = false;
    try {
      const auto opened = disk.open(folder.path, sync);
      REQUIRE(opened.has_value());
      life(disk);
    } catch (const Died&) {
      died = true;
    }
    disk.log.reset();
    INFO("operation " << at);
    std::vector<int> found = read_back(folder.path);
    if (!found.empty() && found.front() == 9) {
      found.erase(found.begin());
      found.insert(found.begin(), {1, 2, 3, 4, 5});
    }
    REQUIRE(found.size() >= disk.acknowledged.size());
    for (std::size_t i = 0; i < found.size(); ++i) REQUIRE(found[i] == static_cast<int>(i) + 1);
    if (!died) break;
    REQUIRE(at < 100);
  }
}

TEST_CASE("FileLog: whichever operation fails, all is written in order once there is room",
          "[journal]") {
  const bool sync = GENERATE(false, true);
  const bool for_good = GENERATE(false, true);
  for (int at = 3;; ++at) {  // Without folder, lock and journal it does not begin at all.
    const Folder folder;
    Disk disk;
    disk.files->at = at;
    disk.files->for_good = for_good;
    disk.files->at_most = 17;
    INFO("operation " << at);
    if (!disk.open(folder.path, sync)) continue;
    life(disk);
    const bool reached = disk.files->count >= at;
    const bool trouble = disk.log->trouble().has_value();
    if (for_good && trouble) {
      CHECK(disk.acknowledged.size() < 7);
      disk.io.run_for(5ms);  // It tries, and goes on waiting.
      CHECK(disk.log->trouble());
    }
    disk.files->at = 0;
    disk.io.restart();
    disk.io.run();
    CHECK_FALSE(disk.log->trouble());
    CHECK(disk.acknowledged == std::vector<int>{1, 2, 3, 4, 5, 6, 7});
    disk.log.reset();
    std::vector<int> found = read_back(folder.path);
    if (found.front() == 9) found.insert(found.erase(found.begin()), {1, 2, 3, 4, 5});
    CHECK(found == std::vector<int>{1, 2, 3, 4, 5, 6, 7});
    if (!reached) break;
    REQUIRE(at < 100);
  }
}

}  // namespace
}  // namespace ddprun::rendezvous
