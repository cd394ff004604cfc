#include "rendezvous/daemon/pages.h"

#include <algorithm>
#include <cstdlib>

namespace ddprun::rendezvous {
namespace {

HttpReply status_page(DaemonStatus status, const HttpTarget& target) {
  const auto wanted = target.query.find("run");
  if (wanted != target.query.end()) {
    std::erase_if(status.runs, [&](const auto& run) { return run.run_id != wanted->second; });
    if (status.runs.empty()) return {404, "there is no such run; /status lists all runs\n"};
  }
  return {200, encode_indented(status), "application/json"};
}

std::string value_of(const HttpTarget& target, const char* name) {
  const auto found = target.query.find(name);
  return found == target.query.end() ? "" : found->second;
}

// Takes as long wherever they differ.
bool is_same_secret(std::string_view a, std::string_view b) {
  unsigned char differs = a.size() == b.size() ? 0 : 1;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    differs = static_cast<unsigned char>(differs | (a[i] ^ b[i]));
  }
  return differs == 0;
}

}  // namespace

HttpReply Pages::answer(std::string_view method, std::string_view target) const {
  if (method != "GET") return {405, "only GET and HEAD are answered here\n"};
  const auto parsed = parse_target(target);
  if (!parsed) return {400, "the request's target is not a path with a query\n"};
  return answer(*parsed);
}

HttpReply Pages::answer(const HttpTarget& target) const {
  if (target.path == "/healthz") {
    const std::string wrong = complaint();
    return wrong.empty() ? HttpReply{200, "ok\n"} : HttpReply{503, wrong + "\n"};
  }
  if (target.path == "/status") return status_page(status(), target);
  if (target.path == "/metrics") {
    return {200, metrics(), "text/plain; version=0.0.4; charset=utf-8"};
  }
  const bool known = target.path == "/" || target.path == "/events" || target.path == "/report";
  if (known) return for_people(target);
  return {404,
          "there is no such page; the pages are /, /events, /healthz, /metrics, /report and "
          "/status\n"};
}

HttpReply Pages::for_people(const HttpTarget& target) const {
  if (!key.empty() && !is_same_secret(value_of(target, "key"), key)) {
    return {403,
            "this page needs a key: use the address in the daemon's log, which contains it, or "
            "use ssh -L to a daemon that serves 127.0.0.1\n"};
  }
  if (target.path == "/") return {200, live.html, "text/html; charset=utf-8", live.policy};
  if (target.path == "/events") {
    const std::string after = value_of(target, "after");
    return {200, events(std::atoll(after.c_str())), "application/json"};
  }
  const auto found = account(value_of(target, "run"));
  if (!found) return {404, "there is no such run; /status lists all runs\n"};
  return {200, *found, "application/json"};
}

}  // namespace ddprun::rendezvous
