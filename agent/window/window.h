#pragma once
// A socket in the run's temporary folder, which only its user can open: for queries by ddprunctl on
// this machine to a running agent, without a token. One question a connection, a line; its answer
// ends with the connection. Owned by Agent, which answers.

#include <boost/asio/io_context.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "common/error.h"

namespace ddprun::agent {

// An object as one line of plain ASCII. Used for output of workers that an agent shows.

// Workers write any bytes; JSON text may not.
inline std::string json_line(const nlohmann::json& object) {
  return object.dump(-1, ' ', /*ensure_ascii=*/true, nlohmann::json::error_handler_t::replace);
}

class Window {
 public:
  using Reply = std::function<void(std::string)>;
  // May call its reply later, once, or drop it.
  using Answer = std::function<void(const std::string& question, Reply reply)>;

  static Result<std::unique_ptr<Window>> open(boost::asio::io_context& loop,
                                              const std::string& path, Answer answer);
  Window(const Window&) = delete;
  Window& operator=(const Window&) = delete;
  ~Window();

 private:
  class Visitor;
  using Socket = boost::asio::local::stream_protocol::socket;

  Window(boost::asio::io_context& loop, Answer answer);
  void accept();

  boost::asio::local::stream_protocol::acceptor acceptor_;
  boost::asio::steady_timer pause_;
  Answer answer_;
  std::set<std::weak_ptr<Visitor>, std::owner_less<>> visitors_;
  std::shared_ptr<const bool> alive_ = std::make_shared<const bool>(true);
};

}  // namespace ddprun::agent
