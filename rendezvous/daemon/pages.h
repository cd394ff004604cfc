#pragma once
// The pages of the daemon for operators: /healthz, /status and /metrics. Pure: what stands on them
// comes from the functions that operations hands over.

#include <functional>
#include <string>
#include <string_view>

#include "rendezvous/daemon/http_message.h"
#include "rendezvous/run/status.h"

namespace ddprun::rendezvous {

struct Pages {
  std::function<std::string()> complaint;  // What is unhealthy, as a sentence; empty: nothing.
  std::function<DaemonStatus()> status;
  std::function<std::string()> metrics;  // In Prometheus' text format.

  // Another method than GET is answered with 405, another page with 404; each says what there is.
  HttpReply answer(std::string_view method, std::string_view target) const;
};

}  // namespace ddprun::rendezvous
