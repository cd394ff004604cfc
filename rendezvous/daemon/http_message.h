#pragma once
// A request for a page and its answer, without the protocol around them (that is
// http_server). Pure.

#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace ddprun::rendezvous {

// "/status?run=a%20b" taken apart.
struct HttpTarget {
  std::string path;
  std::map<std::string, std::string> query;  // The last value of a name counts.
};

// Nothing if it does not begin with '/' or holds a '%' without two hexadecimal digits.
std::optional<HttpTarget> parse_target(std::string_view target);

struct HttpReply {
  int status = 200;
  std::string body{};
  std::string content_type = "text/plain; charset=utf-8";
  std::string policy{};  // Content-Security-Policy; empty: none.
};

}  // namespace ddprun::rendezvous
