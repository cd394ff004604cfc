#include "launcher/ctl/ctl_query.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <boost/asio/error.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cerrno>
#include <ctime>
#include <optional>
#include <utility>

#include "common/options/option.h"
#include "common/system/descriptors.h"
#include "common/system/standard_output.h"
#include "common/system/user_file.h"
#include "common/text/display.h"
#include "launcher/ctl/ctl_text.h"
#include "launcher/watch/history_text.h"
#include "launcher/watch/logs.h"
#include "launcher/watch/terminal.h"
#include "launcher/whatif/comparison.h"
#include "rendezvous/net/connect.h"

namespace ddprun::launcher {
namespace {

using rendezvous::Link;

constexpr Milliseconds kConnectLimit{5'000};
constexpr Milliseconds kAnswerLimit{10'000};
constexpr std::size_t kAnswerBytesMax = std::size_t{256} << 20;

class Question : public std::enable_shared_from_this<Question> {
 public:
  using Handler = std::function<void(Result<std::string>)>;

  Question(boost::asio::io_context& io, Endpoint endpoint, const rendezvous::Command& command,
           Handler handler)
      : endpoint_(std::move(endpoint)),
        body_(encode(command)),
        timer_(io),
        handler_(std::move(handler)) {}
  Question(const Question&) = delete;
  Question& operator=(const Question&) = delete;
  // NOLINTNEXTLINE(bugprone-exception-escape): closing throws only if memory is out.
  ~Question() {
    if (link_) link_->close();
  }

  void start(boost::asio::io_context& io, std::string token) {
    rendezvous::ConnectOptions to;
    to.host = endpoint_.host;
    to.port = endpoint_.port.value_or(0);
    to.token = std::move(token);
    to.timeout = kConnectLimit;
    attempt_ = async_connect(io, std::move(to),
                             [weak = weak_from_this()](Result<std::shared_ptr<Link>> link) {
                               const auto self = weak.lock();
                               if (!self) return;
                               if (link) return self->send(std::move(*link));
                               self->finish(self->explained(link.error()));
                             });
  }

 private:
  void send(std::shared_ptr<Link> link) {
    link_ = std::move(link);
    link_->start({.on_message =
                      [weak = weak_from_this()](const std::string& body) {
                        if (const auto self = weak.lock()) self->receive(body);
                      },
                  .on_closed =
                      [weak = weak_from_this()](const Failure& why) {
                        if (const auto self = weak.lock()) self->finish(self->explained(why));
                      }});
    link_->send(body_);
    timer_.expires_after(kAnswerLimit);
    timer_.async_wait([weak = weak_from_this()](const boost::system::error_code& error) {
      const auto self = weak.lock();
      if (error || !self) return;
      self->finish(
          Failure{Errc::kPeerSilent, "the daemon at " + self->where() + " does not answer"});
    });
  }

  void receive(const std::string& body) {
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

  // A text for a user that gave an endpoint and has a token.
  Failure explained(const Failure& why) const {
    if (why.code == std::errc::connection_refused) {
      return {why.code, "nothing listens at " + where() + "; is ddprun-rendezvous running there?"};
    }
    if (why.code == make_error_code(boost::asio::error::eof) && link_) {
      return {why.code, "the daemon at " + where() +
                            " closed the connection without an answer; is it an older version?"};
    }
    const bool is_complete = why.code == Errc::kBadToken || why.code == Errc::kNotFound ||
                             why.code == Errc::kPeerSilent || why.code == std::errc::timed_out;
    return {why.code, is_complete ? why.context : to_string(why)};
  }

  void finish(Result<std::string> result) {
    const Handler handler = std::exchange(handler_, nullptr);
    if (!handler) return;
    timer_.cancel();
    handler(std::move(result));
  }

  std::string where() const { return to_string(endpoint_); }

  const Endpoint endpoint_;
  const std::string body_;
  boost::asio::steady_timer timer_;
  std::shared_ptr<void> attempt_;
  std::shared_ptr<Link> link_;
  std::string text_;
  Handler handler_;  // Empty once it has been called.
};

}  // namespace

std::shared_ptr<void> async_query(boost::asio::io_context& io, const Endpoint& endpoint,
                                  const std::string& token, const rendezvous::Command& command,
                                  std::function<void(Result<std::string>)> handler) {
  const auto question = std::make_shared<Question>(io, endpoint, command, std::move(handler));
  question->start(io, token);
  return question;
}

Result<std::string> query(const Endpoint& endpoint, const std::string& token,
                          const rendezvous::Command& command) {
  boost::asio::io_context io{1};
  std::optional<Result<std::string>> result;
  const auto pending = async_query(io, endpoint, token, command, [&](Result<std::string> answer) {
    result = std::move(answer);
    io.stop();
  });
  io.run();
  if (!result) return Failure{Errc::kPeerSilent, "there is no answer"};
  return std::move(*result);
}

namespace {

LocalTime local_time() {
  const std::time_t now = std::time(nullptr);
  std::tm fields{};
  ::localtime_r(&now, &fields);
  return {.now = now, .ahead = fields.tm_gmtoff};
}

std::string shown(const CtlOptions& options, const std::vector<PastRun>& runs, KeptBy keeper) {
  if (options.json) return history_json(runs);
  const ScreenStyle style = output_style();
  if (options.run_id.empty()) return history_text(runs, local_time(), style, keeper);
  return past_run_text(runs.at(0), local_time(), style, keeper);
}

}  // namespace

Result<void> show_own_history(const CtlOptions& options) {
  std::vector<PastRun> runs = past_runs();
  if (!options.run_id.empty()) {
    auto run = named_run(options.run_id);
    if (!run) return run.error();
    runs = {std::move(*run)};
  }
  write_output(shown(options, runs, KeptBy::kMachine));
  return {};
}

Result<std::string> daemon_history_shown(const CtlOptions& options, const std::string& answer) {
  const auto runs = decode_history(answer);
  if (!runs) return Failure{Errc::kBadMessage, "the daemon's history cannot be read"};
  if (!options.run_id.empty() && runs->empty()) {
    return Failure{Errc::kNotFound,
                   "this daemon has no record of an ended run '" + options.run_id + "'"};
  }
  return shown(options, *runs, KeptBy::kDaemon);
}

Result<std::string> report_shown(const CtlOptions& options, const std::string& account,
                                 const PageFacts& facts) {
  if (options.html_file.empty()) return account + "\n";
  const auto page = report_page(account, facts);
  if (!page) return Failure{Errc::kBadMessage, "the run's account cannot be read"};
  const auto ready = check_user_file(options.html_file);
  if (!ready) {
    return Failure{ready.error().code, "--html " + options.html_file + " " + ready.error().context};
  }
  const auto written = write_user_file(options.html_file, *page);
  if (!written) return written.error();
  return "the report is in " + options.html_file + "\n";
}

namespace {

// A run of this machine with its account.
Result<PastRun> reported_run(const std::string& word) {
  auto run = named_run(word);
  if (!run) return run.error();
  if (!run->record.account.empty()) return run;
  const std::string why =
      run->state == RunState::kRunning
          ? " is in progress: its daemon has its report (-e HOST:PORT)"
          : " left no account here: runs of more than 64 ranks that took less than 10 s leave "
            "none, and of several launchers only that of group rank 0 has it";
  return Failure{Errc::kNotFound, "run '" + cell_text(run->record.run_id) + "'" + why};
}

// A report that a user has saved: of thousands of ranks it has some tens of megabytes.
Result<std::string> account_in(const std::string& path) {
  const std::string what = "--from " + quoted_value(path) + ": ";
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY));
  if (!file) return errno_failure(what + "it cannot be opened");
  std::string text;
  std::array<char, 1 << 16> piece{};
  while (true) {
    const auto size = ::read(file.get(), piece.data(), piece.size());
    if (size < 0 && errno == EINTR) continue;
    if (size < 0) return errno_failure(what + "it cannot be read");
    if (size == 0) return text;
    text.append(piece.data(), static_cast<std::size_t>(size));
    if (text.size() > kAnswerBytesMax) {
      return Failure{Errc::kFrameTooLarge, what + "it has more than 256 MB"};
    }
  }
}

}  // namespace

Result<std::string> whatif_shown(const CtlOptions& options, const std::string& account) {
  auto facts = read_run_facts(account);
  if (!facts) return facts.error();
  const auto compared = compare(std::move(*facts), options.what_if);
  if (!compared) return compared.error();
  return options.json ? whatif_json(*compared) : whatif_text(*compared, output_style());
}

Result<void> show_own_whatif(const CtlOptions& options) {
  std::string account;
  if (options.account_file.empty()) {
    auto run = reported_run(options.run_id);
    if (!run) return run.error();
    account = std::move(run->record.account);
  } else {
    auto read = account_in(options.account_file);
    if (!read) return read.error();
    account = std::move(*read);
  }
  const auto text = whatif_shown(options, account);
  if (text) {
    write_output(*text);
    return {};
  }
  const bool is_usage = text.error().code == Errc::kBadOption;
  const std::string whose = options.account_file.empty()
                                ? "the report of run '" + cell_text(options.run_id) + "' "
                                : "--from " + quoted_value(options.account_file) + " ";
  return Failure{text.error().code, (is_usage ? "" : whose) + text.error().context};
}

Result<void> show_own_report(const CtlOptions& options) {
  const auto run = reported_run(options.run_id);
  if (!run) return run.error();
  const RunRecord& record = run->record;
  const auto text =
      report_shown(options, record.account,
                   {.command = record.command, .started_utc = utc_text(record.started)});
  if (!text) return text.error();
  write_output(*text);
  return {};
}

}  // namespace ddprun::launcher
