#include "common/system/port_owner.h"

#include <array>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <vector>

namespace ddprun {
namespace {

namespace fs = std::filesystem;

constexpr char kListening[] = "0A";

// Inodes of the sockets on a local port as one of /proc/net/tcp{,6} lists them: a line is
// "  0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000  0 12345 ...".
void find_inodes(const char* file, std::uint16_t port, std::set<std::string>& listening,
                 std::set<std::string>& others) {
  std::ifstream in(file);
  std::string line;
  std::getline(in, line);
  while (std::getline(in, line)) {
    std::istringstream words(line);
    std::array<std::string, 10> column;
    for (std::string& word : column) words >> word;
    const std::string& local = column[1];
    const std::size_t colon = local.rfind(':');
    if (colon == std::string::npos) continue;
    unsigned number = 0;
    std::from_chars(local.data() + colon + 1, local.data() + local.size(), number, 16);
    if (number != port || column[9] == "0") continue;
    (column[3] == kListening ? listening : others).insert("socket:[" + column[9] + "]");
  }
}

bool holds(const fs::path& process, const std::set<std::string>& sockets) {
  std::error_code ignored;
  for (fs::directory_iterator fd(process / "fd", ignored), end; !ignored && fd != end;
       fd.increment(ignored)) {
    std::error_code vanished;
    if (sockets.contains(fs::read_symlink(fd->path(), vanished).string())) return true;
  }
  return false;
}

std::string describe(const fs::path& process) {
  std::string name;
  std::getline(std::ifstream(process / "comm"), name);
  return name + " (pid " + process.filename().string() + ")";
}

std::string find_holder(const std::set<std::string>& sockets) {
  if (sockets.empty()) return {};
  std::error_code ignored;
  for (fs::directory_iterator entry("/proc", ignored), end; !ignored && entry != end;
       entry.increment(ignored)) {
    const std::string name = entry->path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    if (holds(entry->path(), sockets)) return describe(entry->path());
  }
  return {};
}

}  // namespace

std::string port_owner(std::uint16_t port) {
  std::set<std::string> listening, others;
  find_inodes("/proc/net/tcp", port, listening, others);
  find_inodes("/proc/net/tcp6", port, listening, others);
  const std::string listener = find_holder(listening);
  return listener.empty() ? find_holder(others) : listener;
}

}  // namespace ddprun
