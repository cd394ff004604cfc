// Checkpoints of several ranks: written, torn at every place, damaged, read by other world sizes.
// And the atomic file beneath. Ranks are threads.

#include <sys/resource.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <set>

#include "tests/fuzz/manifest_fuzz.h"
#include "tests/support/ranks.h"

namespace ddprun {
namespace {

using Catch::Matchers::Contains;
using test::outcome;
using test::Ranks;
using test::TemporaryDirectory;
namespace fs = std::filesystem;

constexpr std::size_t kLong = 1003, kShort = 3;

void require(bool ok, const std::string& text) {
  if (!ok) throw Error(ErrorKind::mismatch, {}, text);
}

std::vector<float> long_array(std::int64_t step) {
  std::vector<float> values(kLong);
  std::iota(values.begin(), values.end(), static_cast<float>(1000 * step));
  return values;
}

// An array cut evenly, one that is shorter than there may be ranks, one of rank 0 alone.
struct State {
  explicit State(std::int64_t step) : weights(long_array(step)), counts{step, 2, 3} {}

  std::vector<CheckpointPiece> pieces(const ProcessGroup& group) {
    std::vector<CheckpointPiece> result{
        even_piece(group, "weights", buffer(weights.data(), weights.size())),
        even_piece(group, "counts \xc3\xa4", buffer(counts.data(), counts.size()))};
    if (group.rank() == 0) result.push_back({.name = "note", .part = buffer(note, 3)});
    return result;
  }

  std::vector<float> weights;
  std::vector<std::int64_t> counts;
  std::uint8_t note[3] = {'h', 'e', 'y'};
};

void save(int world_size, const std::string& folder, const std::vector<std::int64_t>& steps,
          int keep = 0) {
  const auto errors = Ranks{.world_size = world_size}.run([&](ProcessGroup& group) {
    CheckpointWriter writer(group, folder, {.keep = keep});
    for (const std::int64_t step : steps) {
      State state(step);
      writer.save_async(step, state.pieces(group));
      state = State(-1);  // The copy is what counts.
    }
    writer.wait();
  });
  REQUIRE(outcome(errors) == "all well");
}

// What a rank of another world reads: its own part of the long array, all of the short one.
void check_part(const Checkpoint& checkpoint, std::int64_t step, std::size_t begin,
                std::size_t end) {
  std::vector<float> mine(end - begin);
  checkpoint.read("weights", buffer(mine.data(), mine.size()), begin);
  const auto whole = long_array(step);
  CHECK(mine == std::vector<float>(whole.begin() + static_cast<std::ptrdiff_t>(begin),
                                   whole.begin() + static_cast<std::ptrdiff_t>(end)));
  std::vector<std::int64_t> counts(kShort);
  checkpoint.read("counts \xc3\xa4", buffer(counts.data(), counts.size()));
  CHECK(counts == std::vector<std::int64_t>{step, 2, 3});
}

std::string what(const std::string& path) {
  try {
    const Checkpoint checkpoint(path);
    std::vector<float> weights(kLong);
    checkpoint.read("weights", buffer(weights.data(), kLong));
    return "nothing";
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::corrupt);
    return error.text();
  }
}

void flip(const fs::path& file, std::streamoff at) {
  std::fstream bytes(file, std::ios::in | std::ios::out | std::ios::binary);
  bytes.seekg(at);
  const auto old = static_cast<char>(bytes.get());
  bytes.seekp(at);
  bytes.put(static_cast<char>(old ^ 4));
}

}  // namespace

