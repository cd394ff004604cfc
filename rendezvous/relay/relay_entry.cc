#include "rendezvous/relay/relay_entry.h"

#include <sys/socket.h>

#include <array>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <charconv>
#include <utility>

namespace ddprun::rendezvous {
namespace {

using boost::asio::ip::tcp;

constexpr std::size_t kClientsMax = 1024;
constexpr std::size_t kPortsMax = 1024;  // Of one request.
constexpr Milliseconds kLineLimit{10'000};

Failure bad(const std::string& what) {
  return {Errc::kBadMessage, "a request for a relayed stream has no " + what};
}

// The text up to the next blank, which it takes off `rest`.
std::string_view next_word(std::string_view& rest) {
  const std::size_t end = std::min(rest.find(' '), rest.size());
  const std::string_view word = rest.substr(0, end);
  rest.remove_prefix(std::min(end + 1, rest.size()));
  return word;
}

std::optional<std::uint16_t> port_of(std::string_view text) {
  std::uint16_t port = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  const bool good = error == std::errc() && end == text.data() + text.size() && port != 0;
  return good ? std::optional(port) : std::nullopt;
}

}  // namespace

std::shared_ptr<void> OpenPorts::open(const std::string& address,
                                      const std::vector<std::uint16_t>& ports) {
  const std::uint64_t number = ++next_;
  for (const std::uint16_t port : ports) (*table_)[port] = {address, number};
  return {this, [weak = std::weak_ptr(table_), ports, number](void*) {
            const auto table = weak.lock();
            if (!table) return;
            for (const std::uint16_t port : ports) {
              const auto found = table->find(port);
              if (found != table->end() && found->second.number == number) table->erase(found);
            }
          }};
}

std::optional<std::string> OpenPorts::address_of(std::uint16_t port) const {
  const auto found = table_->find(port);
  if (found == table_->end()) return std::nullopt;
  return found->second.address;
}

Result<EntryRequest> parse_entry_request(std::string_view line, std::string_view nonce) {
  const std::string_view verb = next_word(line);
  if (verb != "open" && verb != "dial") return bad("known verb");
  if (next_word(line) != nonce || nonce.empty()) return bad("right nonce");
  const std::string_view where = next_word(line);
  if (where.empty()) return bad(verb == "open" ? "address" : "node");
  if (verb == "dial") {
    const auto port = port_of(line);
    if (!port) return bad("port");
    return EntryRequest(DialRequest{std::string(where), *port});
  }
  OpenRequest request{std::string(where), {}};
  for (;;) {
    const std::size_t end = std::min(line.find(','), line.size());
    const auto port = port_of(line.substr(0, end));
    if (!port || request.ports.size() == kPortsMax) return bad("list of ports");
    request.ports.push_back(*port);
    if (end == line.size()) return EntryRequest(std::move(request));
    line.remove_prefix(end + 1);
  }
}

// One connection until it is a stream, or, of `open`, until it closes.
class RelayEntry::Client : public std::enable_shared_from_this<Client> {
 public:
  Client(RelayEntry& entry, UniqueFd fd)
      : entry_(entry),
        socket_(entry.io_, tcp::v4(), fd.release()),
        limit_(entry.io_),
        slot_(entry.slot_) {}

  void start() {
    limit_.expires_after(kLineLimit);
    limit_.async_wait([weak = weak_from_this()](boost::system::error_code error) {
      const auto self = weak.lock();
      if (self && !error) self->close();
    });
    wait();
  }

 private:
  void wait() {
    socket_.async_wait(tcp::socket::wait_read,
                       [self = shared_from_this()](boost::system::error_code error) {
                         if (!error) self->read();
                       });
  }

  // No byte beyond the line is taken: it belongs to the stream.
  void read() {
    std::array<char, kEntryLineMax> bytes;
    const ssize_t seen =
        ::recv(socket_.native_handle(), bytes.data(), bytes.size(), MSG_PEEK | MSG_DONTWAIT);
    if (seen < 0 && (errno == EAGAIN || errno == EINTR)) return wait();
    if (seen <= 0 || open_) return close();
    const std::string_view part(bytes.data(), static_cast<std::size_t>(seen));
    const std::size_t end = part.find('\n');
    const std::size_t taken = end == part.npos ? part.size() : end + 1;
    if (line_.size() + taken > kEntryLineMax) return close();
    line_ += part.substr(0, taken);
    (void)::recv(socket_.native_handle(), bytes.data(), taken, MSG_DONTWAIT);
    if (end == part.npos) return wait();
    line_.pop_back();
    limit_.cancel();
    obey();
  }

  void obey() {
    const auto request = parse_entry_request(line_, entry_.nonce_);
    if (!request) return close();
    if (const auto* dial = std::get_if<DialRequest>(&*request)) {
      boost::system::error_code ignored;
      return entry_.dial_(*dial, UniqueFd(socket_.release(ignored)));
    }
    const auto& open = std::get<OpenRequest>(*request);
    open_ = entry_.ports_.open(open.address, open.ports);
    constexpr std::string_view kDone = "ok\n";
    (void)::send(socket_.native_handle(), kDone.data(), kDone.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    wait();
  }

  void close() {
    boost::system::error_code ignored;
    limit_.cancel();
    socket_.close(ignored);
    open_.reset();
  }

  RelayEntry& entry_;
  tcp::socket socket_;
  boost::asio::steady_timer limit_;
  std::string line_;
  std::shared_ptr<void> open_;  // Its ports.
  std::shared_ptr<int> slot_;
};

RelayEntry::RelayEntry(boost::asio::io_context& io, UniqueFd listening, std::string nonce,
                       OpenPorts& ports, Admits admits, OnDial dial)
    : io_(io),
      nonce_(std::move(nonce)),
      ports_(ports),
      admits_(std::move(admits)),
      dial_(std::move(dial)) {
  const auto take = [this](AcceptedSocket client) {
    if (slot_.use_count() > static_cast<long>(kClientsMax) || !admits_(client.fd.get())) return;
    std::make_shared<Client>(*this, std::move(client.fd))->start();
  };
  accept_loop_ =
      AcceptLoop::start(io, std::move(listening), take, /*on_short=*/[](const std::string&) {});
}

}  // namespace ddprun::rendezvous
