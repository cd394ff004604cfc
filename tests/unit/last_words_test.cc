#include "agent/last_words.h"

#include <catch2/catch.hpp>

namespace ddprun::agent {
namespace {

TEST_CASE("Last words: the message of PyTorch's error file", "[last_words]") {
  CHECK(error_file_message(R"({"message": {"message": "ValueError: boom", "extraInfo": {}}})") ==
        "ValueError: boom");
  CHECK(error_file_message(R"({"message": "plain"})") == "plain");
  for (const char* text :
       {"", "{", "[]", "{}", R"({"message": 1})", R"({"message": {"message": []}})"}) {
    CHECK(error_file_message(text).empty());
  }
}

TEST_CASE("Last words: else the last dozen lines of standard error", "[last_words]") {
  std::vector<std::string> lines;
  for (int i = 0; i < 30; ++i) lines.push_back("line " + std::to_string(i));
  const std::string words = last_words(lines, "");
  CHECK(words.starts_with("line 18\n"));
  CHECK(words.ends_with("line 29"));
  CHECK(last_words({std::string(10'000, 'x')}, "").size() == 4096);
  CHECK(last_words({}, "/nonexistent").empty());
}

}  // namespace
}  // namespace ddprun::agent
