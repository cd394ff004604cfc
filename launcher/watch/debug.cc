#include "launcher/watch/debug.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/beast/core/basic_stream.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <cctype>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "common/system/descriptors.h"
#include "common/system/standard_output.h"
#include "common/text/display.h"
#include "launcher/watch/logs.h"
#include "launcher/watch/stacks.h"
#include "launcher/watch/top_screen.h"
#include "launcher/watch/window_client.h"

namespace ddprun::launcher {
namespace {

namespace http = boost::beast::http;
using boost::asio::local::stream_protocol;
using boost::system::error_code;
using nlohmann::json;
using Response = http::response<http::string_body>;

constexpr std::uint64_t kBodyMax = std::uint64_t{1} << 30;  // A profile may be large.
constexpr std::size_t kQuoteMax = 300;

struct Handlers {
  std::string socket;
  std::vector<std::string> names;
};

// torch serves from then on, until the worker ends.
Result<Handlers> handlers_of(const std::string& worker, const std::string& door) {
  if (door.empty()) {
    return Failure{Errc::kNotFound,
                   worker +
                       " cannot be queried: PyTorch's debug handlers are available in runs with "
                       "--on-stall log or --on-stall kill"};
  }
  const auto answer = query_window(door, "debug");
  if (!answer && answer.error().code == Errc::kPeerSilent) {
    return Failure{Errc::kPeerSilent,
                   worker +
                       " does not answer: it is stopped, or a call of it holds Python's lock; "
                       "ddprunctl stacks shows where it is"};
  }
  if (!answer) {
    return Failure{Errc::kNotFound, worker + " does not listen: it has not imported torch (yet)"};
  }
  const auto is_kept = [](int depth, json::parse_event_t, json&) { return depth <= 4; };
  const json reply = json::parse(*answer, is_kept, /*allow_exceptions=*/false);
  const auto text = [&](const char* name) {
    const auto it = reply.is_object() ? reply.find(name) : reply.end();
    return it != reply.end() && it->is_string() ? it->get<std::string>() : std::string();
  };
  Handlers handlers{text("socket"), {}};
  if (handlers.socket.empty()) {
    const std::string why = text("error");
    return Failure{Errc::kNotFound,
                   worker + ": " + (why.empty() ? "its answer cannot be read" : cell_text(why))};
  }
  for (const json& name : reply.value("handlers", json::array())) {
    if (name.is_string()) handlers.names.push_back(name.get<std::string>());
  }
  return handlers;
}

// One request at a socket, within `limit`. The folder is opened by descriptor, as its path may be
// longer than an address.
class Exchange {
 public:
  Exchange(const std::string& target, Milliseconds limit) : stream_(loop_) {
    request_.method(http::verb::post);
    request_.target(target);
    request_.version(11);
    request_.set(http::field::host, "worker");
    request_.set(http::field::connection, "close");
    request_.prepare_payload();
    parser_.body_limit(kBodyMax);
    stream_.expires_after(limit);
  }

