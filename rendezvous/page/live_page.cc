#include "rendezvous/page/live_page.h"

#include <openssl/evp.h>
#include <openssl/sha.h>

#include <array>
#include <cstdio>

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
  page.policy =
      "default-src 'none'; script-src 'sha256-" + base64(sha256(script_of(page.html))) +
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

}  // namespace ddprun::rendezvous