TEST_CASE("Checkpoint: what any number of ranks saved, any other number reads") {
  for (const int writers : {1, 2, 3, 5}) {
    INFO(writers);
    const TemporaryDirectory directory;
    save(writers, directory / "deep/folder", {7, 8});
    const auto path = latest_checkpoint(directory / "deep/folder");
    REQUIRE(path);
    CHECK_THAT(*path, Catch::EndsWith("checkpoint-000002-step-8"));
    const Checkpoint checkpoint(*path);
    CHECK(checkpoint.step() == 8);
    CHECK(checkpoint.world_size() == writers);
    CHECK(checkpoint.arrays().size() == 3);
    CHECK(checkpoint.find("note")->count == 3);
    CHECK(checkpoint.find("else") == nullptr);
    for (const std::size_t readers : {1, 2, 4, 7}) {
      for (std::size_t r = 0; r < readers; ++r) {
        check_part(checkpoint, 8, kLong * r / readers, kLong * (r + 1) / readers);
      }
    }
    check_part(Checkpoint(directory / "deep/folder/checkpoint-000001-step-7"), 7, 500, 501);
  }
}

TEST_CASE("Checkpoint: whichever file is missing, the one before is the latest") {
  const TemporaryDirectory directory;
  save(3, directory / "c", {1, 2});
  const std::string last = directory / "c/checkpoint-000002-step-2";
  for (const std::string file : {"rank-0.bin", "rank-1.bin", "rank-2.bin", "manifest.json"}) {
    INFO(file);
    fs::rename(last + "/" + file, last + "/" + file + ".tmp");  // As its writer left it.
    CHECK_THAT(latest_checkpoint(directory / "c").value(), Catch::EndsWith("-step-1"));
    CHECK_THAT(what(last), Contains("torn") && Contains(file));
    fs::rename(last + "/" + file + ".tmp", last + "/" + file);
    CHECK(latest_checkpoint(directory / "c") == last);
  }
}

TEST_CASE("Checkpoint: a bit that flipped, anywhere, is noticed and its file named") {
  const TemporaryDirectory directory;
  save(2, directory / "c", {1});
  const std::string path = latest_checkpoint(directory / "c").value();
  CHECK(what(path) == "nothing");
  for (const std::streamoff at : {0, 1, 1000, 2003}) {
    flip(path + "/rank-1.bin", at);
    CHECK_THAT(what(path), Contains("rank-1.bin is damaged in array 'weights'"));
    flip(path + "/rank-1.bin", at);
  }
  const auto size = static_cast<std::streamoff>(fs::file_size(path + "/manifest.json"));
  for (std::streamoff at = 0; at < size; at += 7) {
    flip(path + "/manifest.json", at);
    const std::string verdict = what(path);
    const bool blank = verdict == "nothing";  // Between words bits may flip blanks to other blanks.
    if (!blank) CHECK_THAT(verdict, Contains("manifest.json is damaged"));
    flip(path + "/manifest.json", at);
  }
  fs::resize_file(path + "/rank-0.bin", 17);
  CHECK_THAT(what(path), Contains("rank-0.bin has 17 bytes instead of "));
  CHECK_FALSE(latest_checkpoint(directory / "c"));
}

TEST_CASE("Checkpoint: pieces that are no whole array are refused by all ranks, which go on") {
  const TemporaryDirectory directory;
  std::vector<float> values(8);
  const auto piece = [&](std::size_t offset, std::size_t count, std::size_t total) {
    return CheckpointPiece{"w", buffer(values.data(), count), offset, total};
  };
  struct Case {
    CheckpointPiece first, second;
    std::string why;
  };
  const Case cases[] = {
      {piece(0, 4, 8), piece(5, 3, 8), "'w' lacks elements, from 4 on"},
      {piece(0, 4, 8), piece(3, 5, 8), "'w' has elements that are saved twice, at 3 on"},
      {piece(0, 4, 8), piece(4, 2, 8), "'w' has 8 elements, of which 6 are saved"},
      {piece(0, 4, 8), piece(4, 5, 9), "'w' is f32 x 8 and f32 x 9"},
      {piece(0, 4, 8), piece(4, 8, 8), "rank 1 on "},
      {piece(0, 8, 0), {"\xff", buffer(values.data(), 8)}, "not UTF-8"},
      {piece(0, 8, 0), {"x", {nullptr, 8, DataType::f32}}, "null or of an unknown type"}};
  for (const Case& c : cases) {
    INFO(c.why);
    const auto errors = Ranks{.world_size = 2}.run([&](ProcessGroup& group) {
      CheckpointWriter writer(group, directory / "c");
      std::string verdict;
      try {
        writer.save(1, std::span(group.rank() == 0 ? &c.first : &c.second, 1));
      } catch (const Error& error) {
        if (error.kind() == ErrorKind::bad_argument) verdict = error.text();
      }
      require(verdict.find(c.why) != std::string::npos, "said: " + verdict);
      const CheckpointPiece good{"w", buffer(values.data(), 8)};
      writer.save(1, std::span(&good, group.rank() == 0 ? 1U : 0U));
    });
    CHECK(outcome(errors) == "all well");
  }
}

