#include "launcher/ctl/ctl_ask.h"

#include <boost/asio/error.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <optional>

#include "rendezvous/net/connect.h"

namespace ddprun::launcher {
namespace {

using rendezvous::Link;

constexpr Milliseconds kConnectLimit{5'000};
constexpr Milliseconds kAnswerLimit{10'000};
constexpr std::size_t kAnswerBytesMax = std::size_t{256} << 20;

class Question {
 public:
  Question(Endpoint endpoint, std::string token, const rendezvous::Command& command)
      : endpoint_(std::move(endpoint)), body_(encode(command)), timer_(io_) {
    rendezvous::ConnectOptions to;
    to.host = endpoint_.host;
    to.port = endpoint_.port.value_or(0);
    to.token = std::move(token);
    to.timeout = kConnectLimit;
    attempt_ = async_connect(io_, std::move(to), [this](Result<std::shared_ptr<Link>> link) {
      if (link) return say(std::move(*link));
      finish(explained(link.error()));
    });
  }

  Result<std::string> answer() {
    io_.run();
    return *result_;
  }

 private:
  void say(std::shared_ptr<Link> link) {
    link_ = std::move(link);
    link_->start({.on_message = [this](const std::string& body) { hear(body); },
                  .on_closed = [this](const Failure& why) { finish(explained(why)); }});
    link_->send(body_);
    timer_.expires_after(kAnswerLimit);
    timer_.async_wait([this](const boost::system::error_code& error) {
      if (error) return;
      finish(Failure{Errc::kPeerSilent, "the daemon at " + where() + " does not answer"});
    });
  }

  void hear(const std::string& body) {
    const auto report = rendezvous::decode_answer(body);
    if (!report) {
      return finish(Failure{
          Errc::kBadMessage,
          "the daemon at " + where() +
              " sent an answer that this ddprunctl cannot read: " + report.error().context});
    }
    if (!report->error.empty()) return finish(Failure{Errc::kNotFound, report->error});
    text_ += report->text;
    if (text_.size() > kAnswerBytesMax) {
      return finish(Failure{Errc::kFrameTooLarge, "the daemon's answer is incomplete"});
    }
    if (!report->more) finish(text_);
  }

  // In words for somebody who typed an endpoint and has a token.
  Failure explained(const Failure& why) const {
    if (why.code == boost::asio::error::connection_refused) {
      return {why.code, "nothing listens at " + where() + "; is ddprun-rendezvous running there?"};
    }
    if (why.code == boost::asio::error::eof && link_) {
      return {why.code, "the daemon at " + where() +
                            " closed the connection without an answer; is it an older version?"};
    }
    const bool says_all = why.code == Errc::kBadToken || why.code == Errc::kNotFound ||
                          why.code == Errc::kPeerSilent ||
                          why.code == boost::asio::error::timed_out;
    return {why.code, says_all ? why.context : to_string(why)};
  }

  void finish(Result<std::string> result) {
    if (result_) return;
    result_ = std::move(result);
    io_.stop();
  }

  std::string where() const { return to_string(endpoint_); }

  const Endpoint endpoint_;
  const std::string body_;
  boost::asio::io_context io_{1};
  boost::asio::steady_timer timer_;
  std::shared_ptr<void> attempt_;
  std::shared_ptr<Link> link_;
  std::string text_;
  std::optional<Result<std::string>> result_;
};

}  // namespace

Result<std::string> ask(const Endpoint& endpoint, const std::string& token,
                        const rendezvous::Command& command) {
  return Question(endpoint, token, command).answer();
}

}  // namespace ddprun::launcher
