#include "agent/process/cgroup.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <sstream>
#include <vector>

#include "agent/process/proc_file.h"

namespace ddprun::agent {
namespace {

bool has_word(std::string_view list, std::string_view word) {
  for (std::size_t begin = 0; begin <= list.size();) {
    const std::size_t end = std::min(list.find(',', begin), list.size());
    if (list.substr(begin, end - begin) == word) return true;
    begin = end + 1;
  }
  return false;
}

struct Tree {
  std::string root, point;
};

// "36 35 0:32 /root /point rw,noatime master:1 - cgroup cgroup rw,memory"
std::optional<Tree> tree_of(std::string_view controller, std::string_view mountinfo, bool v2) {
  std::istringstream lines{std::string(mountinfo)};
  for (std::string line; std::getline(lines, line);) {
    const std::size_t type = line.find(v2 ? " - cgroup2 " : " - cgroup ");
    if (type == std::string::npos) continue;
    const std::size_t options = line.find_last_of(' ');
    if (!v2 && !has_word(std::string_view(line).substr(options + 1), controller)) continue;
    std::istringstream words(line);
    std::string id, parent, device;
    Tree tree;
    words >> id >> parent >> device >> tree.root >> tree.point;
    if (!words.fail()) return tree;
  }
  return std::nullopt;
}

// "4:memory:/folder" of version 1, "0::/folder" of version 2.
std::optional<std::string> path_of(std::string_view controller, std::string_view own, bool v2) {
  std::istringstream lines{std::string(own)};
  for (std::string line; std::getline(lines, line);) {
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string_view list = std::string_view(line).substr(first + 1, second - first - 1);
    if (v2 ? list.empty() : has_word(list, controller)) return line.substr(second + 1);
  }
  return std::nullopt;
}

}  // namespace

std::vector<std::string> cgroup_folders(std::string_view controller, std::string_view mountinfo,
                                        std::string_view own_cgroups) {
  for (const bool v2 : {false, true}) {
    const auto tree = tree_of(controller, mountinfo, v2);
    const auto path = path_of(controller, own_cgroups, v2);
    if (!tree || !path) continue;
    std::string below = *path;
    // In a container the root of the mount is our own folder, or one above it.
    if (tree->root != "/" && below.starts_with(tree->root)) below.erase(0, tree->root.size());
    std::vector<std::string> folders;
    while (below.size() > 1) {
      folders.push_back(tree->point + below);
      below.erase(below.find_last_of('/'));
    }
    folders.push_back(tree->point);
    return folders;
  }
  return {};
}

std::vector<std::string> own_cgroup_folders(std::string_view controller) {
  return cgroup_folders(controller, read_proc_file("/proc/self/mountinfo"),
                        read_proc_file("/proc/self/cgroup"));
}

std::optional<std::int64_t> number_in(const std::string& path) {
  const std::string text = read_proc_file(path);
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end != text.data() ? std::optional(number) : std::nullopt;
}

std::optional<std::int64_t> room_in_cgroups(std::string_view controller, const std::string& limit,
                                            const std::string& used) {
  std::optional<std::int64_t> least;
  for (const std::string& folder : own_cgroup_folders(controller)) {
    const auto most = number_in(folder + "/" + limit), now = number_in(folder + "/" + used);
    if (!most || !now) continue;
    const std::int64_t room = *most - *now;
    if (!least || room < *least) least = room;
  }
  return least;
}

// "50000 100000" of version 2 is half a processor.
std::optional<double> quota_in(const std::string& folder) {
  long long quota = 0, period = 0;
  const std::string v2 = read_proc_file(folder + "/cpu.max");
  if (std::sscanf(v2.c_str(), "%lld %lld", &quota, &period) == 2 && period > 0) {
    return static_cast<double>(quota) / static_cast<double>(period);
  }
  const auto q = number_in(folder + "/cpu.cfs_quota_us"),
             p = number_in(folder + "/cpu.cfs_period_us");
  if (!q || !p || *q <= 0 || *p <= 0) return std::nullopt;
  return static_cast<double>(*q) / static_cast<double>(*p);
}

std::optional<double> processor_quota() {
  std::optional<double> least;
  for (const std::string& folder : own_cgroup_folders("cpu")) {
    const auto quota = quota_in(folder);
    if (quota && (!least || *quota < *least)) least = quota;
  }
  return least;
}

std::optional<std::int64_t> fewest_tasks() {
  std::optional<std::int64_t> least;
  for (const std::string& folder : own_cgroup_folders("pids")) {
    const auto most = number_in(folder + "/pids.max");
    if (most && (!least || *most < *least)) least = most;
  }
  return least;
}

std::string too_few_tasks(int error, const Limits& limits, std::optional<std::int64_t> tasks) {
  if (error != EAGAIN || !tasks) return "";
  const bool is_exempt = ::geteuid() == 0;  // From ulimit -u.
  if (!is_exempt && static_cast<std::uint64_t>(*tasks) > limits.processes) return "";
  return "; the pids.max of a cgroup is " + std::to_string(*tasks) +
         " for all its processes and threads (docker run --pids-limit, a pod's limit), and ddprun "
         "needs 1 a worker and 3 for itself";
}

namespace {

constexpr int kNestingMax = 8;  // ddprun in ddprun in ddprun ...

struct Mount {
  std::string root;  // The folder of the tree that is mounted.
  std::string point;
};

// "36 35 0:32 /root /mount/point rw,noatime master:1 - cgroup2 cgroup2 rw"
bool read_mount(const std::string& line, Mount& mount) {
  if (line.find(" - cgroup2 ") == std::string::npos) return false;
  std::istringstream words(line);
  std::string id, parent, device;
  words >> id >> parent >> device >> mount.root >> mount.point;
  return !words.fail() && mount.point.find('\\') == std::string::npos;  // Escapes: not for us.
}

// "0::/user.slice/session-1.scope" -> the path; other lines are of version 1.
std::string path_in_tree(std::string_view own_cgroups) {
  std::istringstream lines{std::string(own_cgroups)};
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("0::/")) return line.substr(3);
  }
  return {};
}

}  // namespace

