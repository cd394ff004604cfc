#include "launcher/watch/keys.h"

#include <array>
#include <optional>

namespace ddprun::launcher {
namespace {

constexpr char kEscape = '\x1b';
constexpr std::size_t kSequenceMax = 32;

struct Meaning {
  char sign;
  Key key;
};
constexpr auto kSigns = std::to_array<Meaning>({{'k', Key::kUp},
                                                {'j', Key::kDown},
                                                {'\r', Key::kOpen},
                                                {'\n', Key::kOpen},
                                                {'\t', Key::kNext},
                                                {'o', Key::kOrder},
                                                {'p', Key::kPause},
                                                {' ', Key::kPause},
                                                {'?', Key::kHelp},
                                                {'h', Key::kHelp},
                                                {'q', Key::kQuit}});
// The last byte of the sequence of an arrow: ESC [ A, ESC O A, and with a modifier ESC [ 1 ; 5 A.
constexpr auto kArrows = std::to_array<Meaning>(
    {{'A', Key::kUp}, {'B', Key::kDown}, {'C', Key::kOpen}, {'D', Key::kClose}});

template <class Table>
void add_meaning(const Table& table, char sign, std::vector<Key>& keys) {
  for (const Meaning& meaning : table) {
    if (meaning.sign == sign) keys.push_back(meaning.key);
  }
}

// How long the sequence at the beginning of `text` is, which is an escape; nothing: it goes on.
std::optional<std::size_t> sequence_size(std::string_view text) {
  if (text.size() < 2) return std::nullopt;
  if (text[1] == 'O') return text.size() < 3 ? std::nullopt : std::optional<std::size_t>(3);
  if (text[1] != '[') return 1;  // Esc, or Alt and a key: that key.
  for (std::size_t at = 2; at < text.size(); ++at) {
    if (text[at] >= '@' && text[at] <= '~') return at + 1;
    if (text[at] < ' ' || text[at] > '~' || at == kSequenceMax) return at;  // None of a terminal.
  }
  return std::nullopt;
}

}  // namespace

std::vector<Key> KeyParser::take(std::string_view bytes) {
  std::vector<Key> keys;
  const std::string text = pending_.append(bytes);
  pending_.clear();
  for (std::string_view rest = text; !rest.empty();) {
    if (rest[0] != kEscape) {
      add_meaning(kSigns, rest[0], keys);
      rest.remove_prefix(1);
      continue;
    }
    const auto size = sequence_size(rest);
    if (!size) {
      pending_ = rest;
      break;
    }
    if (*size == 1 && rest[1] == kEscape) keys.push_back(Key::kQuit);
    if (*size > 2) add_meaning(kArrows, rest[*size - 1], keys);
    rest.remove_prefix(*size);
  }
  return keys;
}

std::vector<Key> KeyParser::expired() {
  const bool is_escape = pending_.size() == 1;
  pending_.clear();
  return is_escape ? std::vector<Key>{Key::kQuit} : std::vector<Key>{};
}

}  // namespace ddprun::launcher
