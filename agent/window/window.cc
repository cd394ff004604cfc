#include "agent/window/window.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/read_until.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <chrono>
#include <cstdint>
#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "common/assert.h"
#include "common/system/descriptors.h"
#include "common/system/log.h"
#include "rendezvous/run/verdict.h"

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

namespace {

using nlohmann::json;

constexpr std::size_t kTailsBytesMax = std::size_t{512} << 10;  // Of all streams of this node.

// Whole lines, of which the oldest goes first; of one that is longer, its end.
std::string last_of(std::string text, std::size_t bytes_max) {
  if (text.size() <= bytes_max) return text;
  text.erase(0, text.size() - bytes_max);
  const std::size_t newline = text.find('\n');
  const bool has_more = newline != std::string::npos && newline + 1 < text.size();
  return has_more ? text.substr(newline + 1) : text;
}

json tails_of(const Output& output, const std::map<int, int>& ranks) {
  json tails = json::array();
  const std::size_t streams = 2 * std::max<std::size_t>(ranks.size(), 1);
  for (const auto& [local_rank, rank] : ranks) {
    for (const bool is_stderr : {false, true}) {
      const TailRing* ring = output.tail(local_rank, is_stderr);
      if (!ring || ring->end() == 0) continue;
      tails.push_back({{"rank", rank},
                       {"stream", is_stderr ? "stderr" : "stdout"},
                       {"text", last_of(ring->text(), kTailsBytesMax / streams)},
                       {"end", ring->end()}});
    }
  }
  return tails;
}

}  // namespace

// The names are those of common/history/run_record.h.
void write_ending(const std::string& path, const Output& output, const std::map<int, int>& ranks,
                  const std::optional<RunEnding>& of_run) {
  json ending = {{"tails", tails_of(output, ranks)}};
  if (of_run) {
    const auto& seat = of_run->seat;
    ending["verdict"] = json::parse(
        verdict_json(of_run->verdict, of_run->run_id, std::time(nullptr)), nullptr, false);
    ending["world_size"] = seat ? seat->world_size : 0;
    ending["nodes"] = seat ? seat->group_world_size : 0;
    ending["restarts"] = seat ? seat->restart_count : 0;
  }
  std::ofstream file(path, std::ios::trunc);
  file << json_line(ending) << '\n' << (of_run ? of_run->account : "") << std::flush;
}

namespace {

using nlohmann::json;

// What has come since the `after`th byte, as far as it is still here.
json since(const TailRing* ring, std::uint64_t after) {
  if (!ring) return nullptr;
  std::string text = ring->text();
  const std::uint64_t begin = ring->end() - text.size();
  if (after > begin) text.erase(0, std::min<std::uint64_t>(after - begin, text.size()));
  return {{"text", text}, {"end", ring->end()}, {"missed", after < begin ? begin - after : 0}};
}

// -1: there is none.
std::int64_t number(const json& object, const std::string& name) {
  const auto it = object.find(name);
  return it != object.end() && it->is_number_integer() ? it->get<std::int64_t>() : -1;
}

}  // namespace

NodeWindow::NodeWindow(boost::asio::io_context& loop, const Output& output)
    : loop_(loop), output_(output) {}

void NodeWindow::open(const std::string& path) {
  DDPRUN_ASSERT(workers && refresh && capture && runs && !window_);
  auto window = Window::open(loop_, path, [this](const std::string& question, Window::Reply reply) {
    answer(question, std::move(reply));
  });
  if (!window)
    return log::debug("no local socket for ddprunctl top, logs and stacks: " +
                      to_string(window.error()));
  window_ = std::move(*window);
}

// Answers "watch", "workers", "capture" or "tails". Repeat "tails" to get newer output.
void NodeWindow::answer(const std::string& question, Window::Reply reply) {
  const json question_json = json::parse(question, nullptr, /*allow_exceptions=*/false);
  const std::string subject =
      question_json.is_object() ? question_json.value("ask", json()).dump() : "";
  if (subject == "\"workers\"") return reply(workers_text());
  if (subject == "\"capture\"") {
    const Result<int> rank = capture();
    return reply(rank ? json_line({{"rank", *rank}})
                      : json_line({{"error", rank.error().context}}));
  }
  if (subject == "\"tails\"") return reply(tails_text(question_json));
  if (subject != "\"watch\"") return reply(json_line({{"error", "there is no such question"}}));
  refresh();
  // Behind what has just been sent.
  boost::asio::post(loop_, [this, reply = std::move(reply)] { reply(encode(runs())); });
}

std::string NodeWindow::workers_text() const {
  const Workers all = workers();
  json list = json::array();
  for (const auto& [local_rank, pid] : all.pids) {
    const auto rank = all.ranks.find(local_rank);
    list.push_back({{"rank", rank == all.ranks.end() ? -1 : rank->second},
                    {"local_rank", local_rank},
                    {"pid", pid}});
  }
  return json_line({{"run_id", all.run_id},
                    {"host", all.host},
                    {"world_size", all.world_size},
                    {"workers", std::move(list)}});
}

std::string NodeWindow::tails_text(const json& question_json) const {
  const Workers all = workers();
  const json after = question_json.value("after", json::object());
  json tails = json::array();
  for (const auto& [local_rank, rank] : all.ranks) {
    if (number(question_json, "rank") >= 0 && number(question_json, "rank") != rank) continue;
    for (const bool is_stderr : {false, true}) {
      const std::string stream = is_stderr ? "stderr" : "stdout";
      const std::int64_t from =
          after.is_object() ? number(after, std::to_string(local_rank) + stream) : -1;
      json tail = since(output_.tail(local_rank, is_stderr),
                        static_cast<std::uint64_t>(std::max<std::int64_t>(from, 0)));
      if (tail.is_null()) continue;
      if (from < 0) tail["missed"] = 0;  // Not requested.
      tail.update({{"rank", rank}, {"local_rank", local_rank}, {"stream", stream}});
      tails.push_back(std::move(tail));
    }
  }
  return json_line({{"run_id", all.run_id},
                    {"host", all.host},
                    {"world_size", all.world_size},
                    {"tails", std::move(tails)}});
}

}  // namespace ddprun::agent
