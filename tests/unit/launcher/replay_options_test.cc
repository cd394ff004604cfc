#include "launcher/options/replay_options.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <vector>

#include "launcher/replay/replay.h"

namespace ddprun::launcher {
namespace {

using Words = std::vector<std::string>;

Result<ReplayOutcome> replay(const Words& words) {
  std::vector<const char*> argv = {"replay"};
  for (const std::string& word : words) argv.push_back(word.c_str());
  return parse_replay(static_cast<int>(argv.size()), argv.data());
}

std::string refused(const Words& words) {
  const auto outcome = replay(words);
  return outcome ? "" : outcome.error().context;
}

TEST_CASE("Replay options: what stands behind the dashes is the program's") {
  const auto plain = std::get<ReplayOptions>(replay({"a.bundle"}).value());
  CHECK(plain.bundle == "a.bundle");
  CHECK_FALSE(plain.shard);
  CHECK(plain.argv.empty());
  const auto all = std::get<ReplayOptions>(
      replay({"--shard", "7", "a.bundle", "--with", "gdb --args", "--", "train.py", "--pdb", "--"})
          .value());
  CHECK(all.shard == 7);
  CHECK(all.with == Words{"gdb", "--args"});
  CHECK_FALSE(all.pdb);
  CHECK(all.argv == Words{"train.py", "--pdb", "--"});
  CHECK(std::get<PrintAndExit>(replay({"--help"}).value()).text.find("Examples") !=
        std::string::npos);
}

TEST_CASE("Replay options: a wrong line is refused with its cure") {
  CHECK(refused({}).find("bundle is required") != std::string::npos);
  CHECK(refused({"a.bundle", "train.py"}).find("PROGRAM stands behind --") != std::string::npos);
  CHECK(refused({"a.bundle", "--shard", "x"}).find("--shard") != std::string::npos);
  CHECK(refused({"a.bundle", "--pdb", "--with", "gdb"}).find("excludes") != std::string::npos);
}

TEST_CASE("Replay options: a bisection takes a folder, and no shard") {
  const auto all = std::get<ReplayOptions>(replay({"--bisect", "bundles", "--run", "a"}).value());
  CHECK(all.bisect);
  CHECK(all.bundle == "bundles");
  CHECK(all.run == "a");
  CHECK(refused({"--bisect", "bundles", "--shard", "3"}).find("excludes") != std::string::npos);
  CHECK(refused({"a.bundle", "--run", "a"}).find("--bisect") != std::string::npos);
}

TEST_CASE("Bisection: it finds each first bad one, with few questions and none twice") {
  for (std::size_t n = 1; n <= 40; ++n) {
    for (std::size_t bad = 0; bad <= n; ++bad) {
      std::vector<std::size_t> asked;
      const auto found = first_bad(n, [&](std::size_t i) -> Result<bool> {
        asked.push_back(i);
        return i >= bad;
      });
      CHECK(found.value() == bad);
      CHECK(asked.front() == 0);
      CHECK(asked.size() <= 8);
      std::ranges::sort(asked);
      CHECK(std::ranges::adjacent_find(asked) == asked.end());
    }
  }
  const auto failed = first_bad(4, [](std::size_t i) -> Result<bool> {
    if (i == 3) return Failure{Errc::kNotFound, "no program"};
    return false;
  });
  CHECK(failed.error().context == "no program");
}

TEST_CASE("Replay options: Python's debugger stands behind the interpreter and its options") {
  const Words pdb = {"-m", "pdb", "-c", "continue"};
  const auto with = [&](Words before, const Words& after) {
    before.insert(before.end(), pdb.begin(), pdb.end());
    before.insert(before.end(), after.begin(), after.end());
    return before;
  };
  CHECK(with_pdb({"/usr/bin/python3", "-u", "train.py", "-m"}) ==
        with({"/usr/bin/python3", "-u"}, {"train.py", "-m"}));
  CHECK(with_pdb({"python3.11", "-X", "dev", "-m", "pkg.train"}) ==
        with({"python3.11", "-X", "dev"}, {"-m", "pkg.train"}));
  CHECK(with_pdb({"./trainer", "train.py"}).empty());
  CHECK(with_pdb({"python3", "-c", "import x"}).empty());
  CHECK(with_pdb({"python3", "-u"}).empty());
}

}  // namespace
}  // namespace ddprun::launcher
