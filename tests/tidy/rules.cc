#include "tests/tidy/rules.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <optional>
#include <regex>
#include <sstream>

namespace ddprun::tidy {
namespace {

namespace fs = std::filesystem;

struct Ban {
  std::string text;
  std::string instead;
  std::set<std::string> except;  // Files that may.
};

// Written in two parts, so that this file may stand in the tree that it checks.
const std::vector<Ban> kBanned = {
    {"asio::"
     "detached",
     "a completion handler that says who failed",
     {}},
    {"system_"
     "clock",
     "steady_clock; wall time is for log lines",
     {"common/system/log.cc"}},
    // A worker that reaches for the store has no loop and no timer.
    {"this_thread::"
     "sleep",
     "a timer of the loop, or the virtual clock",
     {"worker_sdk/base/retry.h"}},
    {"usleep"
     "(",
     "a timer of the loop, or the virtual clock",
     {}},
    {"FIX"
     "ME",
     "doing it before the commit",
     {}},
    {"TO"
     "DO",
     "doing it before the commit",
     {}},
    {"using namespace "
     "std;",
     "the names that are used",
     {}},
    {"<boost/"
     "beast",
     "rendezvous/daemon/http_server.h",
     {"rendezvous/daemon/http_server.cc", "rendezvous/etcd/etcd_client.cc",
      "launcher/watch/debug.cc", "tests/fakes/fake_etcd.cc"}},
    {"<CLI/"
     "CLI.hpp>",
     "common/options/command_line.h",
     {"common/options/command_line.cc"}},
};

const std::vector<Ban> kBannedIfPure = {
    {"#include <boost/"
     "asio",
     "an action for the caller to carry out",
     {}},
    {"#include <sys/", "an action for the caller to carry out", {}},
    {"#include <unistd.h>", "an action for the caller to carry out", {}},
    {"#include <fstream>", "text that the caller has read", {}},
    {"#include <iostream>", "text that the caller prints", {}},
    {"#include <thread>", "one event at a time", {}},
    {"#include <mutex>", "one event at a time", {}},
    {"::"
     "now()",
     "the time that the caller passes in",
     {}},
    {"get"
     "env(",
     "the environment that the caller passes in",
     {}},
    {"random_"
     "device",
     "what the caller drew",
     {}},
};

// Names of the C and C++ standard libraries have no dot and no slash, but for those that a C
// program includes.
bool is_standard(const std::string& header) {
  static const std::set<std::string> kOfC = {"stddef.h", "stdint.h"};
  return header.find_first_of("./") == std::string::npos || kOfC.contains(header);
}

// Counts UTF-8 code points, so that a diagram may use box-drawing characters.
std::ptrdiff_t columns(const std::string& line) {
  return std::count_if(line.begin(), line.end(), [](char c) { return (c & 0xc0) != 0x80; });
}

struct Include {
  std::string header;  // Relative to the source root; of other projects, as it is written.
  bool of_ours = false;
};

// Of the line `#include ...`; nothing if it is none. The SDK's public headers are found through
// their own include folder.
std::optional<Include> include_of(const std::string& line) {
  const bool quoted = line.starts_with("#include \"");
  if (!quoted && !line.starts_with("#include <")) return std::nullopt;
  const std::size_t end = line.find(quoted ? '"' : '>', 10);
  const std::string header = line.substr(10, end - 10);
  if (header.starts_with("ddprun/")) return Include{"worker_sdk/include/" + header, true};
  return Include{header, quoted};
}

std::string complaint_about_include(const std::string& line, const std::string& path,
                                    const Layers& layers) {
  const auto include = include_of(line);
  if (!include) return "";
  if (include->of_ours) return layers.objection(path, include->header);
  const std::string room = layers.room_of(path);
  if (layers.at(room).std_only && !is_standard(include->header)) {
    return room + " may include the standard library only, not <" + include->header + ">";
  }
  return "";
}

std::string complaint_about_words(const std::string& line, const std::string& path, bool pure) {
  const auto find = [&](const std::vector<Ban>& bans) -> std::string {
    for (const Ban& ban : bans) {
      if (line.find(ban.text) == std::string::npos || ban.except.contains(path)) continue;
      return "'" + ban.text + "' is banned, use " + ban.instead;
    }
    return "";
  };
  const std::string complaint = find(kBanned);
  return complaint.empty() && pure ? find(kBannedIfPure) : complaint;
}

// "std::thread([", "std::thread name([": in a file of the product.
std::string complaint_about_threads(const std::string& line, const std::string& path) {
  static const std::regex kMade(R"(std::j?thread( \w+)?[({])");
  const bool is_product = path.starts_with("agent/") || path.starts_with("common/") ||
                          path.starts_with("launcher/") || path.starts_with("rendezvous/") ||
                          path.starts_with("worker_sdk/");
  if (!is_product || path == "common/system/signals.h") return "";
  const bool made = std::regex_search(line, kMade);
  return made ? "a thread gets signals of the program, use common/system/signals.h" : "";
}

constexpr const char* kPlanHeading = "## The plan";
constexpr const char* kWalksHeading = "## Two walks";

const std::vector<const char*> kFoldersOfSource = {"common",     "rendezvous", "agent", "launcher",
                                                   "worker_sdk", "examples",   "tests", "bench"};

// A room that is gone from the tree.
std::vector<std::string> complaints_about_rooms(const Layers& layers, const fs::path& root) {
  std::vector<std::string> complaints;
  for (const auto& [name, room] : layers.rooms()) {
    if (!fs::is_directory(root / name)) complaints.push_back("layers.txt: no folder " + name);
  }
  return complaints;
}

// Headers of the product that share a file's name: a search for one of them by its name finds two.
// A public header may be the counterpart of an inner one, and one of the libtorch adapter that of
// the neutral one which it wraps.
std::vector<std::string> complaints_about_twins(const std::map<std::string, std::string>& files) {
  const std::set<std::string> allowed = {"error.h"};
  std::vector<std::string> complaints;
  std::map<std::string, std::string> first;  // By file name.
  for (const auto& [path, text] : files) {
    const std::string name = fs::path(path).filename();
    const bool product = !path.starts_with("tests/") && !path.starts_with("bench/") &&
                         !path.starts_with("examples/") && !path.starts_with("worker_sdk/torch/");
    if (!product || !name.ends_with(".h") || allowed.contains(name)) continue;
    const auto [known, is_new] = first.try_emplace(name, path);
    if (!is_new) complaints.push_back(path + ": has the name of " + known->second);
  }
  return complaints;
}

// A line of the plan of docs/architecture.md: "folder/" at the left margin, "room/" below it with
// two spaces before it, a sentence, and perhaps "pure".
struct PlanLine {
  std::string room;
  bool pure = false;
};

std::vector<PlanLine> lines_of_plan(const std::string& page) {
  std::vector<PlanLine> plan;
  std::istringstream lines(page.substr(std::min(page.find(kPlanHeading), page.size())));
  std::string folder;
  for (std::string line; std::getline(lines, line);) {
    const bool below = line.starts_with("  ");
    std::istringstream words(line);
    std::string name, sentence, last;
    words >> name >> sentence;
    while (words >> last) continue;
    if (!name.ends_with('/') || sentence.empty() || line.starts_with("#")) continue;
    name.pop_back();
    if (!below) folder = name;
    plan.push_back({below ? folder + "/" + name : name, last == "pure"});
  }
  return plan;
}

// Files that include one of a room above theirs in the plan, other than the folder that they lie
// in.
std::vector<std::string> complaints_about_order(const std::map<std::string, std::string>& files,
                                                const Layers& layers, const std::string& page) {
  std::map<std::string, std::size_t> places;
  for (const PlanLine& line : lines_of_plan(page)) places.try_emplace(line.room, places.size());
  std::vector<std::string> complaints;
  for (const auto& [path, text] : files) {
    const std::string room = layers.room_of(path);
    if (!places.contains(room)) continue;
    std::istringstream in(text);
    int number = 0;
    for (std::string line; std::getline(in, line);) {
      ++number;
      const auto include = include_of(line);
      if (!include || !include->of_ours) continue;
      const std::string other = layers.room_of(include->header);
      const auto place = places.find(other);
      if (place == places.end() || room.starts_with(other + "/")) continue;
      if (place->second >= places.at(room)) continue;
      complaints.push_back(path + ":" + std::to_string(number) + ": the plan has " + other +
                           " above " + room);
    }
  }
  return complaints;
}

// The walks of docs/architecture.md, "1. `file`: what happens there": files that are not there, or
// come twice in one walk.
std::vector<std::string> complaints_about_walks(const std::string& page, const fs::path& root) {
  std::vector<std::string> complaints;
  std::set<std::string> seen;
  std::istringstream lines(page.substr(std::min(page.find(kWalksHeading), page.size())));
  for (std::string line; std::getline(lines, line);) {
    const std::size_t mark = line.find(". `");
    if (mark == std::string::npos || line.find_first_not_of("0123456789") != mark) continue;
    if (line.starts_with("1. ")) seen.clear();
    const std::string file = line.substr(mark + 3, line.find('`', mark + 3) - mark - 3);
    const bool twice = !seen.insert(file).second;
    if (twice) complaints.push_back("docs/architecture.md: a walk enters " + file + " twice");
    if (!fs::exists(root / file)) {
      complaints.push_back("docs/architecture.md: a walk enters " + file + ", which is not there");
    }
  }
  return complaints;
}

// Where the plan and layers.txt differ.
std::vector<std::string> complaints_about_plan(const Layers& layers, const std::string& page) {
  std::set<std::string> rooms;
  for (const auto& [name, room] : layers.rooms()) {
    const bool product = name.find('/') != std::string::npos || room.flat;
    if (product) rooms.insert(name + (room.pure ? " pure" : ""));
  }
  const std::vector<PlanLine> plan = lines_of_plan(page);
  std::set<std::string> shown;
  for (const auto& [room, pure] : plan) shown.insert(room + (pure ? " pure" : ""));
  std::vector<std::string> complaints;
  for (const std::string& room : rooms) {
    if (!shown.contains(room)) complaints.push_back("docs/architecture.md: the plan lacks " + room);
  }
  for (const std::string& room : shown) {
    // A folder of rooms without files of its own has no line in layers.txt.
    const bool heads = std::any_of(rooms.begin(), rooms.end(), [&](const std::string& other) {
      return other.starts_with(room + "/");
    });
    if (!rooms.contains(room) && !heads) {
      complaints.push_back("docs/architecture.md: the plan shows " + room +
                           ", layers.txt does not");
    }
  }
  return complaints;
}

// The pages that people read.
std::vector<std::string> pages_of(const fs::path& root) {
  std::vector<std::string> pages;
  const auto note = [&](const fs::directory_entry& entry) {
    const std::string page = fs::relative(entry.path(), root);
    if (page.ends_with(".md")) pages.push_back(page);
  };
  for (const auto& entry : fs::directory_iterator(root)) note(entry);
  for (const char* folder : {"docs", "bench"}) {
    if (!fs::exists(root / folder)) continue;
    for (const auto& entry : fs::recursive_directory_iterator(root / folder)) note(entry);
  }
  return pages;
}

// "[text](address)" or "<address>", alone or as the item of a list.
bool is_only_a_link(const std::string& line) {
  static const std::regex kLink(R"(\s*([*+-] )?(\[[^\]]*\]\([^)\s]*\)|<\S*>)[.,;]?)");
  return std::regex_match(line, kLink);
}

std::string content_of(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

}  // namespace

std::vector<std::string> complaints_about(const std::string& path, const std::string& text,
                                          const Layers& layers) {
  if (layers.room_of(path).empty()) return {path + ": no line of layers.txt covers it"};
  std::vector<std::string> complaints;
  std::istringstream in(text);
  int number = 0;
  for (std::string line; std::getline(in, line);) {
    const std::string where = path + ":" + std::to_string(++number) + ": ";
    if (columns(line) > kColumnsMax) {
      complaints.push_back(where + "line over " + std::to_string(kColumnsMax) + " columns");
    }
    for (const std::string& complaint : {complaint_about_include(line, path, layers),
                                         complaint_about_words(line, path, layers.pure(path)),
                                         complaint_about_threads(line, path)}) {
      if (!complaint.empty()) complaints.push_back(where + complaint);
    }
  }
  for (std::string& complaint : complaints_about_enumerators(path, text)) {
    complaints.push_back(std::move(complaint));
  }
  return complaints;
}

std::vector<std::string> complaints_about_prose(const std::string& path, const std::string& text) {
  std::vector<std::string> complaints;
  std::istringstream in(text);
  bool in_code = false;
  int number = 0;
  for (std::string line; std::getline(in, line);) {
    ++number;
    const std::string words = line.substr(std::min(line.find_first_not_of(' '), line.size()));
    if (words.starts_with("```")) in_code = !in_code;
    const bool prose = !in_code && !words.starts_with("```") && !words.starts_with("|");
    if (!prose || columns(line) <= kColumnsMax || is_only_a_link(line)) continue;
    complaints.push_back(path + ":" + std::to_string(number) + ": prose over " +
                         std::to_string(kColumnsMax) + " columns");
  }
  return complaints;
}

std::vector<std::string> complaints_about_tree(const fs::path& root) {
  Layers layers(content_of(root / "tests/tidy/layers.txt"));
  std::map<std::string, std::string> files;  // Path -> text.
  for (const char* folder : kFoldersOfSource) {
    if (!fs::exists(root / folder)) continue;
    for (const auto& entry : fs::recursive_directory_iterator(root / folder)) {
      if (!entry.is_regular_file()) continue;
      const std::string path = fs::relative(entry.path(), root);
      const std::string extension = entry.path().extension();
      if (extension != ".h" && extension != ".cc") continue;
      files[path] = content_of(entry.path());
      layers.note(path, files[path]);
    }
  }
  std::vector<std::string> complaints = complaints_about_rooms(layers, root);
  const auto add = [&complaints](std::vector<std::string> more) {
    std::move(more.begin(), more.end(), std::back_inserter(complaints));
  };
  const std::string page = content_of(root / "docs/architecture.md");
  add(complaints_about_plan(layers, page));
  add(complaints_about_order(files, layers, page));
  add(complaints_about_walks(page, root));
  std::map<std::string, std::string> linked;  // Into programs with each other.
  for (const auto& [path, text] : files) {
    const bool alone =
        path.starts_with("tests/") || path.starts_with("bench/") || path.starts_with("examples/");
    if (!alone || path.starts_with("tests/support/")) linked[path] = text;
  }
  add(complaints_about_doubles(linked));
  add(complaints_about_twins(files));
  add(complaints_about_namesakes(files));
  for (const auto& [path, text] : files) add(complaints_about(path, text, layers));
  for (const std::string& each : pages_of(root)) {
    add(complaints_about_prose(each, content_of(root / each)));
  }
  std::sort(complaints.begin(), complaints.end());
  return complaints;
}

}  // namespace ddprun::tidy
