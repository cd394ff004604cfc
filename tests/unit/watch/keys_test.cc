#include "launcher/watch/terminal.h"

#include <catch2/catch.hpp>

namespace ddprun::launcher {
namespace {

using Keys = std::vector<Key>;

Keys taken(std::initializer_list<std::string_view> packets) {
  KeyParser parser;
  Keys keys;
  for (const std::string_view packet : packets) {
    for (const Key key : parser.take(packet)) keys.push_back(key);
  }
  return keys;
}

TEST_CASE("Keys: each has its meaning, also with modifiers and in application mode", "[keys]") {
  CHECK(taken({"kj"}) == Keys{Key::kUp, Key::kDown});
  CHECK(taken({"\r\n\t"}) == Keys{Key::kOpen, Key::kOpen, Key::kNext});
  CHECK(taken({"op ?hq"}) ==
        Keys{Key::kOrder, Key::kPause, Key::kPause, Key::kHelp, Key::kHelp, Key::kQuit});
  CHECK(taken({"\x1b[A", "\x1b[B", "\x1b[C", "\x1b[D"}) ==
        Keys{Key::kUp, Key::kDown, Key::kOpen, Key::kClose});
  CHECK(taken({"\x1bOA\x1bOB"}) == Keys{Key::kUp, Key::kDown});
  CHECK(taken({"\x1b[1;5B"}) == Keys{Key::kDown});
}

TEST_CASE("Keys: a held arrow comes as several sequences in one read", "[keys]") {
  CHECK(taken({"\x1b[B\x1b[B\x1b[B"}) == Keys{Key::kDown, Key::kDown, Key::kDown});
  CHECK(taken({"\x1b[Bq"}) == Keys{Key::kDown, Key::kQuit});
}

TEST_CASE("Keys: a sequence may be split behind any byte, and is not Esc", "[keys]") {
  const std::string bytes = "\x1b[B\x1bOA\x1b[1;5Cj";
  const Keys whole = {Key::kDown, Key::kUp, Key::kOpen, Key::kDown};
  for (std::size_t at = 0; at <= bytes.size(); ++at) {
    const std::string_view text = bytes;
    CHECK(taken({text.substr(0, at), text.substr(at)}) == whole);
  }
  KeyParser parser;
  CHECK(parser.take("\x1b").empty());
  CHECK(parser.is_waiting());
  CHECK(parser.take("[").empty());
  CHECK(parser.is_waiting());
  CHECK(parser.take("B") == Keys{Key::kDown});
  CHECK_FALSE(parser.is_waiting());
}

TEST_CASE("Keys: an Esc that nothing follows ends, a torn sequence is nothing", "[keys]") {
  KeyParser parser;
  parser.take("\x1b");
  CHECK(parser.expired() == Keys{Key::kQuit});
  CHECK_FALSE(parser.is_waiting());
  parser.take("\x1b[1;");
  CHECK(parser.expired().empty());
  CHECK(parser.take("j") == Keys{Key::kDown});
  CHECK(taken({"\x1b\x1b"}) == Keys{Key::kQuit});
  CHECK(taken({"\x1bj"}) == Keys{Key::kDown});
}

TEST_CASE("Keys: what has no meaning is left out, however long it is", "[keys]") {
  CHECK(taken({"\x1b[3~\x1b[15;2~x\x1b[Ij"}) == Keys{Key::kDown});
  CHECK(taken({"gr\xc3\xb6\xc3\x9f"}).empty());
  KeyParser parser;
  parser.take("\x1b[" + std::string(100'000, '1'));
  CHECK_FALSE(parser.is_waiting());
  CHECK(parser.take("j") == Keys{Key::kDown});
}

}  // namespace
}  // namespace ddprun::launcher
