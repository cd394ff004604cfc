#include "agent/process/cgroup.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <sstream>
#include <vector>

#include "agent/process/proc_file.h"

namespace ddprun::agent {
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
