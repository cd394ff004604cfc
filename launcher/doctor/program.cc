// Files that should be equal on all nodes: ddprun itself, the program that will be started, the
// libraries of both, and those that are loaded at run time. Hashes are compared.

#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <set>
#include <sstream>

#include "agent/node/command.h"
#include "agent/workers/import_notes.h"
#include "common/system/descriptors.h"
#include "common/text/words.h"
#include "launcher/doctor/subject.h"

namespace ddprun::doctor {

namespace fact {

constexpr std::string_view kFiles = "files";  // Items have these facts:
constexpr Text kFileName{"name"};
constexpr Text kFileVersion{"version"};
constexpr Text kFileHash{"hash"};

constexpr Text kProgramError{"program_error"};

// Of what the program imports, as earlier runs with --preload auto have learned.
constexpr std::string_view kSlowImports = "slow_imports";  // Items have these facts:
constexpr std::string_view kForbiddenImports = "forbidden_imports";
constexpr Text kImport{"import"};
constexpr Whole kKnowsImports{"knows_imports"};

}  // namespace fact

namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

constexpr std::size_t kLibrariesMax = 256;

// Programs load these when they run, so that ldd does not list them.
constexpr const char* kAtRunTime[] = {"libcuda.so.1", "libcudart.so.12", "libcudart.so.13",
                                      "libnccl.so.2", "libibverbs.so.1"};

// The hash of the whole file; empty: the file cannot be read.
std::string hash_of_file(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat status {};
  if (!file || ::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) return "";
  const auto size = static_cast<std::size_t>(status.st_size);
  if (size == 0) return hash_text({});
  void* bytes = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (bytes == MAP_FAILED) return "";
  std::string hash = hash_text({static_cast<const char*>(bytes), size});
  ::munmap(bytes, size);
  return hash;
}

// "libnccl.so.2.30.7" -> "2.30.7": libraries have their version in the name of the file itself.
std::string version_of(const std::string& path) {
  std::error_code error;
  const std::string name = fs::canonical(path, error).filename().string();
  const std::size_t at = name.find(".so.");
  return error || at == std::string::npos ? "" : name.substr(at + 4);
}

void add_file(Facts& facts, const std::string& name, const std::string& path) {
  const std::string hash = hash_of_file(path);
  if (hash.empty()) return;
  Facts file;
  file.set(fact::kFileName, name);
  file.set(fact::kFileVersion, version_of(path));
  file.set(fact::kFileHash, hash);
  facts.add(fact::kFiles, std::move(file));
}

// The dynamic linker's own answer: "  libz.so.1 => /lib/x86_64-linux-gnu/libz.so.1 (0x...)".
void add_libraries_of(const std::string& program, Facts& facts) {
  const std::string command = "ldd " + shell_quote(program) + " 2> /dev/null";
  const std::unique_ptr<FILE, int (*)(FILE*)> output(::popen(command.c_str(), "r"), &::pclose);
  char line[4096];
  for (std::size_t count = 0;
       output && std::fgets(line, sizeof line, output.get()) && count < kLibrariesMax;) {
    std::istringstream words(line);
    std::string name, arrow, path;
    words >> name >> arrow >> path;
    if (arrow != "=>" || !path.starts_with('/')) continue;
    ++count;
    add_file(facts, fs::path(name).filename().string(), path);
  }
}

void add_loaded(const char* name, Facts& facts) {
  void* library = ::dlopen(name, RTLD_LAZY | RTLD_LOCAL);
  link_map* map = nullptr;
  if (library && ::dlinfo(library, RTLD_DI_LINKMAP, &map) == 0 && map)
    add_file(facts, name, map->l_name);
}

void add_imports(const std::vector<std::string>& names, std::string_view list, Facts& facts) {
  constexpr std::size_t kMost = 8;
  for (std::size_t i = 0; i < std::min(names.size(), kMost); ++i) {
    Facts item;
    item.set(fact::kImport, names[i]);
    facts.add(list, std::move(item));
  }
}

void add_program(const std::string& program, Facts& facts) {
  agent::CommandRequest request;
  request.program = program;
  const auto command =
      agent::resolve_command(request, agent::current_command_context(), agent::PosixFileProbe());
  if (!command) return facts.set(fact::kProgramError, to_string(command.error()));
  // An interpreter's program follows it.
  std::string file = command->front();
  for (const std::string& word : *command) {
    if (word.ends_with(".py")) file = word;
  }
  if (hash_of_file(file).empty()) return facts.set(fact::kProgramError, file + " cannot be read");
  add_file(facts, "program", file);
  add_libraries_of(command->front(), facts);
  const auto learned = agent::learned_of(*command);
  facts.set(fact::kKnowsImports, learned ? 1 : 0);
  if (!learned) return;
  add_imports(learned->slow(), fact::kSlowImports, facts);
  add_imports(learned->forbidden(), fact::kForbiddenImports, facts);
}

void gather_program(const ProbeRequest& request, Facts& facts) {
  add_file(facts, "ddprun's file", "/proc/self/exe");
  if (!request.program.empty()) add_program(request.program, facts);
  std::set<std::string> known;
  for (const Facts& file : facts.list(fact::kFiles)) {
    known.insert(file.text(fact::kFileName));
  }
  for (const char* name : kAtRunTime) {
    if (!known.contains(name)) add_loaded(name, facts);
  }
}

Findings judge_program(const Facts& facts, const Need& need) {
  if (need.program.empty()) {
    return {{.status = Status::kSkipped,
             .value = "none given",
             .note = "ddprun doctor PROGRAM compares it and its libraries between nodes"}};
  }
  const std::string error = facts.text(fact::kProgramError);
  if (!error.empty()) {
    return {{.status = Status::kFail, .value = need.program, .note = error}};
  }
  for (const Facts& file : facts.list(fact::kFiles)) {
    if (file.text(fact::kFileName) == "program") {
      return {{.value = need.program + " " + file.text(fact::kFileHash).substr(0, 6)}};
    }
  }
  return not_measured();
}

std::string imports_text(const Facts& facts, std::string_view list, const char* after) {
  std::string text;
  for (const Facts& item : facts.list(list)) {
    text += (text.empty() ? "" : ", ") + item.text(fact::kImport) + after;
  }
  return text;
}

// For information: what is slow here is not wrong, and may be wanted.
Findings judge_imports(const Facts& facts, const Need& need) {
  if (need.program.empty()) return {{.status = Status::kSkipped, .value = "no program given"}};
  if (facts.get_or(fact::kKnowsImports, std::int64_t{0}) == 0) {
    return {{.status = Status::kSkipped,
             .value = "not known",
             .note = "a run with --preload auto measures what the program imports"}};
  }
  const std::string slow = imports_text(facts, fact::kSlowImports, " s");
  const std::string forbidden = imports_text(facts, fact::kForbiddenImports, "");
  Finding finding{.value = slow.empty() ? "none took more than 1 s" : slow};
  if (!slow.empty()) {
    finding.note =
        "each start imports them: --preload auto does so once per node, and a local disk "
        "is faster than a shared one";
  }
  if (!forbidden.empty()) {
    finding.value += "; not preloaded: " + forbidden;
    finding.note += (finding.note.empty() ? "" : "; ") +
                    std::string(
                        "what is not preloaded starts threads, opens files or reads "
                        "variables of a rank as it is imported");
  }
  return {finding};
}

// By node: version and the first digits of the hash; "missing" if the node has no such file.
std::vector<std::string> values_of_file(const Nodes& nodes, const std::string& name) {
  std::vector<std::string> values;
  for (const NodeFacts& node : nodes) {
    std::string value = node.error.empty() ? "missing" : "";
    for (const Facts& file : node.facts.list(fact::kFiles)) {
      if (file.text(fact::kFileName) != name) continue;
      const std::string version = file.text(fact::kFileVersion);
      const std::string hash = file.text(fact::kFileHash).substr(0, 6);
      value = version.empty() || hash.empty() ? version + hash : version + " " + hash;
    }
    values.push_back(std::move(value));
  }
  return values;
}

std::string program_error(const Nodes& nodes) {
  for (const NodeFacts& node : nodes) {
    if (const std::string error = node.facts.text(fact::kProgramError); !error.empty())
      return error;
  }
  return "";
}

Rows compare_files(const Nodes& nodes, const Need& need) {
  Rows rows;
  std::set<std::string> names;
  for (const NodeFacts& node : nodes) {
    for (const Facts& file : node.facts.list(fact::kFiles))
      names.insert(file.text(fact::kFileName));
  }
  if (!need.program.empty()) names.insert("program");
  for (const std::string& name : names) {
    const std::vector<std::string> values = values_of_file(nodes, name);
    Row row = row_of(name, cells_of(values, Status::kFail));
    if (name == "program" && !program_error(nodes).empty()) {
      for (Cell& cell : row.cells) {
        if (cell.value == "missing") cell.status = Status::kFail;
      }
      row = row_of(name, std::move(row.cells));
      row.finding.note = program_error(nodes);
    } else if (row.finding.status == Status::kFail) {
      row.finding.note = "ranks that run different code may hang or compute different results";
      row.finding.cure = name == "program" ? "rsync " + need.program + " to all nodes"
                                           : "install one version of " + name + " on all nodes";
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace

Subject program_subject() {
  return {.probe = Probe{"program", 15s, /*fast=*/false, /*alone=*/false, gather_program},
          .checks = {{"program", judge_program, /*if_several=*/false},
                     {"imports", judge_imports, /*if_several=*/false}},
          .comparisons = {{Section::kFiles, compare_files}}};
}

}  // namespace ddprun::doctor
