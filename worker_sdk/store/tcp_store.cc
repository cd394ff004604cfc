#include "worker_sdk/store/tcp_store.h"

#include <fcntl.h>

#include <bit>
#include <cstring>
#include <mutex>

#include "common/store/store_wire.h"
#include "worker_sdk/base/socket_io.h"

namespace ddprun {
namespace worker_sdk {
namespace {

using std::chrono::milliseconds;
using store::encode;
using store::StoreOp;
using store::StoreRequest;

// The longest value that a server may send: more than ours stores, since PyTorch's may hold larger
// ones.
constexpr std::size_t kReplyBytesMax = 64 << 20;

std::string list(const std::vector<std::string>& keys) {
  constexpr std::size_t kShown = 5;
  std::string text;
  for (std::size_t i = 0; i < keys.size() && i < kShown; ++i) {
    text += (i ? ", \"" : "\"") + keys[i] + "\"";
  }
  return keys.size() > kShown ? text + ", ..." : text;
}

class TcpStore : public Store {
 public:
  explicit TcpStore(const TcpStoreOptions& options)
      : name_("the store at " + options.host + ":" + std::to_string(options.port)),
        reply_timeout_(options.reply_timeout) {
    const auto start = Clock::now();
    try {
      socket_ =
          connect_to(options.host, options.port, deadline_after(start, options.connect_timeout),
                     [&] { return options.fence && options.fence->is_raised(); });
    } catch (const Error& error) {
      throw_error(error.kind(), "connecting to the store", error.text(), start);
    }
    if (options.fence) heed(*options.fence);
    greet(std::min(options.connect_timeout, options.reply_timeout));
  }

  void set(std::string_view key, std::string_view value) override {
    const std::lock_guard lock(mutex_);
    send({.op = StoreOp::kSet, .keys = {path(key)}, .values = {std::string(value)}}, "set");
  }

  std::string get(std::string_view key, milliseconds timeout) override {
    const std::lock_guard lock(mutex_);
    wait_locked({std::string(key)}, timeout, "get");
    send({.op = StoreOp::kGet, .keys = {path(key)}}, "get");
    return receive_string("get");
  }

  std::int64_t add(std::string_view key, std::int64_t delta) override {
    const std::lock_guard lock(mutex_);
    send({.op = StoreOp::kAdd, .keys = {path(key)}, .number = delta}, "add");
    try {
      return receive<std::int64_t>("add", reply_deadline());
    } catch (const Error& error) {  // The protocol has no answer if it cannot be added.
      if (error.kind() != ErrorKind::unreachable) throw;
      throw Error(error.kind(), error.where(),
                  error.text() + ", as it also does if \"" + std::string(key) +
                      "\" is not a counter, or beyond 64 bits with " + std::to_string(delta) +
                      " added");
    }
  }

  bool check(const std::vector<std::string>& keys) override {
    const std::lock_guard lock(mutex_);
    send({.op = StoreOp::kCheck, .keys = paths(keys)}, "check");
    return receive<std::uint8_t>("check", reply_deadline()) == store::kAllThere;
  }

  void wait(const std::vector<std::string>& keys, milliseconds timeout) override {
    const std::lock_guard lock(mutex_);
    wait_locked(keys, timeout, "wait");
  }

  bool erase(std::string_view key) override {
    const std::lock_guard lock(mutex_);
    send({.op = StoreOp::kDelete, .keys = {path(key)}}, "erase");
    return receive<std::int64_t>("erase", reply_deadline()) != 0;
  }

 private:
  // The socket has another descriptor for that, since the first may be closed at any time.
  void heed(RoundFence& fence) {
    alias_ = UniqueFd(::fcntl(socket_.get(), F_DUPFD_CLOEXEC, 0));
    if (!alias_) return;  // Time-outs remain.
    heeds_ = fence.listen([this] { ::shutdown(alias_.get(), SHUT_RDWR); });
  }

  // A store answers at once whether it has a key. Another server, or one with the protocol before
  // PyTorch 2.2, does not.
  void greet(milliseconds timeout) {
    const std::string request = encode({.op = StoreOp::kValidate}) +
                                encode({.op = StoreOp::kCheck, .keys = {path("init")}});
    const auto start = Clock::now();
    const auto deadline = deadline_after(start, timeout);
    char answer = 0;
    IoResult result = write_all(socket_.get(), request, deadline);
    if (result == IoResult::kDone) result = read_exactly(socket_.get(), &answer, 1, deadline);
    std::string why = " does not speak the TCPStore protocol of PyTorch 2.2 or later";
    if (result == IoResult::kDone && (answer == 0 || answer == 1)) return;
    if (result == IoResult::kClosed) {
      why =
          " closed the connection before its first answer; it speaks another protocol, does not "
          "admit this host or user, or its process has no descriptor left (ulimit -n there)";
    } else if (result == IoResult::kTimedOut) {
      why =
          " accepts connections but does not answer; it is stopped, or speaks another protocol "
          "than the TCPStore of PyTorch 2.2 or later";
    }
    throw_error(ErrorKind::unreachable, "connecting to the store", name_ + why, start);
  }

