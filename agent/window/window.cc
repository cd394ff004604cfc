#include "agent/window/window.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <boost/asio/buffer.hpp>
#include <boost/asio/read_until.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <chrono>
#include <optional>
#include <utility>

#include "common/system/descriptors.h"

namespace ddprun::agent {
namespace {

using boost::asio::local::stream_protocol;
using boost::system::error_code;

constexpr std::size_t kQuestionBytesMax = 4096;
constexpr std::size_t kVisitorsMax = 16;
constexpr auto kVisitMax = std::chrono::seconds(5);     // For a question and its answer.
constexpr auto kPause = std::chrono::milliseconds(50);  // After "too many open files".

}  // namespace

class Window::Visitor : public std::enable_shared_from_this<Visitor> {
 public:
  explicit Visitor(Socket socket) : socket_(std::move(socket)), patience_(socket_.get_executor()) {}

  void start(const Answer& answer) {
    patience_.expires_after(kVisitMax);
    patience_.async_wait([weak = weak_from_this()](const error_code& error) {
      const auto self = weak.lock();
      if (!error && self) self->leave();
    });
    boost::asio::async_read_until(
        socket_, boost::asio::dynamic_buffer(text_, kQuestionBytesMax), '\n',
        [self = shared_from_this(), answer](const error_code& error, std::size_t size) {
          if (error) return self->leave();
          self->idle_since_.reset();
          const std::string question = self->text_.substr(0, size - 1);
          answer(question, [self](std::string text) { self->reply(std::move(text)); });
        });
  }

  // Since when it has been here without a question; nothing: it has sent one.
  std::optional<std::chrono::steady_clock::time_point> idle_since() const { return idle_since_; }

  void leave() {
    error_code ignored;
    patience_.cancel();
    socket_.close(ignored);
  }

 private:
  void reply(std::string text) {
    text_ = std::move(text);
    boost::asio::async_write(
        socket_, boost::asio::buffer(text_),
        [self = shared_from_this()](const error_code&, std::size_t) { self->leave(); });
  }

  Socket socket_;
  boost::asio::steady_timer patience_;
  std::optional<std::chrono::steady_clock::time_point> idle_since_ =
      std::chrono::steady_clock::now();
  std::string text_;
};

Window::Window(boost::asio::io_context& loop, Answer answer)
    : acceptor_(loop), pause_(loop), answer_(std::move(answer)) {}

Window::~Window() {
  for (const auto& weak : visitors_) {
    if (const auto visitor = weak.lock()) visitor->leave();
  }
}

// A path may be longer than an address: the folder is named by its descriptor.
Result<std::unique_ptr<Window>> Window::open(boost::asio::io_context& loop, const std::string& path,
                                             Answer answer) {
  const std::size_t slash = path.rfind('/');
  const UniqueFd folder(::open(path.substr(0, slash).c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!folder) return errno_failure("opening the folder of " + path);
  const std::string name =
      "/proc/self/fd/" + std::to_string(folder.get()) + "/" + path.substr(slash + 1);
  std::unique_ptr<Window> window(new Window(loop, std::move(answer)));
  try {
    window->acceptor_.open(stream_protocol());
    window->acceptor_.bind(stream_protocol::endpoint(name));
    window->acceptor_.listen();
  } catch (const boost::system::system_error& error) {
    return Failure{error.code(), "opening " + path};
  }
  window->accept();
  return window;
}

void Window::accept() {
  acceptor_.async_accept(
      [this, alive = std::weak_ptr(alive_)](const error_code& error, Socket socket) {
        if (!alive.lock() || error == boost::asio::error::operation_aborted) return;
        std::erase_if(visitors_, [](const auto& visitor) { return visitor.expired(); });
        // The one that has been silent for longest gives way: idle connections keep no question
        // out.
        if (!error && visitors_.size() >= kVisitorsMax) {
          std::shared_ptr<Visitor> oldest;
          for (const auto& weak : visitors_) {
            const auto one = weak.lock();
            if (!one || !one->idle_since()) continue;
            if (!oldest || *one->idle_since() < *oldest->idle_since()) oldest = one;
          }
          if (oldest) oldest->leave(), visitors_.erase(oldest);
        }
        if (!error && visitors_.size() < kVisitorsMax) {
          const auto visitor = std::make_shared<Visitor>(std::move(socket));
          visitors_.insert(visitor);
          visitor->start(answer_);
        }
        if (!error) return accept();
        // The visitor waits still: another attempt would fail at once again.
        pause_.expires_after(kPause);
        pause_.async_wait([this, alive = std::weak_ptr(alive_)](const error_code& stopped) {
          if (!stopped && alive.lock()) accept();
        });
      });
}

}  // namespace ddprun::agent
