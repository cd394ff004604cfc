#include "common/text/display.h"

#include <catch2/catch.hpp>


namespace ddprun {
namespace {

TEST_CASE("Columns: wide signs take two, combining ones none, wrong bytes one", "[columns]") {
  CHECK(text_columns("größer ∞") == 8);
  CHECK(text_columns("北京1") == 5);
  CHECK(text_columns("e\xcc\x81") == 1);
  CHECK(text_columns("🔥") == 2);
  CHECK(text_columns("a\xff\x80") == 3);
  CHECK(text_columns("") == 0);
}

TEST_CASE("Columns: what is cut off is a whole sign, and a mark stands for it", "[columns]") {
  CHECK(first_columns("größer", 3) == "grö");
  CHECK(first_columns("北京", 3) == "北");
  CHECK(clipped("loss is NaN", 11) == "loss is NaN");
  CHECK(clipped("loss is NaN", 10) == "loss is N…");
  CHECK(clipped("loss is NaN", 10, /*utf8=*/false) == "loss is...");
  CHECK(clipped("北京北京", 4) == "北…");
  CHECK(clipped("long", 1) == "…");
  CHECK(clipped("long", 0).empty());
  CHECK(clipped("", 0).empty());
  for (std::size_t columns = 0; columns < 20; ++columns) {
    for (const bool utf8 : {false, true}) {
      CHECK(text_columns(clipped("ein größeres 北京 als 🔥", columns, utf8)) <= columns);
    }
  }
}

TEST_CASE("Columns: fields are padded, and numbers are never cut", "[columns]") {
  CHECK(fitted("größer", 8) == "größer  ");
  CHECK(fitted("größer", 4) == "größ");
  CHECK(fitted("北京", 3) == "北 ");
  CHECK(padded("größer", 4) == "größer");
  CHECK(right_aligned("7", 3) == "  7");
  CHECK(right_aligned("12345", 3) == " 12345");
}

TEST_CASE("UTF-8: only what is well-formed is a character", "[columns]") {
  CHECK(first_character("é").code == 0xe9);
  CHECK(first_character("\xf4\x8f\xbf\xbf").code == 0x10ffff);
  for (const char* wrong :
       {"\x80", "\xc0\x80", "\xc1\xbf", "\xe0\x9f\xbf", "\xed\xa0\x80", "\xf0\x8f\xbf\xbf",
        "\xf4\x90\x80\x80", "\xf8\x88\x80\x80", "\xc3", "\xe2\x88", "\xe2\x88z", "\xff"}) {
    CAPTURE(wrong);
    CHECK_FALSE(first_character(wrong).valid);
    CHECK(first_character(wrong).size == 1);
  }
}

}  // namespace
}  // namespace ddprun
