#include "common/text/display.h"

#include <catch2/catch.hpp>
#include <map>
#include <string>


namespace ddprun {
namespace {

TEST_CASE("Terminal text: plain text of any language stays as it is", "[terminal]") {
  const std::string text = "loss is NaN\n\tat step 3, größer als \xe2\x88\x9e \xf0\x9f\x94\xa5";
  CHECK(without_escapes(text) == text);
  CHECK_FALSE(leaves_colours_on(text));
}

TEST_CASE("Terminal text: what a terminal would obey is taken out", "[terminal]") {
  CHECK(without_escapes("a\x1b]0;owned\ab") == "ab");
  CHECK(without_escapes("a\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\b") == "alinkb");
  CHECK(without_escapes("a\x1bP1$r\x1b\\b\x1b_x\x1b\\c\x1b^y\x1b\\d\x1bXz\x1b\\e") == "abcde");
  CHECK(without_escapes("a\x1b[2J\x1b[H\x1b[?25l\x1b[6n\x1b[>4;1mb") == "ab");
  CHECK(without_escapes("a\x1b"
                        "c\x1b(0\x1b#8\x1b=b") == "ab");
  CHECK(without_escapes("a\rb\bc\ad\x7f"
                        "e\x0e") == "abcde");
  CHECK(without_escapes("a\xc2\x9b"
                        "31mb\xc2\x90") == "a31mb");
  CHECK(without_escapes("a\xc2\x01\x9b"
                        "b") == "ab");  // Joined by what was taken out.
  CHECK(without_escapes(std::string("a\0b", 3)) == "ab");
}

TEST_CASE("Terminal text: colours stay and end with the text", "[terminal]") {
  CHECK(without_escapes("\x1b[31mred\x1b[0m plain") == "\x1b[31mred\x1b[0m plain");
  CHECK(without_escapes("\x1b[1;38;2;9;9;9mred") == "\x1b[1;38;2;9;9;9mred\x1b[0m");
  CHECK(without_escapes("\x1b[0;31mred\x1b[m") == "\x1b[0;31mred\x1b[m");
  CHECK(leaves_colours_on("\x1b[0;31mred"));
  CHECK(leaves_colours_on("\x1b[0mplain \x1b[4mline"));
  CHECK_FALSE(leaves_colours_on("\x1b[31;0mnothing"));
  CHECK_FALSE(leaves_colours_on("\x1b[31mred\x1b[00m"));
  CHECK_FALSE(leaves_colours_on("\x1b[2Jno colour"));
}

TEST_CASE("Terminal text: colours are taken out where they are not wanted", "[terminal]") {
  CHECK(without_escapes("\x1b[31mred\x1b[0m\n\x1b[2Jmore", Colours::kRemoved) == "red\nmore");
  CHECK(without_escapes("\x1b[31mred", Colours::kRemoved) == "red");
}

TEST_CASE("Terminal text: a line from outside keeps its signs and loses what is obeyed",
          "[terminal]") {
  for (const char* plain : {"", "job7", "größer 北京 🔥 a b;touch x", "e\xcc\x81"}) {
    CHECK(plain_line(plain) == plain);
    CHECK(is_plain_line(plain));
  }
  const std::pair<const char*, const char*> cases[] = {
      {"a\x1b]0;owned\x07", "a?]0;owned?"},  // OSC: another title.
      {"a\xc2\x9b[2Jb\xc2\x85", "a?[2Jb?"},  // C1: CSI and NEL in UTF-8.
      {"a\x9b[2J", "a?[2J"},                 // C1 as one byte.
      {"x\ny\rz", "x?y?z"},                  // Lines of their own.
      {"a\tb", "a b"},
      {"a\x7f\x08", "a??"},
      {"caf\xe9", "caf?"},                     // Latin-1.
      {"x\xe2\x80\xaey\xe2\x81\xa6", "x?y?"},  // RLO and LRI turn the line around.
      {"x\xe2\x80\xa8y", "x?y"},               // LINE SEPARATOR.
      {"\xc0\x9b", "??"},                      // Overlong.
      {"\xed\xa0\x80", "???"}};                // A surrogate.
  for (const auto& [text, line] : cases) {
    CHECK(plain_line(text) == line);
    CHECK(is_plain_line(plain_line(text)));
    CHECK_FALSE(is_plain_line(text));
  }
  CHECK(plain_line(std::string_view("a\0b", 3)) == "a?b");
}

TEST_CASE("Terminal text: what is cut off takes no more than its line", "[terminal]") {
  CHECK(without_escapes("a\x1b") == "a");
  CHECK(without_escapes("a\x1b[31") == "a");
  CHECK(without_escapes("a\x1b]0;no end\nnext") == "a\nnext");
  CHECK(without_escapes("a\x1b[31\nnext") == "a\nnext");
  CHECK(without_escapes("a\x1b]0;no end") == "a");
  CHECK(without_escapes("a\x1b]0;t\x1b[31mred") == "a\x1b[31mred\x1b[0m");
}

TEST_CASE("Terminal text: the first variable of the locale that is set decides on UTF-8",
          "[terminal]") {
  using Variables = std::map<std::string, std::string>;
  const auto is_utf8 = [](Variables variables) {
    return is_utf8_locale([&](const char* name) { return variables[name]; });
  };
  CHECK(is_utf8({{"LANG", "de_DE.UTF-8"}}));
  CHECK(is_utf8({{"LC_CTYPE", "C.utf8"}, {"LANG", "C"}}));
  CHECK(is_utf8({{"LC_ALL", ""}, {"LANG", "en_GB.UTF-8"}}));
  CHECK_FALSE(is_utf8({{"LC_ALL", "C"}, {"LANG", "en_GB.UTF-8"}}));
  CHECK_FALSE(is_utf8({{"LC_ALL", "POSIX"}, {"LC_CTYPE", "C.UTF-8"}}));
  CHECK_FALSE(is_utf8({{"LANG", "de_DE.ISO-8859-1"}}));
  CHECK_FALSE(is_utf8({}));
}

}  // namespace
}  // namespace ddprun
