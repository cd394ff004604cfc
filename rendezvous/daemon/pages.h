#pragma once
// The pages of the daemon for operators: /healthz, /status and /metrics; and for people / with what
// it needs, /events and /report. Pure: what stands on them comes from the functions that operations
// hands over.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "rendezvous/daemon/http_message.h"
#include "rendezvous/run/status.h"

namespace ddprun::rendezvous {

// The page at /: one file, which reads /status and /events and shows them. It is compiled in.
struct LivePage {
  std::string html;
  std::string policy;  // Content-Security-Policy: this script, and no other host.
};

LivePage live_page();

// The key of the pages for people, made of the run's token, which cannot be computed from the key.
std::string page_key(std::string_view token);

class Pages {
 public:
  std::function<std::string()> complaint;  // What is unhealthy, as a sentence; empty: nothing.
  std::function<DaemonStatus()> status;
  std::function<std::string()> metrics;                     // In Prometheus' text format.
  std::function<std::string(std::int64_t after)> events{};  // JSON.
  // The account of a run as JSON; nothing: there is no such run.
  std::function<std::optional<std::string>(const std::string& run)> account{};
  LivePage live{};
  // What the pages for people want as "key" in the query, since others can reach the port; empty:
  // they want nothing.
  std::string key{};

  // Another method than GET is answered with 405, another page with 404; each lists what there is.
  HttpReply answer(std::string_view method, std::string_view target) const;

 private:
  HttpReply answer(const HttpTarget& target) const;
  HttpReply for_people(const HttpTarget& target) const;
};

}  // namespace ddprun::rendezvous
