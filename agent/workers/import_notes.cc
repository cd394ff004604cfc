#include "agent/workers/import_notes.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <utility>

#include "agent/workers/fork_messages.h"
#include "common/checksum.h"
#include "common/system/descriptors.h"
#include "common/system/log.h"
#include "common/system/own_process.h"
#include "common/system/user_file.h"

namespace ddprun::agent {
namespace {

constexpr std::size_t kNotesMax = std::size_t{4} << 20;
constexpr std::size_t kListMax = std::size_t{4} << 20;
constexpr std::size_t kListsMax = 500;  // Of programs; the one used longest ago goes first.
constexpr std::size_t kFolderMax = std::size_t{64} << 20;
constexpr std::size_t kShownMax = 60;  // Letters of a program in the name of its list.

// Empty: there is no place for lists.
std::string folder_of_lists() {
  std::string base = environment_variable("XDG_CACHE_HOME");
  if (!base.starts_with('/')) {
    const std::string home = environment_variable("HOME");
    std::error_code failed;
    if (!home.starts_with('/') || !std::filesystem::is_directory(home, failed)) return "";
    base = home + "/.cache";
  }
  return base + "/ddprun/preload";
}

struct Program {
  std::string path;   // Of a module: its name.
  std::string shown;  // Interpreter, program, and the folder in which a module is looked for.
  std::string stem;   // The last part of its path.
};

// Of a command as is_python_command() accepts it.
Program program_of(const std::vector<std::string>& argv) {
  std::error_code failed;
  const bool is_module = argv[2] == "-m";
  const std::string& given = argv[place_of_program(argv)];
  const std::filesystem::path whole = std::filesystem::weakly_canonical(given, failed);
  const std::string path = is_module || failed ? given : whole.string();
  const std::string where = is_module ? std::filesystem::current_path(failed).string() : "";
  return {path, argv[0] + " " + path + (where.empty() ? "" : " in " + where),
          std::filesystem::path(path).filename().string()};
}

std::string name_of_list(const Program& program) {
  std::string name;
  for (const char letter : program.stem.substr(0, kShownMax)) {
    const bool is_plain = (letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z') ||
                          (letter >= '0' && letter <= '9') || letter == '-' ||
                          (letter == '.' && !name.empty());
    name.push_back(is_plain ? letter : '_');
  }
  std::array<char, 24> sum{};
  const std::uint64_t hash = checksum(program.shown.data(), program.shown.size());
  std::snprintf(sum.data(), sum.size(), "-%016llx", static_cast<unsigned long long>(hash));
  return name + sum.data() + ".txt";
}

constexpr RecordFolder::Limits kLimits = {
    .records = kListsMax, .bytes = kFolderMax, .record_bytes = kListMax};

}  // namespace

std::string program_text(const std::vector<std::string>& argv) { return program_of(argv).shown; }

std::optional<LearnedNames> learned_of(const std::vector<std::string>& argv) {
  const std::string folder = folder_of_lists();
  if (folder.empty() || !is_python_command(argv)) return std::nullopt;
  const auto text = RecordFolder(folder, kLimits).read(name_of_list(program_of(argv)));
  if (!text) return std::nullopt;
  return LearnedNames::parse(*text);
}

ImportNotes::ImportNotes(boost::asio::io_context& loop, std::string notes,
                         const std::vector<std::string>& argv)
    : timer_(loop), notes_(std::move(notes)), folder_(folder_of_lists(), kLimits) {
  if (notes_.empty() || !is_python_command(argv)) return;
  if (folder_.path().empty()) {
    warn("there is no home folder");
    return;
  }
  const Program program = program_of(argv);
  program_ = program.shown;
  name_ = name_of_list(program);
  const LearnedNames list = LearnedNames::parse(folder_.read(name_).value_or(""));
  knows_ = !list.names().empty();
  std::error_code failed;
  const auto edited = std::filesystem::last_write_time(program.path, failed);
  const auto learned = failed ? edited : std::filesystem::last_write_time(path_of_list(), failed);
  whole_ = list.whole() && !failed && edited <= learned;
}

std::string ImportNotes::path_of_list() const { return folder_.path() + "/" + name_; }

std::vector<std::string> ImportNotes::variables_of_server() const {
  if (name_.empty()) return {};
  return {"DDPRUN_PRELOAD_LIST=" + path_of_list()};
}

std::vector<std::string> ImportNotes::variables_of_worker() const {
  if (!learns()) return {};
  std::vector<std::string> variables = {"DDPRUN_PRELOAD_LEARN=" + notes_};
  // Then there is little to learn, and the worker notes its imports at its end only.
  if (whole_) variables.emplace_back("DDPRUN_PRELOAD_WHOLE=1");
  return variables;
}

void ImportNotes::begin() {
  if (!learns()) return;
  keep(false);
  const UniqueFd file(::open(notes_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC,
                             S_IRUSR | S_IWUSR));
  settling_ = {};
  if (!whole_) watch();
}

void ImportNotes::watch() {
  timer_.expires_after(settling_.next());
  timer_.async_wait([this](const boost::system::error_code& ec) {
    if (ec) return;
    struct stat status {};
    const bool exists = ::stat(notes_.c_str(), &status) == 0;
    if (exists && settling_.look(static_cast<std::size_t>(status.st_size))) {
      keep(false);
      if (on_settled) on_settled(added_);
    }
    watch();
  });
}

void ImportNotes::ended(bool well) {
  timer_.cancel();
  if (learns()) keep(well);
}

void ImportNotes::close() {
  timer_.cancel();
  if (learns()) keep(false);
}

void ImportNotes::warn(const std::string& why) {
  if (std::exchange(warned_, true)) return;
  log::info("preload: what the program imports cannot be kept for its next start, which will be " +
            ("cold, too: " + why) + "; name a folder that can be written in XDG_CACHE_HOME");
}

void ImportNotes::keep(bool whole) {
  const auto notes = read_regular_end(notes_, kNotesMax);
  if (!notes || notes->empty()) return;
  const std::string before = folder_.read(name_).value_or("");
  LearnedNames list = LearnedNames::parse(before);
  added_ += list.add(*notes);
  if (whole) list.mark_whole();
  const std::string text = list.text(program_);
  const bool is_newer = whole && !std::exchange(whole_, whole || whole_);  // Than the program.
  if (text == before && !is_newer) return;
  knows_ = knows_ || !list.names().empty();
  const auto kept = folder_.put(name_, text, RecordFolder::Safety::kProcess);
  if (!kept) return warn(to_string(kept.error()));
  folder_.make_room(name_);
}

}  // namespace ddprun::agent