std::string cgroup_folder(std::string_view mountinfo, std::string_view own_cgroups) {
  const std::string own = path_in_tree(own_cgroups);
  if (own.empty() || own.find("/..") != std::string::npos) return {};
  std::istringstream lines{std::string(mountinfo)};
  Mount mount;
  for (std::string line; std::getline(lines, line);) {
    if (!read_mount(line, mount)) continue;
    if (mount.root == "/") return mount.point + (own == "/" ? "" : own);
    const bool below = own == mount.root || own.starts_with(mount.root + "/");
    if (below) return mount.point + own.substr(mount.root.size());
  }
  return {};
}

std::string own_cgroup_folder() {
  return cgroup_folder(read_proc_file("/proc/self/mountinfo"), read_proc_file("/proc/self/cgroup"));
}

std::string job_cgroup_path(int launcher) {
  const std::string folder = own_cgroup_folder();
  return folder.empty() ? "" : folder + "/" + job_cgroup_name(launcher);
}

Result<std::string> make_cgroup(const std::string& path) {
  if (path.empty()) return Failure{Errc::kNotFound, "no cgroup tree of version 2 is mounted"};
  if (::mkdir(path.c_str(), 0755) != 0) return errno_failure("making the cgroup " + path);
  return path;
}

Result<UniqueFd> open_cgroup(const std::string& path) {
  UniqueFd folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder) return errno_failure("opening the cgroup " + path);
  return folder;
}

bool kill_cgroup(const std::string& path) {
  const UniqueFd file(::open((path + "/cgroup.kill").c_str(), O_WRONLY | O_CLOEXEC));
  return file && ::write(file.get(), "1", 1) == 1;
}

namespace {

void remove_tree(const std::string& path, int depth) {
  DIR* dir = depth < kNestingMax ? ::opendir(path.c_str()) : nullptr;
  std::vector<std::string> below;
  while (const dirent* entry = dir ? ::readdir(dir) : nullptr) {
    if (entry->d_type == DT_DIR && entry->d_name[0] != '.') below.emplace_back(entry->d_name);
  }
  if (dir) ::closedir(dir);
  for (const std::string& name : below) remove_tree(path + "/" + name, depth + 1);
  ::rmdir(path.c_str());
}

}  // namespace

bool remove_cgroup(const std::string& path) {
  // Nearly always there is nothing below, and the kernel refuses if there is.
  if (path.empty() || ::rmdir(path.c_str()) == 0 || errno == ENOENT) return true;
  remove_tree(path, 0);
  return ::access(path.c_str(), F_OK) != 0;
}

}  // namespace ddprun::agent
