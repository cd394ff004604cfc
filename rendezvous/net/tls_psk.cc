#include "rendezvous/net/tls_psk.h"

#include <openssl/core_names.h>
#include <openssl/err.h>
#include <openssl/kdf.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "common/assert.h"

namespace ddprun::rendezvous {
namespace {

constexpr char kSuite[] = "TLS_AES_128_GCM_SHA256";
constexpr unsigned char kSuiteNumber[] = {0x13, 0x01};
constexpr std::string_view kPurpose = "ddprun control link v1";  // Separates this use of the token.
constexpr std::size_t kKeyBytes = 32;
constexpr long kRecordBytes = 4096;  // Messages are small; a buffer of this size is kept while one
                                     // is written, on each of thousands of links.

using Key = std::array<unsigned char, kKeyBytes>;

Failure openssl_failure(const char* what) {
  std::array<char, 256> text{};
  ERR_error_string_n(ERR_get_error(), text.data(), text.size());
  return {Errc::kBadOption, std::string(what) + ": " + text.data()};
}

bool derive(std::string_view token, Key& key) {
  const std::unique_ptr<EVP_KDF, decltype(&EVP_KDF_free)> kdf(
      EVP_KDF_fetch(nullptr, "HKDF", nullptr), EVP_KDF_free);
  const std::unique_ptr<EVP_KDF_CTX, decltype(&EVP_KDF_CTX_free)> context(
      kdf ? EVP_KDF_CTX_new(kdf.get()) : nullptr, EVP_KDF_CTX_free);
  if (!context) return false;
  char digest[] = "SHA256";
  std::string secret(token), purpose(kPurpose);
  const std::array<OSSL_PARAM, 4> parameters{
      OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, digest, 0),
      OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_KEY, secret.data(), secret.size()),
      OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_INFO, purpose.data(), purpose.size()),
      OSSL_PARAM_construct_end()};
  const int done = EVP_KDF_derive(context.get(), key.data(), key.size(), parameters.data());
  OPENSSL_cleanse(secret.data(), secret.size());
  return done == 1;
}

// The key lives as long as the context, which frees it.
void free_key(void*, void* key, CRYPTO_EX_DATA*, int, long, void*) {
  if (!key) return;
  OPENSSL_cleanse(static_cast<Key*>(key)->data(), kKeyBytes);
  delete static_cast<Key*>(key);
}

int key_slot() {
  static const int slot = SSL_CTX_get_ex_new_index(0, nullptr, nullptr, nullptr, free_key);
  return slot;
}

// What OpenSSL wants in place of a key: a session that could have been resumed.
SSL_SESSION* make_session(SSL* ssl) {
  const auto* key = static_cast<const Key*>(SSL_CTX_get_ex_data(SSL_get_SSL_CTX(ssl), key_slot()));
  SSL_SESSION* session = SSL_SESSION_new();
  const SSL_CIPHER* suite = SSL_CIPHER_find(ssl, kSuiteNumber);
  if (session && suite && SSL_SESSION_set1_master_key(session, key->data(), key->size()) == 1 &&
      SSL_SESSION_set_cipher(session, suite) == 1 &&
      SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) == 1) {
    return session;
  }
  SSL_SESSION_free(session);
  return nullptr;
}

int use_session(SSL* ssl, const EVP_MD* digest, const unsigned char** identity,
                std::size_t* identity_size, SSL_SESSION** session) {
  *session = nullptr;
  if (digest && EVP_MD_get_type(digest) != NID_sha256) return 0;
  *identity = reinterpret_cast<const unsigned char*>(kPskIdentity.data());
  *identity_size = kPskIdentity.size();
  *session = make_session(ssl);
  return *session ? 1 : 0;
}

// The identity is ignored: there is one key, and the handshake proves that the peer has it.
int find_session(SSL* ssl, const unsigned char*, std::size_t, SSL_SESSION** session) {
  *session = make_session(ssl);
  return 1;
}

