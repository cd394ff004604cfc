#pragma once
// What this process writes to standard error while something is done, by whatever thread.

#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdio>
#include <functional>
#include <string>

namespace ddprun::test {

// The first 10,000 bytes of it.
inline std::string stderr_of(const std::function<void()>& body) {
  std::FILE* const file = std::tmpfile();
  REQUIRE(file);
  const int usual = ::dup(STDERR_FILENO);
  ::dup2(::fileno(file), STDERR_FILENO);
  body();
  ::dup2(usual, STDERR_FILENO);
  ::close(usual);
  std::string text(10000, '\0');
  std::rewind(file);
  text.resize(std::fread(text.data(), 1, text.size(), file));
  std::fclose(file);
  return text;
}

}  // namespace ddprun::test
