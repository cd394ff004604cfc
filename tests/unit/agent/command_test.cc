#include "agent/node/command.h"

#include <catch2/catch.hpp>
#include <map>

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
        "cannot run /job/train.py: it is not executable (chmod +x /job/train.py, or name it .py if "
        "it is a "
        "Python script): not found");
}

TEST_CASE("Command: errors say where was looked, and which name comes near", "[command]") {
  CHECK(error_of({.program = "./trian"}) ==
        "cannot run ./trian (looked in /job; did you mean /job/train?): not found");
  CHECK(error_of({.program = "tarin.py"}) ==
        "cannot run tarin.py (looked in /job, in PATH, in /opt/ddprun/bin; did you mean "
        "/job/train.py?): "
        "not found");
  CHECK(error_of({.program = "nothing_like_it"}) ==
        "cannot run nothing_like_it (looked in /job, in PATH, in /opt/ddprun/bin): not found");
  CHECK(error_of({.program = "./dato"}) == "cannot run ./dato (looked in /job): not found");
  CHECK(error_of({.program = "./data"}) == "cannot run /job/data: it is a folder: not found");
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

}  // namespace
}  // namespace ddprun::agent
