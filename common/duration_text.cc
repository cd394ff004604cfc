#include "common/duration_text.h"

namespace ddprun {

std::string number_of(int n, const char* thing) {
  return std::to_string(n) + " " + thing + (n == 1 ? "" : "s");
}

std::string seconds_text(Milliseconds duration) {
  const auto tenths = duration.count() / 100;
  std::string text = std::to_string(tenths / 10);
  if (tenths % 10 != 0) text += "." + std::to_string(tenths % 10);
  return text + " s";
}

}  // namespace ddprun
