#pragma once
// TLS 1.3 with a pre-shared key, the run's token, and nothing else: no certificates, no tickets, no
// older version, no suite but one. Knowing the token is what admits either side, and it encrypts
// the link. Keys are fresh for each connection (psk_dhe_ke), so a token that leaks later opens no
// recording. A recording lets an attacker try out guesses of a token: the tokens that ddprun mints
// cannot be guessed, one that a person makes up should be long. Used by the Link's channels.

#include <openssl/ssl.h>

#include <array>
#include <memory>
#include <string>
#include <string_view>

#include "common/error.h"

namespace ddprun::rendezvous {

constexpr std::string_view kPskIdentity = "ddprun";

enum class TlsRole { kClient, kServer };

// Shared by the connections of one side; immutable, so any thread may use it.
using TlsContext = std::shared_ptr<SSL_CTX>;

// `token` is what the user holds, of any length above 0. The key is derived from it by HKDF-SHA256.
Result<TlsContext> make_tls_context(TlsRole role, std::string_view token);

struct SslDeleter {
  void operator()(SSL* ssl) const { SSL_free(ssl); }
};
using SslPtr = std::unique_ptr<SSL, SslDeleter>;

// A connection's TLS engine over a connected non-blocking socket, which it borrows. A peer that is
// gone raises no SIGPIPE.
SslPtr make_tls_engine(const TlsContext& context, TlsRole role, int fd);

// Whether the last read of its socket took all there was.
bool drained(const SSL* ssl);

}  // namespace ddprun::rendezvous