  // Like PyTorch, so that its clients find our keys.
  static std::string path(std::string_view key) { return "/" + std::string(key); }
  static std::vector<std::string> paths(const std::vector<std::string>& keys) {
    std::vector<std::string> list;
    for (const std::string& key : keys) list.push_back(path(key));
    return list;
  }

  void wait_locked(const std::vector<std::string>& keys, milliseconds timeout,
                   const char* operation) {
    const auto start = Clock::now();
    send({.op = StoreOp::kWait, .keys = paths(keys)}, operation);
    char answer = 0;
    const IoResult result = read_exactly(socket_.get(), &answer, 1, deadline_after(start, timeout));
    if (result == IoResult::kClosed) lost(operation);
    if (result == IoResult::kDone && answer == store::kStopWaiting) return;
    if (result == IoResult::kDone) lost(operation, "answered out of turn");
    if (!cancel_wait(operation)) return;
    throw_error(ErrorKind::timed_out, operation, "waiting for " + list(keys) + " in " + name_,
                start);
  }

  // True: cancelled. False: the keys were set in the last moment.
  bool cancel_wait(const char* operation) {
    send({.op = StoreOp::kCancelWait}, operation);
    const auto deadline = reply_deadline();
    const bool came = receive<char>(operation, deadline) == store::kStopWaiting;
    if (came) receive<char>(operation, deadline);  // The answer to the cancellation follows.
    return !came;
  }

  Clock::time_point reply_deadline() const { return deadline_after(reply_timeout_); }

  void send(const StoreRequest& request, const char* operation) {
    if (!socket_) lost(operation);
    const std::string bytes = encode(request);
    if (write_all(socket_.get(), bytes, reply_deadline()) != IoResult::kDone) lost(operation);
  }

  template <class Integer>
  Integer receive(const char* operation, Clock::time_point deadline) {
    char bytes[sizeof(Integer)];
    read(bytes, sizeof(bytes), operation, deadline);
    Integer value;
    static_assert(std::endian::native == std::endian::little);  // Like on the wire.
    std::memcpy(&value, bytes, sizeof(value));
    return value;
  }

  std::string receive_string(const char* operation) {
    const auto deadline = reply_deadline();
    const auto size = receive<std::uint64_t>(operation, deadline);
    if (size > kReplyBytesMax) lost(operation, "sent a value above 64 MiB");
    std::string value(size, '\0');
    read(value.data(), value.size(), operation, deadline);
    return value;
  }

  void read(char* bytes, std::size_t size, const char* operation, Clock::time_point deadline) {
    const auto start = Clock::now();
    switch (read_exactly(socket_.get(), bytes, size, deadline)) {
      case IoResult::kDone: return;
      case IoResult::kClosed: lost(operation);
      case IoResult::kTimedOut: break;
    }
    socket_.reset();  // A late answer would be taken for that of the next request.
    throw_error(ErrorKind::timed_out, operation, name_ + " does not answer", start);
  }

  [[noreturn]] void lost(const char* operation, const std::string& why = "closed the connection") {
    socket_.reset();
    throw_error(ErrorKind::unreachable, operation, name_ + " " + why, Clock::now());
  }

  [[noreturn]] static void throw_error(ErrorKind kind, const char* operation,
                                       const std::string& text, Clock::time_point start) {
    throw Error(kind,
                {.operation = std::string(operation),
                 .waited = std::chrono::duration_cast<milliseconds>(Clock::now() - start)},
                text);
  }

  const std::string name_;
  const milliseconds reply_timeout_;
  std::mutex mutex_;
  UniqueFd socket_;
  UniqueFd alias_;               // Duplicate of socket_.
  std::shared_ptr<void> heeds_;  // Last: listens until here.
};

}  // namespace

std::unique_ptr<Store> connect_tcp_store(const TcpStoreOptions& options) {
  return std::make_unique<TcpStore>(options);
}

}  // namespace worker_sdk

std::unique_ptr<Store> connect_tcp_store(const std::string& host, std::uint16_t port,
                                         std::chrono::milliseconds timeout) {
  worker_sdk::TcpStoreOptions options;
  options.host = host;
  options.port = port;
  options.connect_timeout = timeout;
  return worker_sdk::connect_tcp_store(options);
}

}  // namespace ddprun