  Result<Response> with(const std::string& path) {
    const std::size_t slash = std::min(path.rfind('/'), path.size());
    const UniqueFd folder(::open(path.substr(0, slash).c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    if (!folder) return errno_failure("opening the folder of " + path);
    const std::string name = path.substr(std::min(slash + 1, path.size()));
    stream_.async_connect(
        stream_protocol::endpoint("/proc/self/fd/" + std::to_string(folder.get()) + "/" + name),
        [this](const error_code& ec) { connected(ec); });
    loop_.run();
    if (ended_ == boost::beast::error::timeout) {
      return Failure{Errc::kPeerSilent, "no answer in time; --timeout SECONDS gives it more"};
    }
    if (ended_) return Failure{Errc::kBadMessage, ended_.message()};
    return parser_.release();
  }

 private:
  void connected(const error_code& ec) {
    if ((ended_ = ec)) return;
    http::async_write(stream_, request_, [this](const error_code& error, std::size_t) {
      if ((ended_ = error)) return;
      http::async_read(stream_, buffer_, parser_,
                       [this](const error_code& last, std::size_t) { ended_ = last; });
    });
  }

  boost::asio::io_context loop_;
  boost::beast::basic_stream<stream_protocol, boost::asio::any_io_executor> stream_;
  http::request<http::empty_body> request_;
  http::response_parser<http::string_body> parser_;
  boost::beast::flat_buffer buffer_;
  error_code ended_;
};

void print(const std::string& body) {
  const bool terminal = ::isatty(STDOUT_FILENO) == 1;
  const std::string text = terminal ? without_escapes(body) : body;
  write_output(text);
  if (terminal && !text.ends_with('\n')) write_output("\n");
}

Result<void> query_handler(const std::string& worker, const Handlers& handlers,
                           const DebugQuestion& question) {
  Exchange exchange("/handler/" + question.handler, question.limit);
  const auto response = exchange.with(handlers.socket);
  const std::string prefix = worker + ", asked for " + question.handler + ": ";
  if (!response) return Failure{response.error().code, prefix + response.error().context};
  if (response->result() == http::status::ok) {
    print(response->body());
    return {};
  }
  return Failure{Errc::kNotFound, prefix + "status " + std::to_string(response->result_int()) +
                                      ": " + cell_text(response->body().substr(0, kQuoteMax)) +
                                      "; without a handler ddprunctl debug names all"};
}

}  // namespace

bool is_handler(const std::string& handler) {
  constexpr std::string_view kMarks = "_-.~%?&=,+/:";
  return !handler.starts_with('?') && std::ranges::all_of(handler, [&](unsigned char c) {
    return std::isalnum(c) || kMarks.find(static_cast<char>(c)) != kMarks.npos;
  });
}

Result<void> print_debug(const DebugQuestion& question) {
  const auto run = named_run(question.run);
  if (!run) return run.error();
  const auto pid = pid_of(*run, question.rank);
  if (!pid) return pid.error();
  const std::string worker = "rank " + std::to_string(question.rank) + " (pid " +
                             std::to_string(*pid) + ") of run '" + cell_text(run->record.run_id) +
                             "'";
  const std::string door = started_with("/proc/" + std::to_string(*pid), "DDPRUN_WATCH_SOCKET");
  const auto handlers = handlers_of(worker, door);
  if (!handlers) return handlers.error();
  if (!question.handler.empty()) return query_handler(worker, *handlers, question);
  for (const std::string& name : handlers->names) write_output(cell_text(name) + "\n");
  return {};
}

using nlohmann::json;

Result<std::string> request_capture(const std::string& run_word) {
  const auto run = named_run(run_word);
  if (!run) return run.error();
  const std::string name = "run '" + cell_text(run->record.run_id) + "'";
  if (run->state != RunState::kRunning) {
    return Failure{Errc::kNotFound, name + " is over: only a run in progress has a next step"};
  }
  std::string why;
  std::vector<AgentAnswer> answers;
  for (const std::string& window : windows_of(*run)) {
    answers.push_back(query_windows({window}, R"({"ask":"capture"})").front());
    const auto& answer = answers.back().text;
    if (!answer) continue;  // Its agent does not answer, or has left the run, as a drained one has.
    const json reply = json::parse(*answer, nullptr, /*allow_exceptions=*/false);
    if (!reply.is_object()) continue;
    if (const auto rank = reply.find("rank"); rank != reply.end() && rank->is_number_integer()) {
      return "rank " + std::to_string(rank->get<int>()) + " of " + name +
             " writes a bundle when it begins its next step, and prints its path\n";
    }
    const auto error = reply.find("error");
    if (error != reply.end() && error->is_string()) why = cell_text(error->get<std::string>());
  }
  if (why.empty()) why = mute_text(*run, answers);
  if (why.empty()) why = "none of its agents is on this machine";
  return Failure{Errc::kNotFound, name + " cannot be captured: " + why};
}

}  // namespace ddprun::launcher
