#include "common/system/user_file.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <filesystem>
#include <fstream>

#include "common/system/descriptors.h"
#include "common/system/secrets.h"

namespace ddprun {
namespace {

namespace fs = std::filesystem;

struct Folder {
  Folder() : path(fs::temp_directory_path() / ("ddprun-user-file-" + random_hex(8))) {
    fs::create_directory(path);
  }
  ~Folder() { fs::remove_all(path); }
  std::string operator/(const char* name) const { return path / name; }
  std::size_t entries() const {
    return static_cast<std::size_t>(std::distance(fs::directory_iterator(path), {}));
  }
  const fs::path path;
};

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

void put(const std::string& path, const std::string& text) { std::ofstream(path) << text; }

struct stat status_of(const std::string& path) {
  struct stat status {};
  REQUIRE(::lstat(path.c_str(), &status) == 0);
  return status;
}

bool is_link(const std::string& path) { return fs::is_symlink(fs::symlink_status(path)); }

TEST_CASE("UserFile: a new file is this user's, an old one is another file with its permissions",
          "[user_file]") {
  const Folder folder;
  REQUIRE(write_user_file(folder / "new", "one").has_value());
  CHECK(text_of(folder / "new") == "one");
  CHECK((status_of(folder / "new").st_mode & 0777) == 0600);

  REQUIRE(::chmod((folder / "new").c_str(), 0644) == 0);
  const UniqueFd reader(::open((folder / "new").c_str(), O_RDONLY | O_CLOEXEC));
  REQUIRE(write_user_file(folder / "new", "two").has_value());
  CHECK(text_of(folder / "new") == "two");
  CHECK((status_of(folder / "new").st_mode & 0777) == 0644);
  char old[8] = {};  // A reader that has begun with the old one reads it to its end.
  CHECK(::read(reader.get(), old, sizeof old) == 3);
  CHECK(std::string(old) == "one");
  CHECK(folder.entries() == 1);
}

TEST_CASE("UserFile: links are written through and stay", "[user_file]") {
  const Folder folder;
  put(folder / "17.json", "old");
  fs::create_symlink("17.json", folder / "latest");
  fs::create_symlink(folder / "latest", folder / "again");
  REQUIRE(check_user_file(folder / "again").has_value());
  clear_user_file(folder / "again");
  CHECK(is_link(folder / "again"));
  CHECK(is_link(folder / "latest"));
  CHECK_FALSE(fs::exists(folder / "17.json"));
  CHECK(check_user_file(folder / "again").has_value());  // A link to nothing yet.
  REQUIRE(write_user_file(folder / "again", "new").has_value());
  CHECK(is_link(folder / "again"));
  CHECK(is_link(folder / "latest"));
  CHECK(text_of(folder / "17.json") == "new");
  CHECK(folder.entries() == 3);

  fs::create_symlink("round", folder / "round");
  CHECK_FALSE(check_user_file(folder / "round").has_value());
  CHECK_FALSE(write_user_file(folder / "round", "x").has_value());
}

TEST_CASE("UserFile: a link to a descriptor of this process is written behind what it has",
          "[user_file]") {
  const Folder folder;
  const UniqueFd log(::open((folder / "log").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  REQUIRE(::write(log.get(), "before\n", 7) == 7);
  for (const char* base : {"/proc/self/fd/", "/dev/fd/"}) {
    fs::create_symlink(base + std::to_string(log.get()), folder / "out");
    REQUIRE(check_user_file(folder / "out").has_value());
    CHECK_FALSE(replaces_user_file(folder / "out"));
    clear_user_file(folder / "out");
    REQUIRE(write_user_file(folder / "out", "more\n").has_value());
    CHECK(is_link(folder / "out"));
    fs::remove(folder / "out");
  }
  CHECK(text_of(folder / "log") == "before\nmore\nmore\n");
  CHECK(folder.entries() == 1);

  const UniqueFd in(::open((folder / "log").c_str(), O_RDONLY | O_CLOEXEC));
  CHECK_FALSE(check_user_file("/dev/fd/" + std::to_string(in.get())).has_value());
  CHECK_FALSE(check_user_file("/dev/fd/987654").has_value());
  CHECK_FALSE(write_user_file("/proc/self/fd/987654", "x").has_value());
}

TEST_CASE("UserFile: a pipe without a reader is a failure at once, with one it gets the text",
          "[user_file]") {
  const Folder folder;
  REQUIRE(::mkfifo((folder / "pipe").c_str(), 0600) == 0);
  CHECK(check_user_file(folder / "pipe").has_value());  // A reader may come.
  clear_user_file(folder / "pipe");
  const auto unread = write_user_file(folder / "pipe", "x");
  REQUIRE(unread.has_error());
  CHECK(to_string(unread.error()).find("has no reader") != std::string::npos);

  const UniqueFd reader(::open((folder / "pipe").c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  REQUIRE(write_user_file(folder / "pipe", "text").has_value());
  char text[8] = {};
  CHECK(::read(reader.get(), text, sizeof text) == 4);
  CHECK(std::string(text) == "text");
  CHECK(S_ISFIFO(status_of(folder / "pipe").st_mode));
}

TEST_CASE("UserFile: folders, sockets and disks are refused, devices are not replaced",
          "[user_file]") {
  const Folder folder;
  const auto on_folder = check_user_file(folder.path);
  REQUIRE(on_folder.has_error());
  CHECK(on_folder.error().context == "is a folder");
  const UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  (folder / "socket").copy(address.sun_path, sizeof address.sun_path - 1);
  REQUIRE(::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
  CHECK_FALSE(check_user_file(folder / "socket").has_value());
  CHECK_FALSE(write_user_file(folder / "socket", "x").has_value());
  CHECK_FALSE(check_user_file("/nowhere/x").has_value());
  CHECK(check_user_file("/dev/null").has_value());
  CHECK(write_user_file("/dev/null", "x").has_value());
  if (fs::exists("/dev/full")) CHECK_FALSE(write_user_file("/dev/full", "x").has_value());
  if (::geteuid() == 0 && ::mknod((folder / "disk").c_str(), S_IFBLK | 0600, 0) == 0) {
    CHECK_FALSE(check_user_file(folder / "disk").has_value());
    CHECK_FALSE(write_user_file(folder / "disk", "x").has_value());
  }
}

// As on a full disk: the file may not grow.
TEST_CASE("UserFile: what does not fit leaves nothing, or what was there", "[user_file]") {
  const Folder folder;
  put(folder / "old", "old");
  const auto before = ::signal(SIGXFSZ, SIG_IGN);
  rlimit limit{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &limit) == 0);
  const rlimit small{4, limit.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &small) == 0);
  const bool fresh = write_user_file(folder / "new", "too long").has_value();
  const bool again = write_user_file(folder / "old", "too long").has_value();
  ::setrlimit(RLIMIT_FSIZE, &limit);
  ::signal(SIGXFSZ, before);
  CHECK_FALSE(fresh);
  CHECK_FALSE(again);
  CHECK_FALSE(fs::exists(folder / "new"));
  CHECK(text_of(folder / "old") == "old");
  CHECK(folder.entries() == 1);
}

TEST_CASE("UserFile: only regular files are read, and no more than asked for", "[user_file]") {
  const Folder folder;
  put(folder / "file", "first\nsecond\n");
  CHECK(read_regular_end(folder / "file", 1000) == "first\nsecond\n");
  CHECK(read_regular_end(folder / "file", 7) == "second\n");
  REQUIRE(::mkfifo((folder / "pipe").c_str(), 0600) == 0);
  fs::create_symlink("file", folder / "link");
  for (const char* name : {"pipe", "link", "none"}) {
    CHECK_FALSE(read_regular_end(folder / name, 10).has_value());
  }
  CHECK_FALSE(read_regular_end(folder.path, 10).has_value());
  CHECK_FALSE(read_regular_end("/dev/zero", 10).has_value());
}

}  // namespace
}  // namespace ddprun
