// TLS with the token as key, over a socket pair and without a loop: which peers are admitted, and
// each side's errors.

#include "rendezvous/net/tls_psk.h"

#include <fcntl.h>
#include <openssl/x509.h>
#include <sys/socket.h>

#include <array>
#include <catch2/catch.hpp>
#include <csignal>

#include "common/system/descriptors.h"
#include "rendezvous/net/channel.h"

namespace ddprun::rendezvous {
namespace {

struct SocketPair {
  SocketPair() {
    std::array<int, 2> fds{};
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds.data()) == 0);
    client.reset(fds[0]);
    server.reset(fds[1]);
  }
  UniqueFd client, server;
};

std::unique_ptr<Channel> client_channel(int fd, const std::string& token) {
  if (token.empty()) return make_plain_client(fd);
  return make_tls_channel(fd, make_tls_context(TlsRole::kClient, token).value(), TlsRole::kClient);
}

std::unique_ptr<Channel> server_channel(int fd, const std::string& token) {
  if (token.empty()) return make_plain_server(fd);
  return make_tls_channel(fd, make_tls_context(TlsRole::kServer, token).value(), TlsRole::kServer);
}

struct Outcome {
  ChannelStep client, server;
};

bool pending(const ChannelStep& step) {
  return step.status == StepStatus::kWantRead || step.status == StepStatus::kWantWrite;
}

// Both sides' handshakes until neither gets any further. A plain client sends something first, as
// it would.
Outcome shake_hands(Channel& client, Channel& server) {
  Outcome outcome{client.handshake(), {StepStatus::kWantRead}};
  for (int i = 0; i < 20 && (pending(outcome.client) || pending(outcome.server)); ++i) {
    if (pending(outcome.server)) outcome.server = server.handshake();
    if (pending(outcome.client)) outcome.client = client.handshake();
  }
  return outcome;
}

bool refused(const ChannelStep& step, Errc code) {
  return step.status == StepStatus::kFailed && step.failure.code == code;
}

struct Pair {
  Pair(const std::string& client_token, const std::string& server_token)
      : client(client_channel(sockets.client.get(), client_token)),
        server(server_channel(sockets.server.get(), server_token)) {
    if (client_token.empty()) REQUIRE(client->write(std::string("\0\0\0\2hi", 6)).bytes > 0);
    outcome = shake_hands(*client, *server);
  }

  SocketPair sockets;
  std::unique_ptr<Channel> client, server;
  Outcome outcome;
};

std::string read_from(Channel& channel) {
  std::array<char, 100> bytes;
  const ChannelStep step = channel.read(bytes.data(), bytes.size());
  return step.status == StepStatus::kDone ? std::string(bytes.data(), step.bytes) : "nothing";
}

TEST_CASE("TLS: the same token on both sides lets bytes pass both ways", "[tls]") {
  for (const std::string& token :
       {std::string("x"), std::string(64, 'f'), std::string(5000, 't')}) {
    Pair pair(token, token);
    CAPTURE(pair.outcome.client.failure.context, pair.outcome.server.failure.context);
    REQUIRE(pair.outcome.client.status == StepStatus::kDone);
    REQUIRE(pair.outcome.server.status == StepStatus::kDone);
    CHECK(pair.client->write("from client").status == StepStatus::kDone);
    CHECK(read_from(*pair.server) == "from client");
    CHECK(pair.server->write("from server").status == StepStatus::kDone);
    CHECK(read_from(*pair.client) == "from server");
  }
}

TEST_CASE("TLS: nothing can be read on the wire", "[tls]") {
  Pair pair("token", "token");
  CHECK(pair.client->write("secret words").status == StepStatus::kDone);
  std::array<char, 200> wire;
  const ssize_t size = ::recv(pair.sockets.server.get(), wire.data(), wire.size(), MSG_PEEK);
  REQUIRE(size > 12);
  CHECK(std::string_view(wire.data(), static_cast<std::size_t>(size)).find("secret") ==
        std::string_view::npos);
  CHECK(read_from(*pair.server) == "secret words");
}

TEST_CASE("TLS: another token is refused, and both sides know why", "[tls]") {
  for (const char* other : {"tokeN", "token2", "t"}) {
    Pair pair(other, "token");
    CHECK(refused(pair.outcome.server, Errc::kBadToken));
    CHECK(pair.outcome.server.failure.context == "it has another token");
    CHECK(refused(pair.outcome.client, Errc::kBadToken));
    CHECK(pair.outcome.client.failure.context == "it does not accept our token");
  }
}

TEST_CASE("TLS: a client without a token learns that one is asked for", "[tls]") {
  Pair pair("", "token");
  CHECK(refused(pair.outcome.server, Errc::kBadToken));
  std::array<char, 100> bytes;
  const ChannelStep step = pair.client->read(bytes.data(), bytes.size());
  CHECK(refused(step, Errc::kBadToken));
  CHECK(step.failure.context == "it requires a token, but none was given");
}

TEST_CASE("TLS: a client with a token learns that the server has none", "[tls]") {
  Pair pair("token", "");
  CHECK(refused(pair.outcome.server, Errc::kBadToken));
  CHECK(pair.outcome.server.failure.context == "it uses a token, but this run has none");
  CHECK(refused(pair.outcome.client, Errc::kBadToken));
}

TEST_CASE("TLS: who is no TLS server at all is not taken for a wrong token", "[tls]") {
  for (const char* greeting : {"HTTP/1.1 400 Bad Request\r\n\r\n", "SSH-2.0-OpenSSH_9.2\r\n"}) {
    SocketPair sockets;
    const auto client = client_channel(sockets.client.get(), "token");
    CHECK(client->handshake().status == StepStatus::kWantRead);
    REQUIRE(::send(sockets.server.get(), greeting, std::strlen(greeting), 0) > 0);
    CHECK(refused(client->handshake(), Errc::kBadMessage));
  }
}