TEST_CASE("Checkpoint: ranks that save different steps are told") {
  const TemporaryDirectory directory;
  const auto errors = Ranks{.world_size = 2}.run([&](ProcessGroup& group) {
    CheckpointWriter writer(group, directory / "c");
    writer.save(group.rank(), {});
  });
  REQUIRE(errors[0]);
  CHECK_THAT(errors[0]->what(), Contains("rank 1 saves step 1, rank 0 step 0"));
}

TEST_CASE("Checkpoint: what one rank cannot write all ranks hear, at the next call or in wait()") {
  for (const bool in_wait : {true, false}) {
    INFO(in_wait);
    const TemporaryDirectory directory;
    const auto errors = Ranks{.world_size = 2}.run([&](ProcessGroup& group) {
      State state(1);
      const bool fails = group.rank() == 1;  // It has a file where the folder shall be.
      if (fails) std::ofstream(directory / "file") << "in the way";
      CheckpointWriter writer(group, directory / (fails ? "file/c" : "c"));
      writer.save_async(1, state.pieces(group));
      std::string verdict;
      try {
        in_wait ? writer.wait() : writer.save_async(2, state.pieces(group));
      } catch (const Error& error) {
        require(error.kind() == ErrorKind::system && error.where().peer == 1, error.what());
        verdict = error.text();
      }
      require(verdict.find("rank 1 on ") == 0 && verdict.find("cannot create") != std::string::npos,
              "said: " + verdict);
      if (fails) fs::remove(directory / "file");
      if (fails) fs::create_directory_symlink(directory / "", directory / "file");
      writer.save(3, state.pieces(group));
    });
    CHECK(outcome(errors) == "all well");
    const std::string number =
        in_wait ? "2" : "3";  // That of a save that failed is not used again.
    CHECK(fs::exists(directory / ("c/checkpoint-00000" + number + "-step-3/manifest.json")));
    CHECK(latest_checkpoint(directory / "c"));
  }
}

// The error on all of two ranks, each of which has a folder of its own.
std::string error_of_folders(const TemporaryDirectory& directory, bool in_wait) {
  std::string verdict[2];
  const auto errors = Ranks{.world_size = 2}.run([&](ProcessGroup& group) {
    std::string& text = verdict[group.rank()];
    State state(1);
    CheckpointWriter writer(group, directory / std::to_string(group.rank()));
    try {
      if (in_wait) return writer.save(1, state.pieces(group));
      for (int step = 1; step <= 3; ++step) {
        text = std::to_string(step) + ": ";
        writer.save_async(step, state.pieces(group));
      }
    } catch (const Error& error) {
      require(error.kind() == ErrorKind::system && error.where().peer == 0, error.what());
      text += error.text();
    }
  });
  CHECK(outcome(errors) == "all well");
  CHECK(verdict[0] == verdict[1]);
  return verdict[0];
}

TEST_CASE("Checkpoint: a folder that the ranks do not share is no success") {
  const TemporaryDirectory directory;
  CHECK_THAT(error_of_folders(directory, true),
             Contains("rank 0 on ") && Contains("checkpoint-000001-step-1: what rank 1 on ") &&
                 Contains(" wrote there is not here: the folder must be shared by all hosts"));
  CHECK_FALSE(fs::exists(directory / "0/checkpoint-000001-step-1/seen"));
  const std::string later = error_of_folders(directory, false);
  CHECK_THAT(later, Catch::StartsWith("3: rank 0 on ") &&
                        Contains("checkpoint-000002-step-1: what rank "));
}

