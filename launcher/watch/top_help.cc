#include "launcher/watch/top_help.h"

namespace ddprun::launcher {
namespace {

struct KeyHelp {
  const char *keys, *ascii, *meaning;
};
constexpr KeyHelp kKeys[] = {
    {"↑ ↓ j k", "j k", "choose a node"},
    {"→ Enter", "Enter", "open or close the ranks of that node"},
    {"←", "Left", "close them"},
    {"Tab", "Tab", "the next run"},
    {"o", "o", "late nodes first, or by rank again"},
    {"p Space", "p Space", "pause: the screen is not updated"},
    {"? h", "? h", "this page, and back"},
    {"q Esc Ctrl-C", "q Esc Ctrl-C", "end"},
    {"", "", ""},
    {"LATE", "LATE", "how long the others wait for it, a step, lately"},
    {"CPU", "CPU", "processors that its process occupies, 100 % each; from 90 columns on"},
    {"MEMORY", "MEMORY", "resident, of its process; from 100 columns on"},
    {"NOW", "NOW", "a node's phase; of a rank what its time counts as"}};
constexpr std::size_t kKeyColumns = 14;

}  // namespace

std::vector<std::string> top_help(const ScreenStyle& style) {
  std::vector<std::string> lines = {""};
  for (const KeyHelp& key : kKeys) {
    ScreenLine line(style);
    line.add(" " + fitted(style.pick(key.keys, key.ascii), kKeyColumns), "1").add(key.meaning);
    lines.push_back(line.take());
  }
  return lines;
}

}  // namespace ddprun::launcher