TEST_CASE("TLS: hanging up during the handshake is told from a refusal", "[tls]") {
  SocketPair sockets;
  const auto client = client_channel(sockets.client.get(), "token");
  CHECK(client->handshake().status == StepStatus::kWantRead);
  ::shutdown(sockets.server.get(), SHUT_WR);
  CHECK(client->handshake().status == StepStatus::kClosed);
}

// A TLS client of the right version that offers no key, or one with another identity, or older TLS.
TEST_CASE("TLS: a client without our key does not get in by leaving it out", "[tls]") {
  const auto attempt = [](auto set_up) {
    SocketPair sockets;
    const auto server = server_channel(sockets.server.get(), "token");
    const TlsContext context(SSL_CTX_new(TLS_client_method()), SSL_CTX_free);
    set_up(context.get());
    const SslPtr ssl = make_tls_engine(context, TlsRole::kClient, sockets.client.get());
    ChannelStep step{StepStatus::kWantRead};
    for (int i = 0; i < 20 && pending(step); ++i) {
      SSL_do_handshake(ssl.get());
      step = server->handshake();
    }
    CHECK_FALSE(SSL_is_init_finished(ssl.get()));
    return step;
  };
  CHECK(attempt([](SSL_CTX*) {}).status == StepStatus::kFailed);
  CHECK(attempt([](SSL_CTX* context) {
          SSL_CTX_set_max_proto_version(context, TLS1_2_VERSION);
        }).status == StepStatus::kFailed);
  CHECK(attempt([](SSL_CTX* context) {
          SSL_CTX_set_psk_client_callback(context, [](SSL*, const char*, char* identity, unsigned,
                                                      unsigned char* key, unsigned) {
            std::strcpy(identity, "somebody");
            std::memset(key, 7, 32);
            return 32u;
          });
        }).status == StepStatus::kFailed);
}

// A certificate without a particular owner, signed with its own key, in the one kind of signature
// that a client of ours understands.
void show_certificate(SSL_CTX* context) {
  const std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)> key(
      EVP_PKEY_Q_keygen(nullptr, nullptr, "ED25519"), EVP_PKEY_free);
  const std::unique_ptr<X509, decltype(&X509_free)> certificate(X509_new(), X509_free);
  ASN1_INTEGER_set(X509_get_serialNumber(certificate.get()), 1);
  X509_gmtime_adj(X509_getm_notBefore(certificate.get()), 0);
  X509_gmtime_adj(X509_getm_notAfter(certificate.get()), 3600);
  X509_set_pubkey(certificate.get(), key.get());
  REQUIRE(X509_sign(certificate.get(), key.get(), nullptr) > 0);
  REQUIRE(SSL_CTX_use_certificate(context, certificate.get()) == 1);
  REQUIRE(SSL_CTX_use_PrivateKey(context, key.get()) == 1);
}

TEST_CASE("TLS: a server that shows a certificate instead of the key is an impostor", "[tls]") {
  SocketPair sockets;
  const auto client = client_channel(sockets.client.get(), "token");
  const TlsContext context(SSL_CTX_new(TLS_server_method()), SSL_CTX_free);
  show_certificate(context.get());
  const SslPtr ssl = make_tls_engine(context, TlsRole::kServer, sockets.server.get());
  ChannelStep step{StepStatus::kWantRead};
  for (int i = 0; i < 20 && pending(step); ++i) {
    step = client->handshake();
    SSL_do_handshake(ssl.get());
  }
  CHECK(step.status == StepStatus::kFailed);
}

// Recorded bytes, such as an attacker has, are of no use to play back to a new connection.
TEST_CASE("TLS: a recorded handshake does not open a second connection", "[tls]") {
  SocketPair first;
  const auto client = client_channel(first.client.get(), "token");
  CHECK(client->handshake().status == StepStatus::kWantRead);
  std::array<char, 4096> hello;
  const ssize_t size = ::recv(first.server.get(), hello.data(), hello.size(), 0);
  REQUIRE(size > 0);

  SocketPair second;
  const auto server = server_channel(second.server.get(), "token");
  REQUIRE(::send(second.client.get(), hello.data(), static_cast<std::size_t>(size), 0) == size);
  const ChannelStep answered = server->handshake();
  CAPTURE(answered.failure.context);
  CHECK(answered.status == StepStatus::kWantRead);
  REQUIRE(::send(second.client.get(), hello.data(), static_cast<std::size_t>(size), 0) == size);
  CHECK(server->handshake().status == StepStatus::kFailed);
}

TEST_CASE("TLS: a changed byte ends the connection", "[tls]") {
  Pair pair("token", "token");
  CHECK(pair.client->write("transfer 100").status == StepStatus::kDone);
  std::array<char, 200> wire;
  const ssize_t size = ::recv(pair.sockets.server.get(), wire.data(), wire.size(), 0);
  REQUIRE(size > 10);
  wire[10] ^= 1;
  REQUIRE(::send(pair.sockets.client.get(), wire.data(), static_cast<std::size_t>(size), 0) ==
          size);
  std::array<char, 100> bytes;
  CHECK(pair.server->read(bytes.data(), bytes.size()).status == StepStatus::kFailed);
}

TEST_CASE("TLS: writing to a peer that is gone fails without a signal", "[tls]") {
  REQUIRE(std::signal(SIGPIPE, SIG_DFL) != SIG_ERR);
  Pair pair("token", "token");
  pair.sockets.server.reset();
  CHECK(pair.client->write("x").status == StepStatus::kFailed);
}

}  // namespace
}  // namespace ddprun::rendezvous
