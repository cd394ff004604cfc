#include "agent/output/last_words.h"

#include <algorithm>
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
  lines[3] = "ddprun: rank 3: SIGSEGV at address 0x0; call stack:";
  CHECK(last_words(lines, "").starts_with(lines[3]));
}

TEST_CASE("Last words: a long line costs no other line, nor its own beginning", "[last_words]") {
  const std::string keys(9'000, 'k');
  const std::string words =
      last_words({"Traceback (most recent call last):", "RuntimeError: Error(s) in GPT:",
                  "\tMissing key(s): " + keys + ". "},
                 "");
  CHECK(words.size() <= 4096);
  CHECK(words.size() > 4000);
  CHECK(words.starts_with("Traceback (most recent call last):\nRuntimeError: Error(s) in GPT:\n"));
  CHECK(words.find("\tMissing key(s): kkk") != std::string::npos);
  CHECK(words.ends_with("kk. "));
  // Eleven that are long, and one that is not.
  std::vector<std::string> lines(11, std::string(800, 'x'));
  lines.push_back("ValueError: " + keys);
  const std::string all = last_words(lines, "");
  CHECK(all.size() <= 4096);
  CHECK(std::count(all.begin(), all.end(), '\n') == 11);
  CHECK(all.find("\nValueError: kkk") != std::string::npos);
}

TEST_CASE("Last words: an error file's call stack comes with its message", "[last_words]") {
  CHECK(error_file_text(R"({"message": {"message": "ValueError: boom", "extraInfo":
        {"py_callstack": "Traceback:\n  x\nValueError: boom\n"}}})") ==
        "Traceback:\n  x\nValueError: boom");
  CHECK(error_file_text(R"({"message": {"message": "SIGSEGV", "extraInfo":
        {"cpp_callstack": "./t(_ZN5model4lossEv+0x1f) [0x4]\n"}}})") ==
        "SIGSEGV\n./t(model::loss()+0x1f) [0x4]");
  for (const char* text :
       {R"({"message": {"message": "m", "extraInfo": 3}})", R"({"message": {"message": "m"}})",
        R"({"message": {"message": "m", "extraInfo": {"py_callstack": []}}})"}) {
    CHECK(error_file_text(text) == "m");
  }
  CHECK(error_file_text("[").empty());
  const std::string deep = R"({"message": {"message": "end", "extraInfo": {"py_callstack": ")" +
                           std::string(10'000, 'x') + R"("}}})";
  CHECK(error_file_text(deep).size() < 4096);
}

TEST_CASE("Last words: no letter is cut in two, and bytes that are no text stay", "[last_words]") {
  std::string euros = "x";
  for (int i = 0; i < 2000; ++i) euros += "\xe2\x82\xac";
  const std::string message = error_file_message(R"({"message": ")" + euros + R"("})");
  CHECK(message == euros.substr(0, 4096));  // 1 + 1365 * 3.
  const std::string shifted = error_file_message(R"({"message": "x)" + euros + R"("})");
  CHECK(shifted == "x" + euros.substr(0, 4093));
  CHECK(last_words({std::string(5000, '\x80')}, "").size() >= 4089);
}

TEST_CASE("Last words: C++ names are made readable, other text is left alone", "[last_words]") {
  CHECK(demangled("a(_Z3foov+0x1) b(_Z3bari) c(_Zxx+1) (_Z") ==
        "a(foo()+0x1) b(bar(int)) c(_Zxx+1) (_Z");
  CHECK(demangled("") == "");
}

}  // namespace
}  // namespace ddprun::agent
