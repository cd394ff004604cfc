#include "agent/output/log_files.h"

#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

#include "agent/lines/lines.h"
#include "common/system/secrets.h"

namespace ddprun::agent {
namespace {

namespace fs = std::filesystem;

TEST_CASE("LogFiles: folders are named as torchrun names them", "[log_files]") {
  const fs::path base = fs::temp_directory_path() / ("log_files_" + random_hex(8));
  const LogFolder logs = LogFolder::create(base.string(), "job/7").value();
  CHECK(logs.folder().starts_with((base / "job_7_").string()));
  CHECK(logs.make_worker_folder(2, 13).value() == logs.folder() + "/attempt_2/13");
  CHECK(fs::is_directory(logs.folder() + "/attempt_2/13"));
  CHECK(logs.error_file(2, 13) == logs.folder() + "/attempt_2/13/error.json");
  CHECK(logs.dump_file(2, 13) == logs.folder() + "/attempt_2/13/flight_recorder.json");
  CHECK(LogFolder::create(base.string(), "job/7").value().folder() != logs.folder());
  fs::remove_all(base);
}

TEST_CASE("LogFiles: for error files alone there is one folder for all workers", "[log_files]") {
  const fs::path base = fs::temp_directory_path() / ("log_files_" + random_hex(8));
  fs::create_directories(base);
  const LogFolder logs = LogFolder::for_error_files(base.string(), "error_");
  CHECK(logs.error_file(0, 1) != LogFolder::for_error_files(base, "error_1_").error_file(0, 1));
  CHECK(logs.make_worker_folder(0, 1).value() == logs.folder());
  CHECK(logs.dump_file(0, 1).empty());  // The folder is gone with the run.
  CHECK(logs.error_file(0, 1) != logs.error_file(0, 2));
  CHECK(logs.error_file(0, 1) != logs.error_file(1, 1));
  std::ofstream(logs.error_file(0, 1)) << "{}";
  logs.make_worker_folder(0, 1).value();
  CHECK(!fs::exists(logs.error_file(0, 1)));
  fs::remove_all(base);
}

TEST_CASE("LogFiles: an earlier round's error file does not survive, its lines do", "[log_files]") {
  const fs::path base = fs::temp_directory_path() / ("log_files_" + random_hex(8));
  const LogFolder logs = LogFolder::create(base.string(), "job").value();
  const std::string folder = logs.make_worker_folder(0, 0).value();
  std::ofstream(folder + "/error.json") << "{}";
  std::ofstream(folder + "/stderr.log") << "first\n";
  logs.make_worker_folder(0, 0).value();
  CHECK(!fs::exists(folder + "/error.json"));
  {
    LogFile log = LogFile::open(folder + "/stderr.log", {}).value();
    log.write(0, "second\n");
  }
  CHECK(read_file_end(folder + "/stderr.log", 1000) == "first\nsecond\n");
  CHECK(read_file_end(folder + "/stderr.log", 7) == "second\n");
  fs::remove_all(base);
}

TEST_CASE("LogFiles: /dev/null means no files, an impossible folder is an error", "[log_files]") {
  const LogFolder none = LogFolder::create("/dev/null", "job").value();
  CHECK(!none.enabled());
  CHECK(none.error_file(0, 0).empty());
  const auto failed = LogFolder::create("/proc/no/such", "job");
  REQUIRE(failed.has_error());
  CHECK(to_string(failed.error()).starts_with("making the log folder /proc/no/such: "));
  CHECK(read_file_end("/no/such/file", 10).empty());
  CHECK(LogFile::open("/no/such/file", {}).has_error());
}

TEST_CASE("LinePrefix: macros are replaced, all else stays", "[line_prefix]") {
  const LinePrefixFacts facts{
      .role_name = "default", .rank = 12, .local_rank = 4, .hostname = "n1"};
  CHECK(expand_line_prefix(kDefaultLinePrefix, facts) == "[default12]:");
  CHECK(expand_line_prefix("${hostname}/${local_rank} ", facts) == "n1/4 ");
  CHECK(expand_line_prefix("$rank ${unknown} ${rank", facts) == "$rank ${unknown} ${rank");
  CHECK(expand_line_prefix("", facts).empty());
}

}  // namespace
}  // namespace ddprun::agent
