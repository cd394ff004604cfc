#include "common/text/display.h"

#include <catch2/catch.hpp>

namespace ddprun {
namespace {

using Lines = std::vector<std::string>;

TEST_CASE("Wrapped text: lines end between words, and are as wide as they may be") {
  CHECK(wrapped_lines("one two three", 7) == Lines{"one two", "three"});
  CHECK(wrapped_lines("one two three", 6) == Lines{"one", "two", "three"});
  CHECK(wrapped_lines("one two three", 13) == Lines{"one two three"});
  CHECK(wrapped_lines("", 7).empty());
}

TEST_CASE("Wrapped text: a word that is too long is not cut") {
  CHECK(wrapped_lines("a communicator b", 4) == Lines{"a", "communicator", "b"});
}

TEST_CASE("Wrapped text: signs of several bytes are one column wide") {
  CHECK(wrapped_lines("größer als ∞", 10) == Lines{"größer als", "∞"});
}

TEST_CASE("Wrapped text: whether lines fit") {
  CHECK(fits_columns("größer\nals\n", 6));
  CHECK_FALSE(fits_columns("als\ngrößer\n", 5));
  CHECK_FALSE(fits_columns("größer", 5));
  CHECK(fits_columns("größer", 0));
}

}  // namespace
}  // namespace ddprun