bool set_up(SSL_CTX* context, TlsRole role) {
  SSL_CTX_set_options(context, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  // Released buffers: thousands of links are idle nearly always.
  SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                                SSL_MODE_RELEASE_BUFFERS);
  SSL_CTX_set_read_ahead(context, 1);  // One system call for a record, not two.
  SSL_CTX_set_max_send_fragment(context, kRecordBytes);
  if (role == TlsRole::kClient) {
    SSL_CTX_set_psk_use_session_callback(context, use_session);
    // A server with a certificate instead of the key is an impostor: no authority is trusted.
    SSL_CTX_set_verify(context, SSL_VERIFY_PEER, nullptr);
  } else {
    SSL_CTX_set_psk_find_session_callback(context, find_session);
  }
  return SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) == 1 &&
         SSL_CTX_set_max_proto_version(context, TLS1_3_VERSION) == 1 &&
         // Both sides are ours: what is not offered is neither sent, parsed nor compared.
         SSL_CTX_set1_groups_list(context, "X25519") == 1 &&
         SSL_CTX_set1_sigalgs_list(context, "ed25519") == 1 &&
         SSL_CTX_set_ciphersuites(context, kSuite) == 1 && SSL_CTX_set_num_tickets(context, 0) == 1;
}

constexpr int kDrained = 0x10000;  // A flag that OpenSSL does not use: the last read was short.

// OpenSSL's own socket BIO writes with write(), which raises SIGPIPE. This one does not.
int bio_fd(BIO* bio) {
  return static_cast<int>(reinterpret_cast<std::intptr_t>(BIO_get_data(bio)));
}

int bio_write(BIO* bio, const char* bytes, int size) {
  BIO_clear_retry_flags(bio);
  const ssize_t sent = ::send(bio_fd(bio), bytes, static_cast<std::size_t>(size), MSG_NOSIGNAL);
  if (sent < 0 && (errno == EAGAIN || errno == EINTR)) BIO_set_retry_write(bio);
  return static_cast<int>(sent);
}

int bio_read(BIO* bio, char* bytes, int size) {
  BIO_clear_retry_flags(bio);
  const ssize_t got = ::recv(bio_fd(bio), bytes, static_cast<std::size_t>(size), 0);
  BIO_clear_flags(bio, kDrained);
  if (got < size) BIO_set_flags(bio, kDrained);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) BIO_set_retry_read(bio);
  if (got == 0) BIO_set_flags(bio, BIO_FLAGS_IN_EOF);
  return static_cast<int>(got);
}

long bio_control(BIO* bio, int command, long, void*) {
  if (command == BIO_CTRL_FLUSH) return 1;
  if (command == BIO_CTRL_EOF) return BIO_test_flags(bio, BIO_FLAGS_IN_EOF) != 0;
  return 0;
}

BIO_METHOD* make_bio_method() {
  BIO_METHOD* method = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "ddprun socket");
  DDPRUN_ASSERT(method);
  BIO_meth_set_write(method, bio_write);
  BIO_meth_set_read(method, bio_read);
  BIO_meth_set_ctrl(method, bio_control);
  return method;
}

}  // namespace

Result<TlsContext> make_tls_context(TlsRole role, std::string_view token) {
  DDPRUN_ASSERT(!token.empty());
  ERR_clear_error();
  TlsContext context(
      SSL_CTX_new(role == TlsRole::kClient ? TLS_client_method() : TLS_server_method()),
      SSL_CTX_free);
  if (!context || !set_up(context.get(), role)) return openssl_failure("setting up TLS");
  auto key = std::make_unique<Key>();
  if (!derive(token, *key) || SSL_CTX_set_ex_data(context.get(), key_slot(), key.get()) != 1) {
    return openssl_failure("deriving the link's key from the token");
  }
  // NOLINTNEXTLINE(bugprone-unused-return-value): free_key has it now.
  key.release();
  return context;
}

bool drained(const SSL* ssl) { return BIO_test_flags(SSL_get_rbio(ssl), kDrained) != 0; }

SslPtr make_tls_engine(const TlsContext& context, TlsRole role, int fd) {
  static const std::unique_ptr<BIO_METHOD, decltype(&BIO_meth_free)> method(make_bio_method(),
                                                                            BIO_meth_free);
  SslPtr ssl(SSL_new(context.get()));
  BIO* bio = BIO_new(method.get());
  DDPRUN_ASSERT(ssl && bio);
  // NOLINTNEXTLINE(performance-no-int-to-ptr): the one word that a BIO keeps for its maker.
  BIO_set_data(bio, reinterpret_cast<void*>(static_cast<std::intptr_t>(fd)));
  BIO_set_init(bio, 1);
  SSL_set_bio(ssl.get(), bio, bio);
  if (role == TlsRole::kClient) {
    SSL_set_connect_state(ssl.get());
  } else {
    SSL_set_accept_state(ssl.get());
  }
  return ssl;
}

}  // namespace ddprun::rendezvous