TEST_CASE("Checkpoint: one that somebody has taken away since is no failure") {
  const TemporaryDirectory directory;
  const auto errors = Ranks{.world_size = 2}.run([&](ProcessGroup& group) {
    State state(1);
    CheckpointWriter writer(group, directory / "c");
    writer.save_async(1, state.pieces(group));
    while (group.rank() == 0 && !latest_checkpoint(directory / "c")) std::this_thread::yield();
    group.barrier();
    const std::string path = directory / "c/checkpoint-000001-step-1";
    if (group.rank() == 0) fs::remove(path + "/manifest.json"), fs::remove(path + "/rank-1.bin");
    group.barrier();
    writer.wait();
  });
  CHECK(outcome(errors) == "all well");
}

TEST_CASE("Checkpoint: a folder that cannot be is named on all ranks, and later saves work") {
  const TemporaryDirectory directory;
  std::ofstream(directory / "file") << "in the way";
  const auto errors = Ranks{.world_size = 2}.run([&](ProcessGroup& group) {
    State state(1);
    CheckpointWriter writer(group, directory / "file/c");
    for (int attempt = 0; attempt < 2; ++attempt) {
      std::string verdict;
      try {
        writer.save(1, state.pieces(group));
      } catch (const Error& error) {
        require(error.kind() == ErrorKind::system, "another kind");
        verdict = error.text();
      }
      require(verdict.find("file/c") != std::string::npos && verdict.find("rank 0") == 0, verdict);
    }
  });
  CHECK(outcome(errors) == "all well");
}

TEST_CASE("Checkpoint: only as many are kept as wished, and nothing torn that is older") {
  const TemporaryDirectory directory;
  save(2, directory / "c", {1, 2, 3});
  fs::remove(directory / "c/checkpoint-000002-step-2/rank-1.bin");
  save(2, directory / "c", {4, 2}, 2);  // A run that went back: numbers count, not steps.
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(directory / "c")) {
    names.insert(entry.path().filename());
  }
  CHECK(names == std::set<std::string>{"checkpoint-000004-step-4", "checkpoint-000005-step-2"});
  CHECK_THAT(latest_checkpoint(directory / "c").value(), Catch::EndsWith("000005-step-2"));
}

TEST_CASE("Checkpoint: the one too many is gone after each save, whoever has written last") {
  const TemporaryDirectory directory;
  const auto errors = Ranks{.world_size = 2}.run([&](ProcessGroup& group) {
    constexpr std::size_t kFirst = 1, kAll = std::size_t{8} << 20;  // Rank 1's part: 32 MiB.
    const std::size_t begin = group.rank() == 0 ? 0 : kFirst;
    std::vector<float> part(group.rank() == 0 ? kFirst : kAll - kFirst);
    CheckpointWriter writer(group, directory / "c", {.keep = 1});
    for (std::int64_t step = 0; step < 8; ++step) {
      writer.save(step, std::vector<CheckpointPiece>{
                            {"weights", buffer(part.data(), part.size()), begin, kAll}});
      if (group.rank() != 0) continue;
      const auto left = std::distance(fs::directory_iterator(directory / "c"), {});
      require(left == 1, std::to_string(left) + " after step " + std::to_string(step));
    }
  });
  CHECK(outcome(errors) == "all well");
}

TEST_CASE("Checkpoint: all ranks hear which is the latest, or why rank 0 cannot say") {
  const TemporaryDirectory directory;
  save(2, directory / "c", {5});
  const auto errors = Ranks{.world_size = 2}.run([&](ProcessGroup& group) {
    const auto path = latest_checkpoint(group, group.rank() == 0 ? directory / "c" : "");
    require(path && path->ends_with("checkpoint-000001-step-5"), "not found");
    require(!latest_checkpoint(group, directory / "nowhere"), "found something");
  });
  CHECK(outcome(errors) == "all well");
}

