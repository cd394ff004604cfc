// Checks of the source text: which room may include which, how wide a line may be, names that mean
// two things, and words that must not appear. A rule that is not checked here is a wish; each rule
// is also shown to be able to fail.

#include <unistd.h>

#include <catch2/catch.hpp>
#include <fstream>

#include "tests/tidy/rules.h"

namespace ddprun::tidy {
namespace {

namespace fs = std::filesystem;
using Complaints = std::vector<std::string>;

const Layers kLayers(
    "# a comment\n"
    "common : common pure\n"
    "io : common\n"
    "core : common flat\n"
    "core/{a,b} : common pure\n"
    "core/b/server : core/b common io\n"
    "launcher : common\n"
    "sdk/include : std\n"
    "worker_sdk/include : std\n"
    "tests : common core\n");

Complaints about(const std::string& path, const std::string& text) {
  return complaints_about(path, text, kLayers);
}

TEST_CASE("Tidy: the source is tidy", "[tidy]") {
  REQUIRE(fs::exists("tests/tidy/layers.txt"));  // Run it from the source root.
  std::string report;
  for (const std::string& complaint : complaints_about_tree(".")) report += complaint + "\n";
  INFO(report);
  CHECK(report.empty());
}

TEST_CASE("Tidy: a violation planted in a tree is found", "[tidy]") {
  const fs::path root = fs::temp_directory_path() / ("ddprun-tidy-" + std::to_string(::getpid()));
  fs::create_directories(root / "tests/tidy");
  fs::create_directories(root / "common/deep");
  fs::create_directories(root / "agent/x");
  fs::create_directories(root / "docs");
  std::ofstream(root / "docs/architecture.md")
      << "left/  before the plan\n## The plan\n```\nagent/  heads rooms\n  x/  a room  pure\n"
         "  above/  a third\n  gone/  another\n```\n## Two walks\n1. `agent/y.h`: a\n2. "
         "`agent/y.h`: b\n1. "
         "`agent/no.h`: c\n";
  std::ofstream(root / "tests/tidy/layers.txt")
      << "common : common pure\nagent/x : common\nagent/above : agent\nagent/gone : agent\n";
  std::ofstream(root / "common/deep/a.cc") << "#include \"agent/x/x.h\"\n";
  std::ofstream(root / "common/deep/y.h") << "#pragma once\nnamespace a {\nstruct One {};\n}\n";
  std::ofstream(root / "common/fine.h") << "#pragma once\n#include \"common/other.h\"\n"
                                        << "namespace b {\nclass One {};\n}\n";
  fs::create_directories(root / "agent/above");
  std::ofstream(root / "agent/above/z.h") << "#include \"agent/gone/z.h\"\n";
  std::ofstream(root / "agent/above/w.h") << "#include \"agent/x/x.h\"\n";
  std::ofstream(root / "agent/y.h") << "#pragma once\n";
  std::ofstream(root / "agent/y.md") << "not source\n";
  fs::create_directories(root / "docs/notes");
  const std::string wide = std::string(kColumnsMax, 'x') + " y\n";
  for (const char* page : {"README.md", "CHANGELOG.md", "docs/notes/a.md", "docs/a.txt"}) {
    std::ofstream(root / page) << "\n" << wide;
  }
  std::ofstream(root / "agent/x/claims.h") << "#pragma once\n// Adds. Pure.\n";
  std::ofstream(root / "agent/x/claims_more.cc") << "#include <thread>\n";
  const Complaints found = complaints_about_tree(root);
  fs::remove_all(root);
  CHECK(
      found ==
      Complaints{"CHANGELOG.md:2: prose over 100 columns", "README.md:2: prose over 100 columns",
                 "agent/above/w.h:1: the plan has agent/x above agent/above",
                 "agent/x/claims_more.cc:1: '#include <thread>' is banned, use one event at a time",
                 "agent/y.h: no line of layers.txt covers it",
                 "common/deep/a.cc:1: common may not include agent/x",
                 "common/deep/y.h: has the name of agent/y.h",
                 "common/fine.h: b::One has the name of a::One",
                 "docs/architecture.md: a walk enters agent/no.h, which is not there",
                 "docs/architecture.md: a walk enters agent/y.h twice",
                 "docs/architecture.md: the plan lacks agent/x",
                 "docs/architecture.md: the plan shows agent/x pure, layers.txt does not",
                 "docs/notes/a.md:2: prose over 100 columns", "layers.txt: no folder agent/gone"});
}

TEST_CASE("Tidy: layers go one way", "[tidy]") {
  CHECK(about("core/a/x.h", "#include \"common/x.h\"\n#include <vector>\n") == Complaints{});
  CHECK(about("core/a/x.h", "#include \"core/b/x.h\"\n") ==
        Complaints{"core/a/x.h:1: core/a may not include core/b"});
  CHECK(about("common/x.h", "#include \"core/a/x.h\"\n") ==
        Complaints{"common/x.h:1: common may not include core/a"});
  CHECK(about("core/a/x.cc", "#include \"nowhere/b.h\"\n") ==
        Complaints{"core/a/x.cc:1: no line of layers.txt covers nowhere/b.h"});
  CHECK(about("elsewhere/a.cc", "") ==
        Complaints{"elsewhere/a.cc: no line of layers.txt covers it"});
  CHECK(about("core/b/server/x.cc", "#include \"core/b/a.h\"\n#include \"io/x.h\"\n") ==
        Complaints{});
}

TEST_CASE("Tidy: the longest name is the room, and flat rooms have none below", "[tidy]") {
  CHECK(kLayers.room_of("core/b/more.cc") == "core/b");
  CHECK(kLayers.room_of("core/b/server/x.cc") == "core/b/server");
  CHECK(kLayers.room_of("core/x.cc") == "core");
  CHECK(kLayers.room_of("core/bee/x.cc") == "");
  CHECK(kLayers.room_of("x.cc") == "");
  CHECK(kLayers.room_of("common/any/depth.h") == "common");
  CHECK(expand_braces("x/{a,b}") == Complaints{"x/a", "x/b"});
  CHECK(expand_braces("plain") == Complaints{"plain"});
}

TEST_CASE("Tidy: a pure room includes pure files and does nothing itself", "[tidy]") {
  const Layers layers("a : b pure\nb :\n");
  CHECK(complaints_about("a/x.cc", "#include \"b/x.h\"\n", layers) ==
        Complaints{"a/x.cc:1: a/x.cc is pure and b/x.h is not"});
  for (const std::string line :
       {"#include <boost/asio/post.hpp>", "#include <sys/stat.h>", "#include <unistd.h>",
        "#include <fstream>", "#include <iostream>", "#include <thread>", "#include <mutex>",
        "auto t = Clock::now();", "char* home = getenv(\"HOME\");", "std::random_device d;"}) {
    INFO(line);
    CHECK(about("core/a/x.cc", line + "\n").size() == 1);
    CHECK(about("io/a.cc", line + "\n").empty());
  }
}

TEST_CASE("Tidy: threads of the product hold signals", "[tidy]") {
  for (const std::string line : {"std::thread([] {}).detach();", "std::thread calling([&] {",
                                 "thread_ = std::jthread(run);", "std::thread one{run};"}) {
    INFO(line);
    CHECK(about("common/x.cc", line + "\n").size() == 1);
    CHECK(about("tests/x.cc", line + "\n").empty());
    CHECK(about("common/system/signals.h", line + "\n").empty());
  }
  CHECK(about("common/x.h", "std::thread thread_;\nstd::thread::id id;\n").empty());
}

TEST_CASE("Tidy: a header that says that it is pure is held to it", "[tidy]") {
  Layers layers("a : b pure\nb : b\n");
  layers.note("b/sums.h", "#pragma once\n// Adds. Pure. Called by a.\n#include <vector>\n");
  layers.note("b/sums_file.h", "#pragma once\n// Reads a file.\n");
  layers.note("b/late.h", "#pragma once\n#include <vector>\n// Pure.\n");
  CHECK(layers.pure("b/sums.h"));
  CHECK(layers.pure("b/sums.cc"));
  CHECK(layers.pure("b/sums_of_rows.cc"));
  CHECK(!layers.pure("b/sums_file.cc"));
  CHECK(!layers.pure("b/late.h"));
  CHECK(!layers.pure("b/summary.cc"));
  CHECK(complaints_about("a/x.cc", "#include \"b/sums.h\"\n", layers).empty());
  CHECK(complaints_about("b/sums.cc", "#include \"b/sums_file.h\"\n", layers) ==
        Complaints{"b/sums.cc:1: b/sums.cc is pure and b/sums_file.h is not"});
  CHECK(complaints_about("b/sums.cc", "#include <mutex>\n", layers).size() == 1);
}

TEST_CASE("Tidy: public headers include the standard library and themselves", "[tidy]") {
  CHECK(about("worker_sdk/include/ddprun/a.h", "#include <chrono>\n#include \"ddprun/b.h\"\n") ==
        Complaints{});
  CHECK(about("worker_sdk/include/ddprun/a.h", "#include <boost/any.hpp>\n") ==
        Complaints{"worker_sdk/include/ddprun/a.h:1: worker_sdk/include may include the standard "
                   "library only, not <boost/any.hpp>"});
  CHECK(about("worker_sdk/include/ddprun/a.h", "#include \"common/x.h\"\n").size() == 1);
  CHECK(about("launcher/a.cc", "#include <ddprun/a.h>\n") ==
        Complaints{"launcher/a.cc:1: launcher may not include worker_sdk/include"});
}

TEST_CASE("Tidy: banned words are found wherever they stand", "[tidy]") {
  for (const std::string word : {"asio::"
                                 "detached",
                                 "system_"
                                 "clock",
                                 "this_thread::"
                                 "sleep_until(x)",
                                 "usleep"
                                 "(1)",
                                 "FIX"
                                 "ME",
                                 "TO"
                                 "DO",
                                 "using namespace "
                                 "std;",
                                 "#include <CLI/"
                                 "CLI.hpp>"}) {
    INFO(word);
    CHECK(about("io/a.cc", word + "\n").size() == 1);
    CHECK(about("tests/unit/a_test.cc", "// " + word + "\n").size() == 1);
  }
  CHECK(about("common/options/command_line.cc",
              "#include <CLI/"
              "CLI.hpp>\n")
            .empty());
}

TEST_CASE("Tidy: enumerators are snake_case in public headers, and kPascalCase elsewhere") {
  const std::string right = "enum class A : int { kB = 1, kC };  // none\n";
  const std::string open = "enum class A { b, two_words };\n";
  CHECK(about("io/a.cc", right).empty());
  CHECK(about("worker_sdk/include/ddprun/a.h", open).empty());
  CHECK(about("tests/unit/a_test.cc", open).empty());
  CHECK(about("worker_sdk/include/ddprun/a.h", right).size() == 2);
  CHECK(about("io/a.cc", open) ==
        Complaints{"io/a.cc: enumerator b: public ones are snake_case, all others kPascalCase",
                   "io/a.cc: enumerator two_words: public ones are snake_case, all others "
                   "kPascalCase"});
}

TEST_CASE("Tidy: types of namespaces with a name are found, others may share theirs", "[tidy]") {
  CHECK(
      types_in(
          "namespace a::b {\nstruct One {\n  struct Inner {};\n};\nnamespace {\nclass Own {};\n}\n"
          "struct Later;\nclass Two final : public One {};\nenum class Three : int { kX };\n"
          "struct One make() {\n  struct Local {};\n}\nstruct Two::Part {};\n"
          "template <>\nstruct hash<One> {};\n}\nstruct Outside {};\n"
          "template <>\nstruct std::hash<a::b::One> : std::true_type {};\n") ==
      Complaints{"a::b::One", "a::b::Two", "a::b::Three", "a::b::Two::Part", "Outside"});
  CHECK(complaints_about_doubles({{"x.h", "namespace a {\nstruct One {};\n}"},
                                  {"y.h", "namespace b {\nstruct One {};\n}"},
                                  {"z.cc", "namespace a {\nenum class One { kX };\n}"}}) ==
        Complaints{"z.cc: a::One is defined in x.h, too"});
}

TEST_CASE("Tidy: two types of one program have two names", "[tidy]") {
  const std::string one = "namespace a {\nclass Whole {\n  struct Part {};\n};\n}\n";
  const std::string same = "namespace b {\nenum class Whole { kX };\n}\n";
  const Complaints found = complaints_about_namesakes({{"agent/x.h", one}, {"launcher/y.h", same}});
  CHECK(found == Complaints{"launcher/y.h: b::Whole has the name of a::Whole"});
  CHECK(complaints_about_namesakes({{"common/x/x.h", one}, {"worker_sdk/y/y.cc", same}}).size() ==
        1);
  CHECK(complaints_about_namesakes({{"agent/x.h", one}, {"worker_sdk/y/y.h", same}}).empty());
  CHECK(
      complaints_about_namesakes({{"worker_sdk/include/x.h", one}, {"worker_sdk/torch/y.h", same}})
          .empty());
  const std::string parts =
      "namespace a {\nclass Other {};\nstruct Whole::Impl {};\n"
      "struct Other::Impl {};\n}\n";
  CHECK(complaints_about_namesakes({{"agent/x.h", one}, {"agent/y.cc", parts}}).empty());
}

TEST_CASE("Tidy: long lines", "[tidy]") {
  CHECK(about("io/a.cc", std::string(kColumnsMax, 'x') + "\n").empty());
  CHECK(about("io/a.cc", std::string(kColumnsMax + 1, 'x') + "\n").size() == 1);
  std::string boxes;
  for (int i = 0; i < kColumnsMax; ++i) boxes += "─";
  CHECK(about("io/a.cc", boxes + "\n").empty());
}

TEST_CASE("Tidy: prose is as wide as code, tables and links may be wider", "[tidy]") {
  const auto about_page = [](const std::string& text) {
    return complaints_about_prose("a.md", text);
  };
  const std::string fits(kColumnsMax, 'x');
  const std::string wide = fits + " y";
  CHECK(about_page("# Title\n\n" + fits + "\n").empty());
  CHECK(about_page("# Title\n\n" + wide + "\n") == Complaints{"a.md:3: prose over 100 columns"});
  CHECK(about_page("* item\n  " + wide + "\n").size() == 1);
  CHECK(about_page("| " + wide + " |\n|---|\n").empty());
  CHECK(about_page("  | " + wide + " |\n").empty());
  CHECK(about_page("```sh\n" + wide + "\n```\n" + wide + "\n") ==
        Complaints{"a.md:4: prose over 100 columns"});
  CHECK(about_page("[text](https://" + fits + ")\n* <https://" + fits + ">\n").empty());
  CHECK(about_page("see [text](https://" + fits + ")\n").size() == 1);
}

TEST_CASE("Tidy: comments and literals are blanked", "[tidy]") {
  const std::string blanked = without_words("a // {\nb /* } */ \"{\\\"{\" '{' 1'000 R\"x({)x\" c");
  CHECK(blanked == "a     \nb" + std::string(20, ' ') + "1'000" + std::string(10, ' ') + "c");
}

}  // namespace
}  // namespace ddprun::tidy
