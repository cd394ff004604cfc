#include "common/text/host_text.h"

#include <algorithm>
#include <cctype>

namespace ddprun {

bool equal_names(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](unsigned char x, unsigned char y) {
    return std::tolower(x) == std::tolower(y);
  });
}

bool is_numeric(std::string_view host) {
  return host.find(':') != std::string_view::npos ||
         host.find_first_not_of("0123456789.") == std::string_view::npos;
}

bool is_loopback(std::string_view host) {
  return equal_names(host, "localhost") || host == "::1" ||
         (host.starts_with("127.") && is_numeric(host));
}

}  // namespace ddprun