TEST_CASE(
    "Checkpoint: who reads without a group goes on to the newer one where ranks take one away") {
  const TemporaryDirectory directory;
  const std::string folder = directory / "run";
  int calls = 0;
  std::vector<float> weights(kLong);
  const auto read = [&](const Checkpoint& from) {
    ++calls;
    from.read("weights", buffer(weights.data(), weights.size()));
  };
  CHECK_FALSE(load_latest(folder, read));
  CHECK(calls == 0);
  save(2, folder, {3});
  CHECK(load_latest(folder, read) == 3);
  CHECK(calls == 1);
  const auto read_late = [&](const Checkpoint& from) {
    if (from.step() == 3) save(2, folder, {4}, /*keep=*/1);
    read(from);
  };
  CHECK(load_latest(folder, read_late) == 4);
  CHECK(calls == 3);
  CHECK(weights == long_array(4));
  // An error of its own passes, for there is no other checkpoint.
  const auto fail = [&](const Checkpoint& from) {
    ++calls;
    from.read("no such", buffer(weights.data(), weights.size()));
  };
  CHECK_THROWS_WITH(load_latest(folder, fail), Contains("no such"));
  CHECK(calls == 4);
}

TEST_CASE("Checkpoint: reading asks for what there is") {
  const TemporaryDirectory directory;
  save(1, directory / "c", {5});
  const Checkpoint checkpoint(latest_checkpoint(directory / "c").value());
  std::vector<float> out(kLong + 1);
  const auto read = [&](const char* name, Buffer to, std::size_t offset) {
    checkpoint.read(name, to, offset);
  };
  CHECK_THROWS_WITH(read("w", buffer(out.data(), 1), 0), Contains("there is no array 'w'"));
  CHECK_THROWS_WITH(read("note", buffer(out.data(), 1), 0), Contains("of type u8, not f32"));
  CHECK_THROWS_WITH(read("weights", buffer(out.data(), kLong + 1), 0), Contains("1003 elements"));
  CHECK_THROWS_WITH(read("weights", buffer(out.data(), 1), kLong), Contains("not 1003 + 1"));
  read("weights", buffer(out.data(), 0), kLong);
  read("weights", Buffer{nullptr, 0, DataType::f32}, 0);
  CHECK_THROWS_WITH(read("weights", Buffer{nullptr, 3, DataType::f32}, 0),
                    Contains("Checkpoint::read") && Contains("for array 'weights' is null"));
}

