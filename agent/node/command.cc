#include "agent/node/command.h"

#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>

#include "common/system/own_process.h"
#include "common/text/words.h"

namespace ddprun::agent {
namespace {

constexpr std::string_view kLocalRankMacro = "${local_rank}";
constexpr std::size_t kNearDistance = 2;

// What torchrun does in a child that it forked from itself, in a fresh interpreter.
constexpr const char* kRunPath =
    "import runpy, sys; del sys.argv[0]; runpy.run_path(sys.argv[0], run_name='__main__')";

// How a zip archive begins, and how what stands at its end does, if nothing follows it.
constexpr std::string_view kZipHead = "PK\003\004";
constexpr std::string_view kZipEnd = "PK\005\006";
constexpr std::size_t kZipEndBytes = 22;

enum class Wanted { kScript, kProgram };

// One search: every place that was tried, and the first that had something by that name we cannot
// use.
struct Search {
  std::string found;
  std::string unusable;
  FileKind unusable_kind = FileKind::kAbsent;
  std::vector<std::string> folders;  // For the error message and the near names.
};

std::string join(const std::string& folder, const std::string& name) {
  return folder.ends_with('/') ? folder + name : folder + "/" + name;
}

std::string absolute(const std::string& path, const std::string& working_folder) {
  if (path.starts_with('/')) return path;
  return join(working_folder, path.starts_with("./") ? path.substr(2) : path);
}

std::vector<std::string> split_path(const std::string& path, const std::string& working_folder) {
  std::vector<std::string> folders;
  for (std::size_t begin = 0; !path.empty() && begin <= path.size();) {
    const std::size_t colon = std::min(path.find(':', begin), path.size());
    const std::string folder = path.substr(begin, colon - begin);
    folders.push_back(folder.empty() ? working_folder : absolute(folder, working_folder));
    begin = colon + 1;
  }
  return folders;
}

// Checks one place. True if it is what was wanted.
bool probe(Search& search, const std::string& path, Wanted wanted, const FileProbe& files) {
  const FileKind kind = files.kind(path);
  const bool usable =
      kind == FileKind::kExecutable || (wanted == Wanted::kScript && kind == FileKind::kFile);
  if (usable) {
    search.found = path;
  } else if (kind != FileKind::kAbsent && search.unusable.empty()) {
    search.unusable = path;
    search.unusable_kind = kind;
  }
  return usable;
}

// The given path; for a bare name also PATH and our own folders.
Search search_for(const std::string& name, Wanted wanted, const CommandContext& context,
                  const FileProbe& files) {
  Search search;
  const std::string given = absolute(name, context.working_folder);
  search.folders.push_back(given.substr(0, std::max<std::size_t>(given.rfind('/'), 1)));
  if (name.empty() || probe(search, given, wanted, files)) return search;
  if (name.find('/') != std::string::npos) return search;
  std::vector<std::string> folders = split_path(context.path, context.working_folder);
  folders.insert(folders.end(), context.own_folders.begin(), context.own_folders.end());
  for (const std::string& folder : folders) {
    search.folders.push_back(folder);
    if (probe(search, join(folder, name), wanted, files)) break;
  }
  return search;
}

// The file with the nearest name in the searched folders; empty if none comes near.
std::string near_name(const std::string& name, const Search& search, const FileProbe& files) {
  const std::string base = name.substr(name.rfind('/') + 1);
  std::string best;
  std::size_t best_distance = std::min(kNearDistance, base.size() / 2) + 1;
  for (const std::string& folder : search.folders) {
    for (const std::string& other : files.names_in(folder)) {
      if (other.size() + kNearDistance < base.size() || base.size() + kNearDistance < other.size())
        continue;
      const std::size_t distance = edit_distance(base, other);
      const std::string path = join(folder, other);
      if (distance >= best_distance || files.kind(path) == FileKind::kFolder) continue;
      best_distance = distance;
      best = path;
    }
  }
  return best;
}

Failure cannot_run(const std::string& name, const Search& search, const CommandContext& context,
                   const FileProbe& files) {
  if (search.unusable_kind == FileKind::kFolder) {
    return {Errc::kNotFound,
            "cannot run " + search.unusable + ": it is a folder without a __main__.py"};
  }
  if (search.unusable_kind == FileKind::kFile) {
    return {Errc::kNotFound, "cannot run " + search.unusable + ": it is not executable (chmod +x " +
                                 search.unusable +
                                 ", or, if it is a Python script, name it .py or give "
                                 "--run-path before it)"};
  }
  std::string where = "looked in " + search.folders.front();
  if (search.folders.size() > 1) {
    where += ", in PATH";
    for (const std::string& own : context.own_folders) where += ", in " + own;
  }
  const bool is_help = name == "help" || name == "version";
  const std::string near = is_help ? "ddprun --" + name : near_name(name, search, files);
  if (!near.empty()) where += "; did you mean " + near + "?";
  return {Errc::kNotFound, "cannot run " + name + " (" + where + ")"};
}

Result<std::string> find(const std::string& name, Wanted wanted, const CommandContext& context,
                         const FileProbe& files) {
  const Search search = search_for(name, wanted, context, files);
  if (!search.found.empty()) return search.found;
  return cannot_run(name, search, context, files);
}

// The given path is kept as it was typed, since a script may look at its own name.
Result<std::string> find_script(const CommandRequest& request, const CommandContext& context,
                                const FileProbe& files) {
  Result<std::string> script = find(request.program, Wanted::kScript, context, files);
  if (script && *script == absolute(request.program, context.working_folder))
    return request.program;
  return script;
}

}  // namespace

Result<std::vector<std::string>> resolve_command(const CommandRequest& request,
                                                 const CommandContext& context,
                                                 const FileProbe& files) {
  if (request.module && request.no_python) {
    return Failure{Errc::kBadOption, "-m and --no-python exclude each other"};
  }
  if (request.module && request.run_path) {
    return Failure{Errc::kBadOption, "-m and --run-path exclude each other"};
  }
  const bool application = !request.no_python && !request.program.empty() &&
                           files.is_application(absolute(request.program, context.working_folder));
  const bool python = request.module || request.run_path || application ||
                      (!request.no_python && request.program.ends_with(".py"));
  std::vector<std::string> argv;
  const std::string interpreter = context.python.empty() ? "python3" : context.python;
  Result<std::string> first =
      find(python ? interpreter : request.program, Wanted::kProgram, context, files);
  if (first.has_error()) return first.error();
  argv.push_back(std::move(*first));
  if (python) argv.push_back("-u");
  if (request.run_path) argv.insert(argv.end(), {"-c", kRunPath});
  if (request.module) {
    argv.push_back("-m");
    argv.push_back(request.program);
  } else if (application) {
    argv.push_back(request.program);
  } else if (python) {
    Result<std::string> script = find_script(request, context, files);
    if (script.has_error()) return script.error();
    argv.push_back(std::move(*script));
  }
  if (request.pass_local_rank) argv.push_back("--local-rank=" + std::string(kLocalRankMacro));
  argv.insert(argv.end(), request.arguments.begin(), request.arguments.end());
  return argv;
}

std::vector<std::string> command_for_rank(std::vector<std::string> argv, int local_rank) {
  const std::string rank = std::to_string(local_rank);
  for (std::size_t i = 1; i < argv.size(); ++i) {
    for (std::size_t at = 0; (at = argv[i].find(kLocalRankMacro, at)) != std::string::npos;
         at += rank.size()) {
      argv[i].replace(at, kLocalRankMacro.size(), rank);
    }
  }
  return argv;
}

FileKind PosixFileProbe::kind(const std::string& path) const {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return FileKind::kAbsent;
  if (S_ISDIR(status.st_mode)) return FileKind::kFolder;
  return ::access(path.c_str(), X_OK) == 0 ? FileKind::kExecutable : FileKind::kFile;
}

bool PosixFileProbe::is_application(const std::string& path) const {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return false;
  if (S_ISDIR(status.st_mode)) return ::access(join(path, "__main__.py").c_str(), R_OK) == 0;
  if (!S_ISREG(status.st_mode)) return false;
  std::ifstream file(path, std::ios::binary);
  std::string head(kZipHead.size(), '\0');
  file.read(head.data(), static_cast<std::streamsize>(head.size()));
  if (head == kZipHead) return true;
  // zipapp puts a #! line before the archive, which is found by its end.
  if (!head.starts_with("#!") || ::access(path.c_str(), X_OK) == 0) return false;
  std::string end(kZipEndBytes, '\0');
  file.clear();
  file.seekg(-static_cast<std::streamoff>(kZipEndBytes), std::ios::end);
  file.read(end.data(), static_cast<std::streamsize>(end.size()));
  return file && end.starts_with(kZipEnd);
}

std::vector<std::string> PosixFileProbe::names_in(const std::string& folder) const {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

CommandContext current_command_context() {
  std::error_code error;
  CommandContext context{std::filesystem::current_path(error).string(),
                         environment_variable("PATH"),
                         environment_variable("PYTHON_EXEC"),
                         {}};
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return context;
  const std::filesystem::path bin = self.parent_path(), prefix = bin.parent_path();
  for (const std::filesystem::path& folder :
       {bin, prefix / "libexec/ddprun", prefix / "share/ddprun/examples", bin / "examples"}) {
    if (std::filesystem::is_directory(folder, error))
      context.own_folders.push_back(folder.string());
  }
  return context;
}

}  // namespace ddprun::agent
