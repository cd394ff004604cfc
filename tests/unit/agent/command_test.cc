#include "agent/node/command.h"

#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "common/system/secrets.h"

namespace ddprun::agent {
namespace {

// A file system in a map.
struct FakeFiles : FileProbe {
  std::map<std::string, FileKind> files = {{"/usr/bin/python3", FileKind::kExecutable},
                                           {"/usr/bin/env", FileKind::kExecutable},
                                           {"/job/train.py", FileKind::kFile},
                                           {"/job/train", FileKind::kExecutable},
                                           {"/job/notes", FileKind::kFile},
                                           {"/job/data", FileKind::kFolder},
                                           {"/usr/bin/data", FileKind::kExecutable},
                                           {"/opt/ddprun/bin/all_reduce", FileKind::kExecutable},
                                           {"/opt/ddprun/bin/demo.py", FileKind::kFile}};

  FileKind kind(const std::string& path) const override {
    const auto found = files.find(path);
    return found == files.end() ? FileKind::kAbsent : found->second;
  }
  std::vector<std::string> names_in(const std::string& folder) const override {
    std::vector<std::string> names;
    for (const auto& [path, kind] : files) {
      if (path.starts_with(folder + "/")) names.push_back(path.substr(folder.size() + 1));
    }
    return names;
  }
  std::set<std::string> applications = {"/job/app", "/job/app.pyz", "/job/packed.py"};
  bool is_application(const std::string& path) const override {
    return applications.contains(path);
  }
};

const CommandContext kContext{.working_folder = "/job",
                              .path = "/usr/local/bin:/usr/bin",
                              .python = "",
                              .own_folders = {"/opt/ddprun/bin"}};
using Argv = std::vector<std::string>;

Argv resolve(const CommandRequest& request, const CommandContext& context = kContext) {
  return resolve_command(request, context, FakeFiles()).value();
}

std::string error_of(const CommandRequest& request) {
  const auto result = resolve_command(request, kContext, FakeFiles());
  REQUIRE(result.has_error());
  return to_string(result.error());
}

TEST_CASE("Command: a script is run by Python, unbuffered, under the name that was typed",
          "[command]") {
  CHECK(resolve({.program = "train.py", .arguments = {"--lr", "1"}}) ==
        Argv{"/usr/bin/python3", "-u", "train.py", "--lr", "1"});
  CHECK(resolve({.program = "./train.py"}) == Argv{"/usr/bin/python3", "-u", "./train.py"});
  CHECK(resolve({.program = "demo.py"}) ==
        Argv{"/usr/bin/python3", "-u", "/opt/ddprun/bin/demo.py"});
}

TEST_CASE("Command: --run-path is Python's runpy, of any file", "[command]") {
  const Argv argv = resolve({.program = "notes", .arguments = {"x"}, .run_path = true});
  REQUIRE(argv.size() == 6);
  CHECK(Argv(argv.begin(), argv.begin() + 3) == Argv{"/usr/bin/python3", "-u", "-c"});
  CHECK(argv[3].find("runpy.run_path(sys.argv[0], run_name='__main__')") != std::string::npos);
  CHECK(Argv(argv.begin() + 4, argv.end()) == Argv{"notes", "x"});
  // As in torchrun it wins over --no-python.
  CHECK(resolve({.program = "train.py", .no_python = true, .run_path = true}).size() == 5);
  CHECK(error_of({.program = "m", .module = true, .run_path = true})
            .starts_with("-m and --run-path exclude each other"));
}

TEST_CASE("Command: a module is run by Python", "[command]") {
  CHECK(resolve({.program = "pkg.train", .arguments = {"x"}, .module = true}) ==
        Argv{"/usr/bin/python3", "-u", "-m", "pkg.train", "x"});
  CHECK(error_of({.program = "m", .module = true, .no_python = true}) ==
        "-m and --no-python exclude each other: bad option");
}

TEST_CASE("Command: Python runs a folder with a __main__.py, and a zip archive", "[command]") {
  CHECK(resolve({.program = "app", .arguments = {"--lr", "1"}}) ==
        Argv{"/usr/bin/python3", "-u", "app", "--lr", "1"});
  CHECK(resolve({.program = "./app.pyz"}) == Argv{"/usr/bin/python3", "-u", "./app.pyz"});
  CHECK(resolve({.program = "/job/app.pyz", .pass_local_rank = true}) ==
        Argv{"/usr/bin/python3", "-u", "/job/app.pyz", "--local-rank=${local_rank}"});
  CHECK(resolve({.program = "packed.py"}) == Argv{"/usr/bin/python3", "-u", "packed.py"});
  CHECK(error_of({.program = "./app", .no_python = true}).starts_with("cannot run ./app"));
}

TEST_CASE("Command: PYTHON_EXEC chooses the interpreter", "[command]") {
  CommandContext context = kContext;
  context.python = "/usr/bin/env";
  CHECK(resolve({.program = "train.py"}, context)[0] == "/usr/bin/env");
  context.python = "python4";
  CHECK(to_string(resolve_command({.program = "train.py"}, context, FakeFiles()).error()) ==
        "cannot run python4 (looked in /job, in PATH, in /opt/ddprun/bin; did you mean "
        "/usr/bin/python3?): "
        "not found");
}

TEST_CASE("Command: an executable is run itself, from here, PATH or ddprun's own folder",
          "[command]") {
  CHECK(resolve({.program = "./train"}) == Argv{"/job/train"});
  CHECK(resolve({.program = "train"}) == Argv{"/job/train"});
  CHECK(resolve({.program = "env"}) == Argv{"/usr/bin/env"});
  CHECK(resolve({.program = "all_reduce"}) == Argv{"/opt/ddprun/bin/all_reduce"});
  CHECK(resolve({.program = "/job/train", .no_python = true}) == Argv{"/job/train"});
  CHECK(resolve({.program = "data"}) == Argv{"/usr/bin/data"});  // Not the folder ./data.
}

TEST_CASE("Command: --no-python wants even a .py to be executable", "[command]") {
  CHECK(error_of({.program = "train.py", .no_python = true}) ==
        "cannot run /job/train.py: it is not executable (chmod +x /job/train.py, or, if it is a "
        "Python script, name it .py or give --run-path before it): not found");
}

TEST_CASE("Command: errors say where was looked, and which name comes near", "[command]") {
  CHECK(error_of({.program = "./trian"}) ==
        "cannot run ./trian (looked in /job; did you mean /job/train?): not found");
  CHECK(error_of({.program = "help"}) ==
        "cannot run help (looked in /job, in PATH, in /opt/ddprun/bin; did you mean ddprun "
        "--help?): not found");
  CHECK(error_of({.program = "tarin.py"}) ==
        "cannot run tarin.py (looked in /job, in PATH, in /opt/ddprun/bin; did you mean "
        "/job/train.py?): "
        "not found");
  CHECK(error_of({.program = "nothing_like_it"}) ==
        "cannot run nothing_like_it (looked in /job, in PATH, in /opt/ddprun/bin): not found");
  CHECK(error_of({.program = "./dato"}) == "cannot run ./dato (looked in /job): not found");
  CHECK(error_of({.program = "./data"}) ==
        "cannot run /job/data: it is a folder without a __main__.py: not found");
  CHECK(error_of({.program = "notes"})
            .starts_with("cannot run /job/notes: it is not executable (chmod +x"));
}

TEST_CASE("Command: every ${local_rank} in an argument is replaced", "[command]") {
  CHECK(command_for_rank(
            {"/bin/x", "--port=600${local_rank}", "${local_rank}${local_rank}", "$local_rank"},
            12) == Argv{"/bin/x", "--port=60012", "1212", "$local_rank"});
  const Argv launch = resolve({.program = "train.py", .arguments = {"a"}, .pass_local_rank = true});
  CHECK(command_for_rank(launch, 3) ==
        Argv{"/usr/bin/python3", "-u", "train.py", "--local-rank=3", "a"});
}

TEST_CASE("Command: the real file system", "[command]") {
  const PosixFileProbe files;
  CHECK(files.kind("/bin/sh") == FileKind::kExecutable);
  CHECK(files.kind("/etc/passwd") == FileKind::kFile);
  CHECK(files.kind("/tmp") == FileKind::kFolder);
  CHECK(files.kind("/no/such") == FileKind::kAbsent);
  CHECK(files.names_in("/no/such").empty());
  const auto command = resolve_command({.program = "sh"}, current_command_context(), files);
  CHECK(command.value()[0].starts_with("/"));
}

TEST_CASE("Command: what Python runs as a whole is known by its content", "[command]") {
  namespace fs = std::filesystem;
  const fs::path folder = fs::temp_directory_path() / ("command_test_" + random_hex(8));
  fs::create_directories(folder / "app");
  const auto write = [&](const char* name, const std::string& text) {
    std::ofstream(folder / name, std::ios::binary) << text;
    return (folder / name).string();
  };
  const PosixFileProbe files;
  CHECK_FALSE(files.is_application(folder / "app"));
  write("app/__main__.py", "print(1)\n");
  CHECK(files.is_application(folder / "app"));
  const std::string end = "PK\005\006" + std::string(18, '\0');
  CHECK(files.is_application(write("zip", "PK\003\004 and so on" + end)));
  const std::string packed = write("app.pyz", "#!/usr/bin/env python3\nPK\003\004" + end);
  CHECK(files.is_application(packed));
  fs::permissions(packed, fs::perms::owner_all);
  CHECK_FALSE(files.is_application(packed));  // The kernel runs it.
  CHECK_FALSE(files.is_application(write("script", "#!/bin/sh\necho PK and no archive at all\n")));
  CHECK_FALSE(files.is_application(write("short", "#!")));
  CHECK_FALSE(files.is_application(write("binary", "\177ELF" + end)));
  CHECK_FALSE(files.is_application("/dev/null"));
  CHECK_FALSE(files.is_application("/no/such"));
  REQUIRE(::mkfifo((folder / "pipe").c_str(), 0600) == 0);
  CHECK_FALSE(files.is_application(folder / "pipe"));  // Nothing waits for a writer.
  fs::remove_all(folder);
}

}  // namespace
}  // namespace ddprun::agent
