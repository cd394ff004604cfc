#include "rendezvous/daemon/pages.h"

namespace ddprun::rendezvous {
namespace {

HttpReply status_page(DaemonStatus status, const HttpTarget& target) {
  const auto wanted = target.query.find("run");
  if (wanted != target.query.end()) {
    std::erase_if(status.runs, [&](const auto& run) { return run.run_id != wanted->second; });
    if (status.runs.empty()) return {404, "there is no such run; /status lists those there are\n"};
  }
  return {200, encode_indented(status), "application/json"};
}

}  // namespace

HttpReply Pages::answer(std::string_view method, std::string_view target) const {
  if (method != "GET") return {405, "only GET and HEAD are answered here\n"};
  const auto parsed = parse_target(target);
  if (!parsed) return {400, "the request's target is not a path with a query\n"};
  if (parsed->path == "/healthz") {
    const std::string wrong = complaint();
    return wrong.empty() ? HttpReply{200, "ok\n"} : HttpReply{503, wrong + "\n"};
  }
  if (parsed->path == "/status") return status_page(status(), *parsed);
  if (parsed->path == "/metrics") {
    return {200, metrics(), "text/plain; version=0.0.4; charset=utf-8"};
  }
  return {404, "there is no such page; there are /healthz, /status and /metrics\n"};
}

}  // namespace ddprun::rendezvous
