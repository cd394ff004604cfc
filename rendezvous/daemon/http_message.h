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

// Whether the value of a Host header names this machine: an IP address, "localhost", or `machine`
// (also without its domain), each with or without a port. A browser that was led here by another
// name (DNS rebinding) sends that name.
bool is_own_host(std::string_view host, std::string_view machine);

struct HttpReply {
  int status = 200;
  std::string body{};
  std::string content_type = "text/plain; charset=utf-8";
  std::string policy{};  // Content-Security-Policy; empty: none.
};

}  // namespace ddprun::rendezvous
