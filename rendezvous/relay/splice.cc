#include "rendezvous/relay/splice.h"

#include <array>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <utility>

#include "rendezvous/net/listener.h"

namespace ddprun::rendezvous {
namespace {

using boost::asio::ip::tcp;

constexpr int kTurnsMax = 16;  // Of one stream, so that none keeps the others waiting.
// A reader that has been halted for less loses nothing.
constexpr Milliseconds kUnacknowledgedMax{120'000};
constexpr Milliseconds kHalfOpenMax{30'000};

struct End {
  tcp::socket socket;
  std::unique_ptr<Channel> channel;
  std::shared_ptr<void> slot;
  bool waits_read = false, waits_write = false;
};

// From one end to the other.
struct Way {
  End* from;
  End* to;
  std::string buffer;      // Its size is what is in it.
  std::size_t sent = 0;    // Of buffer.
  bool has_ended = false;  // `from` sends no more, ...
  bool is_shut = false;    // ... and `to` has been notified.
};

class Splice : public std::enable_shared_from_this<Splice> {
 public:
  Splice(boost::asio::io_context& io, Released a, Released b,
         std::function<void(std::uint64_t)> on_bytes)
      : io_(io),
        on_bytes_(std::move(on_bytes)),
        a_(end_of(a)),
        b_(end_of(b)),
        ways_{Way{&a_, &b_, b.unsent + a.unread}, Way{&b_, &a_, a.unsent + b.unread}},
        half_open_(io) {}

  void run() {
    for (int i = 0; i < kTurnsMax; ++i) {
      bool moved = false;
      for (Way& way : ways_) moved = (!over_ && move(way)) || moved;
      if (over_) return;
      if (ways_[0].is_shut && ways_[1].is_shut) return finish();
      if (!moved) return watch_half();
    }
    boost::asio::post(io_, [self = shared_from_this()] {
      if (!self->over_) self->run();
    });
  }

 private:
  End end_of(Released& released) {
    tune_socket(released.fd.get(), kUnacknowledgedMax);
    return {tcp::socket(io_, tcp::v4(), released.fd.release()), std::move(released.channel),
            std::move(released.slot)};
  }

  // Whether anything has changed.
  bool move(Way& way) {
    bool moved = false;
    if (way.sent == way.buffer.size() && !way.has_ended) moved = fill(way);
    if (!over_ && way.sent < way.buffer.size()) moved = drain(way) || moved;
    if (over_ || way.is_shut || !way.has_ended || way.sent < way.buffer.size()) return moved;
    way.to->channel->close_sending();
    return way.is_shut = true;
  }

  bool fill(Way& way) {
    way.sent = 0;
    way.buffer.resize(kSpliceBufferBytes);
    std::size_t size = 0;
    while (size < kSpliceBufferBytes) {
      const ChannelStep step =
          way.from->channel->read(way.buffer.data() + size, kSpliceBufferBytes - size);
      if (step.status == StepStatus::kDone) {
        size += step.bytes;
        if (step.more) continue;
      } else if (step.status == StepStatus::kClosed) {
        way.has_ended = true;
      } else if (size == 0) {
        await(*way.from, step);
      }
      break;
    }
    way.buffer.resize(size);
    return size > 0 || way.has_ended;
  }

  bool drain(Way& way) {
    const std::size_t before = way.sent;
    while (way.sent < way.buffer.size()) {
      const ChannelStep step =
          way.to->channel->write(std::string_view(way.buffer).substr(way.sent));
      if (step.status != StepStatus::kDone) {
        await(*way.to, step);
        break;
      }
      way.sent += step.bytes;
    }
    if (on_bytes_ && way.sent > before) on_bytes_(way.sent - before);
    return way.sent > before;
  }

  void await(End& end, const ChannelStep& step) {
    const bool ends = step.status == StepStatus::kClosed || step.status == StepStatus::kFailed;
    if (ends) return finish();
    const bool reads = step.status == StepStatus::kWantRead;
    if (std::exchange(reads ? end.waits_read : end.waits_write, true)) return;
    end.socket.async_wait(reads ? tcp::socket::wait_read : tcp::socket::wait_write,
                          [self = shared_from_this(), &end, reads](boost::system::error_code) {
                            if (self->over_) return;
                            (reads ? end.waits_read : end.waits_write) = false;
                            self->run();
                          });
  }

  // An end that has closed its half and then dies in silence must not keep the stream.
  void watch_half() {
    if (!ways_[0].is_shut && !ways_[1].is_shut) return;
    half_open_.expires_after(kHalfOpenMax);
    half_open_.async_wait([weak = weak_from_this()](boost::system::error_code error) {
      if (const auto self = weak.lock(); self && !error && !self->over_) self->finish();
    });
  }

  void finish() {
    over_ = true;
    half_open_.cancel();
    boost::system::error_code ignored;
    for (End* end : {&a_, &b_}) {
      end->socket.close(ignored);
      end->slot.reset();
    }
  }

  boost::asio::io_context& io_;
  const std::function<void(std::uint64_t)> on_bytes_;
  End a_, b_;
  std::array<Way, 2> ways_;
  boost::asio::steady_timer half_open_;
  bool over_ = false;
};

}  // namespace

void splice(boost::asio::io_context& io, Released a, Released b,
            std::function<void(std::uint64_t)> on_bytes) {
  std::make_shared<Splice>(io, std::move(a), std::move(b), std::move(on_bytes))->run();
}

Released plain_end(UniqueFd fd) {
  const int raw = fd.get();
  // Not a client's: that takes a first byte of 0x15 for an alert of TLS.
  return {std::move(fd), make_plain_server(raw)};
}

}  // namespace ddprun::rendezvous