TEST_CASE("Manifest: damaged text is refused, never believed", "[fuzz]") {
  fuzz::manifests_with_damage(20'000);
  SUCCEED();
}

TEST_CASE("Atomic file: the new contents replace the old") {
  const TemporaryDirectory directory;
  const std::string path = directory / "c";
  CHECK_FALSE(read_file(path));
  replace_file(path, "one");
  replace_file(path, std::string(100000, 'x'));
  CHECK(read_file(path) == std::string(100000, 'x'));
  CHECK_FALSE(std::filesystem::exists(path + ".tmp"));
}

TEST_CASE("Atomic file: where the new one does not fit the old one stays") {
  const TemporaryDirectory directory;
  const std::string path = directory / "c";
  replace_file(path, "old");
  rlimit before{};
  REQUIRE(getrlimit(RLIMIT_FSIZE, &before) == 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{4096, before.rlim_max};
  REQUIRE(setrlimit(RLIMIT_FSIZE, &small) == 0);
  std::string verdict;
  try {
    replace_file(path, std::string(10000, 'x'));
  } catch (const std::exception& e) {
    verdict = e.what();
  }
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  CHECK_THAT(verdict, Contains("cannot write " + path + ".tmp: File too large"));
  CHECK(read_file(path) == "old");
  CHECK_FALSE(std::filesystem::exists(path + ".tmp"));
}

TEST_CASE("Atomic file: a folder that is not there is named") {
  CHECK_THROWS_WITH(replace_file("/nowhere/c", "x"), Contains("cannot create /nowhere/c.tmp"));
}

// Hosts that do not share a folder: ranks 0 and 1 are on host a, 2 and 3 on host b.
struct Hosts {
  TemporaryDirectory directory{};

  CheckpointPlace of(const std::string& host) const {
    return {.folder = directory / (host + "/own/model"),
            .shared = false,
            .copies = directory / (host + "/copies"),
            .within = "model"};
  }
  CheckpointPlace of(const ProcessGroup& group) const { return of(group.rank() < 2 ? "a" : "b"); }

  void save(const std::vector<std::int64_t>& steps, int keep = 0, std::uint64_t whole = 0) const {
    const auto errors = Ranks{.world_size = 4}.run([&](ProcessGroup& group) {
      CheckpointWriter writer(group, of(group), {.keep = keep, .whole = whole});
      for (const std::int64_t step : steps) {
        State state(step);
        writer.save_async(step, state.pieces(group));
      }
      writer.wait();
    });
    REQUIRE(outcome(errors) == "all well");
  }

  // What the agent does: host `from` as it is now, on host `to`.
  void copy(const std::string& from, const std::string& to) const {
    fs::create_directories(directory / (to + "/copies/" + from));
    fs::copy(directory / (from + "/own"), directory / (to + "/copies/" + from),
             fs::copy_options::recursive | fs::copy_options::overwrite_existing);
  }

  // The step that `ranks` find, all of whose content they check; -1: none.
  std::int64_t latest(int ranks, const std::vector<CheckpointPlace>& more = {}) const {
    std::vector<std::int64_t> steps(static_cast<std::size_t>(ranks), -2);
    const auto errors = Ranks{.world_size = ranks}.run([&](ProcessGroup& group) {
      std::vector<CheckpointPlace> places{of(group)};
      places.insert(places.end(), more.begin(), more.end());
      const auto path = latest_checkpoint(group, places);
      std::int64_t& step = steps[static_cast<std::size_t>(group.rank())];
      step = -1;
      if (!path) return;
      const Checkpoint checkpoint(*path);
      step = checkpoint.step();
      std::vector<float> weights(kLong);
      checkpoint.read("weights", buffer(weights.data(), weights.size()));
      require(weights == long_array(step), "weights of another step than " + std::to_string(step));
    });
    CHECK(outcome(errors) == "all well");
    for (const std::int64_t step : steps) CHECK(step == steps.front());
    return steps.front();
  }
};

TEST_CASE("Checkpoint in memory: each host has its ranks' files, and fetches the others'") {
  const Hosts hosts;
  CHECK(hosts.latest(4) == -1);
  hosts.save({7, 8});
  const std::string path = "/own/model/checkpoint-000002-step-8/";
  CHECK(fs::exists(hosts.directory / ("a" + path + "rank-1.bin")));
  CHECK_FALSE(fs::exists(hosts.directory / ("a" + path + "rank-2.bin")));
  CHECK(fs::exists(hosts.directory / ("b" + path + "manifest.json")));
  CHECK(hosts.latest(4) == 8);
  CHECK(fs::exists(hosts.directory / ("a" + path + "rank-2.bin")));
  CHECK(fs::exists(hosts.directory / ("b" + path + "rank-0.bin")));
}

TEST_CASE("Checkpoint in memory: a host's copy of a lost host is enough") {
  const Hosts hosts;
  hosts.save({7});
  hosts.copy("b", "a");
  fs::remove_all(hosts.directory / "b");
  SECTION("with it") { CHECK(hosts.latest(2) == 7); }
  SECTION("and without it there is nothing") {
    fs::remove_all(hosts.directory / "a/copies");
    CHECK(hosts.latest(2) == -1);
  }
}

TEST_CASE("Checkpoint in memory: one that is torn on any host is passed over on all") {
  const Hosts hosts;
  hosts.save({7, 8});
  const std::string torn = hosts.directory / "b/own/model/checkpoint-000002-step-8/rank-3.bin";
  SECTION("a file is missing") {
    fs::remove(torn);
    CHECK(hosts.latest(4) == 7);
  }
  SECTION("a file is short") {
    fs::resize_file(torn, 5);
    CHECK(hosts.latest(4) == 7);
  }
  SECTION("and the next one has another number") {
    fs::remove(torn);
    hosts.save({9});
    CHECK(hosts.latest(4) == 9);
  }
}

TEST_CASE("Checkpoint in memory: the last whole one stays while those after it are torn") {
  const Hosts hosts;
  const auto tear = [&](const char* name) {
    fs::remove(hosts.directory / ("b/own/model/" + std::string(name) + "/rank-3.bin"));
  };
  const auto has_first = [&] {
    return fs::exists(hosts.directory / "a/own/model/checkpoint-000001-step-7");
  };
  hosts.save({7}, 1);
  hosts.save({8}, 1);
  tear("checkpoint-000002-step-8");
  hosts.save({9}, 1);
  tear("checkpoint-000003-step-9");
  CHECK(hosts.latest(4) == 7);
  hosts.save({10}, 1, 1);  // By ranks that have loaded the first one.
  tear("checkpoint-000004-step-10");
  CHECK(hosts.latest(4) == 7);
  CHECK_FALSE(fs::exists(hosts.directory / "a/own/model/checkpoint-000003-step-9"));
  hosts.save({11, 12}, 1, 1);
  CHECK_FALSE(has_first());
  CHECK(hosts.latest(4) == 12);
}

TEST_CASE("Checkpoint in memory: a copy that is older than the host is not mixed with it") {
  const Hosts hosts;
  hosts.save({7, 8});
  hosts.copy("b", "a");
  hosts.save({9, 10});
  fs::remove_all(hosts.directory / "b");
  CHECK(hosts.latest(2) == 8);
}

TEST_CASE("Checkpoint in memory: two stay beside the newest, or as many as are wanted") {
  const auto left = [](const Hosts& hosts) {
    const fs::directory_iterator all(hosts.directory / "a/own/model");
    return std::distance(begin(all), end(all));
  };
  const Hosts two, one;
  two.save({1, 2, 3, 4, 5});
  CHECK(left(two) == 3);
  one.save({1, 2, 3, 4, 5}, 1);
  CHECK(left(one) == 2);
  CHECK(one.latest(4) == 5);
}

TEST_CASE(
    "Checkpoint in memory: the newest is that of the highest number, however many digits it has") {
  const Hosts hosts;
  hosts.save({7});
  for (const std::string host : {"a", "b"}) {
    const std::string folder = hosts.directory / (host + "/own/model/checkpoint-");
    fs::rename(folder + "000001-step-7", folder + "999999-step-7");
  }
  hosts.save({8});
  CHECK(fs::exists(hosts.directory / "a/own/model/checkpoint-1000000-step-8"));
  CHECK(hosts.latest(4) == 8);
}

TEST_CASE("Checkpoint in memory: the highest step of memory and disk is taken") {
  const Hosts hosts;
  const std::string disk = hosts.directory / "disk";
  save(3, disk, {6});
  CHECK(hosts.latest(4, {{disk}}) == 6);
  hosts.save({7});
  CHECK(hosts.latest(4, {{disk}}) == 7);
  save(3, disk, {8});
  CHECK(hosts.latest(4, {{disk}}) == 8);
}

TEST_CASE("Checkpoint in memory: without a memory folder the flag is named") {
  ::unsetenv("DDPRUN_MEMORY");
  CHECK_FALSE(has_memory_folder());
  CHECK_THROWS_WITH(in_memory(), Contains("ddprun --memory-folder SIZE"));
  ::setenv("DDPRUN_MEMORY", "/m", 1);
  ::setenv("DDPRUN_MEMORY_COPIES", "/c", 1);
  CHECK(in_memory("x").folder == "/m/x");
  CHECK(in_memory("x").copies == "/c");
  ::unsetenv("DDPRUN_MEMORY");
  ::unsetenv("DDPRUN_MEMORY_COPIES");
}

}  // namespace ddprun
