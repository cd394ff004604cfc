#include "common/system/secrets.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace ddprun {
namespace {

std::string own_environ() {
  std::ostringstream text;
  text << std::ifstream("/proc/self/environ").rdbuf();
  return text.str();
}

// Runs `body` in a program of its own that was started with `entry` in its environment.
template <class Body>
bool in_a_child(Body body) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(body() ? 0 : 1);
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

TEST_CASE("Secrets: a variable that was taken is neither set nor to be seen in /proc",
          "[secrets]") {
  // One that this process was started with, so that it lies where the kernel shows it.
  const std::string before = own_environ();
  const std::size_t equals = before.find('=');
  const std::string name = before.substr(0, equals);
  const std::string value(before.c_str() + equals + 1);
  REQUIRE(value == std::string(::getenv(name.c_str())));
  CHECK(in_a_child([&] {
    return take_variable(name.c_str()) == value && !::getenv(name.c_str()) &&
           own_environ().find(name + "=" + value) == std::string::npos &&
           own_environ().starts_with(name + "=" + std::string(value.size(), '\0'));
  }));
}

TEST_CASE("Secrets: what was named twice is taken once and gone twice", "[secrets]") {
  CHECK(in_a_child([] {
    char one[] = "DDPRUN_TOKEN=first \n", two[] = "DDPRUN_TOKEN=second",
         other[] = "DDPRUN_TOKENS=x";
    char* environment[] = {one, other, two, nullptr};
    ::environ = environment;
    const bool taken = take_variable(kTokenVariable) == "first" && !::getenv(kTokenVariable);
    return taken && std::string(one) == "DDPRUN_TOKEN=" && std::string(two) == "DDPRUN_TOKEN=" &&
           std::string(::getenv("DDPRUN_TOKENS")) == "x";
  }));
  CHECK(in_a_child([] {
    ::environ = nullptr;
    return !take_variable(kTokenVariable);
  }));
}

TEST_CASE("Secrets: hidden memory stays hidden in a fork", "[secrets]") {
  CHECK(in_a_child([] {
    hide_memory();
    return in_a_child([] { return ::prctl(PR_GET_DUMPABLE) == 0; });
  }));
}

TEST_CASE("Secrets: the next program reads what was left to it, and may leave it again",
          "[secrets]") {
  CHECK(in_a_child([] {
    hide_memory();
    for (int i = 0; i < 2; ++i) {
      if (!leave_to_next_program(kTokenFileVariable, "the token")) return false;
      const std::string path = ::getenv(kTokenFileVariable);
      const int fd = std::stoi(path.substr(path.rfind('/') + 1));
      if (::fcntl(fd, F_GETFD) != 0) return false;  // Not closed by exec.
      if (secret_in_file(path, "token").value() != "the token") return false;
    }
    return true;
  }));
}

TEST_CASE("Secrets: a file's first line, whatever ends it", "[secrets]") {
  const auto path =
      std::filesystem::temp_directory_path() / ("ddprun-secret-" + std::to_string(::getpid()));
  const auto read = [&](const std::string& text) {
    std::ofstream(path, std::ios::binary) << text;
    return secret_in_file(path, "token");
  };
  CHECK(read("abc").value() == "abc");
  CHECK(read("a b \r\nmore\n").value() == "a b");
  const std::string none = "no token can be read from the first line of ";
  CHECK(read("\nmore\n").error().context == none + path.string() + ": it is empty");
  CHECK(read("").error().context == none + path.string() + ": it is empty");
  CHECK(read(std::string(5000, 'x')).error().context ==
        none + path.string() + ": it has more than 4096 bytes");
  std::filesystem::remove(path);
  CHECK(secret_in_file(path, "token").error().context ==
        none + path.string() + ": No such file or directory");
  CHECK(secret_in_file("/", "token").error().context == none + "/: Is a directory");
}

TEST_CASE("Secrets: a token that can be found by trying is warned of, and not repeated",
          "[secrets]") {
  CHECK_FALSE(short_token_warning("0123456789abcdef"));
  const auto warning = short_token_warning("swordfish");
  REQUIRE(warning);
  CHECK(warning->find("9 characters") != std::string::npos);
  CHECK(warning->find("swordfish") == std::string::npos);
}

}  // namespace
}  // namespace ddprun
