#include "rendezvous/daemon/pages.h"

#include <openssl/evp.h>
#include <openssl/sha.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>

#include "common/assert.h"
#include "common/embedded_file.h"

// The page as it is in the source tree.
DDPRUN_EMBEDDED_FILE(ddprun_live_page, DDPRUN_LIVE_PAGE);

namespace ddprun::rendezvous {
namespace {

using Digest = std::array<unsigned char, SHA256_DIGEST_LENGTH>;

Digest sha256(std::string_view text) {
  Digest digest{};
  ::SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest.data());
  return digest;
}

std::string base64(const Digest& digest) {
  std::array<unsigned char, 4 * (SHA256_DIGEST_LENGTH + 2) / 3 + 1> text{};
  const int length = ::EVP_EncodeBlock(text.data(), digest.data(), static_cast<int>(digest.size()));
  return {reinterpret_cast<const char*>(text.data()), static_cast<std::size_t>(length)};
}

// What a browser hashes: all between the tags.
std::string_view script_of(std::string_view html) {
  constexpr std::string_view kOpen = "<script>", kClose = "</script>";
  const std::size_t begin = html.find(kOpen);
  const std::size_t end = html.find(kClose, begin);
  DDPRUN_ASSERT(begin != std::string_view::npos && end != std::string_view::npos);
  return html.substr(begin + kOpen.size(), end - begin - kOpen.size());
}

}  // namespace

LivePage live_page() {
  LivePage page;
  page.html.assign(ddprun_live_page, ddprun_live_page_end);
  page.policy = "default-src 'none'; script-src 'sha256-" + base64(sha256(script_of(page.html))) +
                "'; style-src 'unsafe-inline'; connect-src 'self'; img-src data:; base-uri 'none'; "
                "form-action 'none'; frame-ancestors 'none'";
  return page;
}

std::string page_key(std::string_view token) {
  const Digest digest = sha256("ddprun: key of the live page: " + std::string(token));
  std::string text;
  for (std::size_t i = 0; i < digest.size() / 2; ++i) {
    char byte[3];
    std::snprintf(byte, sizeof byte, "%02x", digest[i]);
    text += byte;
  }
  return text;
}

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
