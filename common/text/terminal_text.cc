#include "common/text/terminal_text.h"

#include <algorithm>

#include "common/text/utf8.h"

namespace ddprun {
namespace {

constexpr char kEscape = '\x1b';

// Whether the bytes between "ESC [" and "m" end all that was on: nothing, or 0 as the last of them.
bool ends_colours(std::string_view parameters) {
  const std::size_t last = parameters.find_last_of(";:");
  const std::string_view number =
      last == std::string_view::npos ? parameters : parameters.substr(last + 1);
  return number.find_first_not_of('0') == std::string_view::npos;
}

struct Sequence {
  std::size_t size = 1;
  bool is_colour = false;
  bool is_end = false;
};

// "ESC [", parameters and intermediates, one final byte. A cut one ends where no more of it can be.
Sequence control_sequence(std::string_view text) {
  std::size_t at = 2;
  while (at < text.size() && text[at] >= ' ' && text[at] <= '?') ++at;
  if (at == text.size() || text[at] < '@' || text[at] > '~') return {at};
  const std::string_view parameters = text.substr(2, at - 2);
  const bool plain = parameters.find_first_not_of("0123456789;:") == std::string_view::npos;
  if (text[at] != 'm' || !plain) return {at + 1};
  return {at + 1, true, ends_colours(parameters)};
}

// The sequence at the beginning of `text`, which is an escape.
Sequence sequence_at(std::string_view text) {
  if (text.size() < 2) return {};
  if (text[1] == '[') return control_sequence(text);
  // OSC, DCS, SOS, PM, APC: a string up to BEL or ESC \; one without an end takes its line only.
  if (std::string_view("]PX^_").find(text[1]) != std::string_view::npos) {
    const std::size_t end = text.find_first_of("\a\n\x1b", 2);
    if (end == std::string_view::npos) return {text.size()};
    if (text[end] == '\a') return {end + 1};
    return {text.substr(end, 2) == "\x1b\\" ? end + 2 : end};
  }
  std::size_t at = 1;
  while (at < text.size() && text[at] >= ' ' && text[at] <= '/') ++at;
  return {std::min(at + (at < text.size() && text[at] >= '0' && text[at] <= '~'), text.size())};
}

bool is_control(std::string_view text) {
  const auto byte = static_cast<unsigned char>(text[0]);
  if (byte == '\n' || byte == '\t') return false;
  return byte < ' ' || byte == 0x7f;
}

// U+0080 to U+009F in UTF-8: the same orders in one character, of which `out` ends in the first
// byte.
bool completes_control(std::string_view out, std::string_view text) {
  const auto byte = static_cast<unsigned char>(text[0]);
  return out.ends_with('\xc2') && byte >= 0x80 && byte < 0xa0;
}

// Whether a terminal or a reader takes it for what it is, within its line.
bool is_plain(const Character& character) {
  if (!character.valid) return false;
  const char32_t code = character.code;
  const bool control = code < ' ' || (code >= 0x7f && code < 0xa0);
  const bool breaks_line = code == 0x2028 || code == 0x2029;
  const bool turns_line = (code >= 0x202a && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069);
  return !control && !breaks_line && !turns_line;
}

}  // namespace

std::string without_escapes(std::string_view text, Colours wanted) {
  std::string out;
  bool colours = false;
  while (!text.empty()) {
    std::size_t size = 1;
    bool keep = !is_control(text);
    if (text[0] == kEscape) {
      const Sequence sequence = sequence_at(text);
      size = sequence.size;
      keep = sequence.is_colour && wanted == Colours::kKept;
      if (keep) colours = !sequence.is_end;
    } else if (completes_control(out, text)) {
      out.pop_back();
      keep = false;
    }
    if (keep) out.append(text.substr(0, size));
    text.remove_prefix(size);
  }
  if (colours) out += kColoursOff;
  return out;
}

std::string plain_line(std::string_view text) {
  std::string line;
  while (!text.empty()) {
    const Character character = first_character(text);
    if (is_plain(character)) {
      line.append(text.substr(0, character.size));
    } else {
      line += character.code == '\t' ? ' ' : '?';
    }
    text.remove_prefix(character.size);
  }
  return line;
}

bool is_plain_line(std::string_view text) {
  while (!text.empty()) {
    const Character character = first_character(text);
    if (!is_plain(character)) return false;
    text.remove_prefix(character.size);
  }
  return true;
}

bool leaves_colours_on(std::string_view text) {
  bool colours = false;
  for (std::size_t at; (at = text.find(kEscape)) != std::string_view::npos;) {
    text.remove_prefix(at);
    const Sequence sequence = sequence_at(text);
    if (sequence.is_colour) colours = !sequence.is_end;
    text.remove_prefix(sequence.size);
  }
  return colours;
}

}  // namespace ddprun
