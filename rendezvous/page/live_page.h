#pragma once
// The page at /: one file, which reads /status and /events and shows them. It is compiled in.

#include <string>
#include <string_view>

namespace ddprun::rendezvous {

struct LivePage {
  std::string html;
  std::string policy;  // Content-Security-Policy: this script, and no other host.
};

LivePage live_page();

// The key of the pages for people, made of the run's token, which cannot be computed from the key.
std::string page_key(std::string_view token);

}  // namespace ddprun::rendezvous
