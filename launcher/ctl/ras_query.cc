#include "launcher/ctl/ras_query.h"

#include <algorithm>
#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/read_until.hpp>
#include <boost/asio/write.hpp>
#include <chrono>
#include <functional>
#include <optional>
#include <tuple>

#include "common/system/folder.h"
#include "common/text/figures.h"
#include "launcher/watch/stacks.h"

namespace ddprun::launcher {
namespace {

using boost::asio::ip::tcp;
using Error = boost::system::error_code;

constexpr Milliseconds kFirstReply{2000};
constexpr std::size_t kLineMax = 1024;
constexpr std::size_t kAnswerMax = std::size_t{64} << 20;

// The steps, each by a handler of the step before:
//   resolve, connect, CLIENT PROTOCOL -> SERVER PROTOCOL n, SET FORMAT json -> OK or ERROR,
//   VERBOSE STATUS -> the report, up to the end of the connection
class RasQuestion {
 public:
  explicit RasQuestion(Endpoint endpoint) : endpoint_(std::move(endpoint)) {}

  // Call this first. Whether any answer arrived; an error counts, too.
  bool answers_within(Milliseconds limit) {
    resolver_.async_resolve(endpoint_.host, std::to_string(endpoint_.port.value_or(0)),
                            [this](Error error, const tcp::resolver::results_type& found) {
                              if (error) return fail(error);
                              connect(found);
                            });
    const auto end = std::chrono::steady_clock::now() + limit;
    while (!is_ras_ && !result_ && io_.run_one_until(end) > 0) {
    }
    return is_ras_ || result_;
  }

  // std::nullopt: no answer within the limit.
  std::optional<Result<RasAnswer>> answer_within(Milliseconds limit) {
    if (!result_) io_.run_for(limit);
    return std::move(result_);
  }

 private:
  void connect(const tcp::resolver::results_type& found) {
    boost::asio::async_connect(socket_, found, [this](Error error, const tcp::endpoint&) {
      if (error) return fail(error);
      send("CLIENT PROTOCOL 2\n", [this](const std::string& line) {
        if (!line.starts_with("SERVER PROTOCOL ")) return refuse(line);
        is_ras_ = true;
        set_format();
      });
    });
  }

  void set_format() {
    send("SET FORMAT json\n", [this](const std::string& line) {
      answer_.is_json = line == "OK";
      if (!answer_.is_json && !line.starts_with("ERROR")) return refuse(line);
      question_ = "VERBOSE STATUS\n";
      boost::asio::async_write(socket_, boost::asio::buffer(question_),
                               [this](Error error, std::size_t) {
                                 if (error) return fail(error);
                                 read_report();
                               });
    });
  }

  void read_report() {
    auto into = boost::asio::dynamic_buffer(buffer_, kAnswerMax);
    boost::asio::async_read(socket_, into, [this](Error error, std::size_t) {
      if (!error) return refuse("a report without an end");
      if (error != boost::asio::error::eof) return fail(error);
      answer_.text = std::move(buffer_);
      result_ = std::move(answer_);
    });
  }

  // Sends `words` and passes on the line that is received.
  void send(const char* words, std::function<void(const std::string&)> on_line) {
    question_ = words;
    boost::asio::async_write(socket_, boost::asio::buffer(question_),
                             [this, on_line = std::move(on_line)](Error error, std::size_t) {
                               if (error) return fail(error);
                               auto into = boost::asio::dynamic_buffer(buffer_, kLineMax);
                               boost::asio::async_read_until(
                                   socket_, into, '\n', [this, on_line](Error e, std::size_t n) {
                                     if (e) return fail(e);
                                     const std::string line = buffer_.substr(0, n - 1);
                                     buffer_.erase(0, n);
                                     on_line(line);
                                   });
                             });
  }

  void fail(Error error) {
    if (error == boost::asio::error::connection_refused) {
      result_ = Failure{error, "nothing listens at " + where() +
                                   "; has a worker on this machine joined NCCL, of 2.24 or later, "
                                   "and is NCCL_RAS_ENABLE not 0?"};
      return;
    }
    result_ = Failure{error, "asking NCCL's RAS at " + where() + ": " + error.message()};
  }
  void refuse(const std::string& line) {
    result_ = Failure{Errc::kBadMessage,
                      where() + " is not NCCL's RAS: it says \"" + line.substr(0, 80) + "\""};
  }
  std::string where() const { return to_string(endpoint_); }

  const Endpoint endpoint_;
  boost::asio::io_context io_{1};
  tcp::resolver resolver_{io_};
  tcp::socket socket_{io_};
  std::string question_, buffer_;
  RasAnswer answer_;
  std::optional<Result<RasAnswer>> result_;
  bool is_ras_ = false;  // The peer is NCCL's RAS.
};

}  // namespace

// All ranks of a node listen at one port, and the kernel gives each connection to one of them. If
// no answer arrives, try again: that rank may be stopped.
Result<RasAnswer> query_ras(const Endpoint& endpoint, Milliseconds limit) {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + limit;
  const auto left = [&] {
    return std::max(std::chrono::ceil<Milliseconds>(end - Clock::now()), Milliseconds(0));
  };
  while (left().count() > 0) {
    RasQuestion question(endpoint);
    if (!question.answers_within(std::min(left(), kFirstReply))) continue;
    if (auto answer = question.answer_within(left())) return std::move(*answer);
  }
  return Failure{Errc::kPeerSilent, to_string(endpoint) + " does not answer within " +
                                        std::to_string(limit.count()) + " ms"};
}

std::vector<RasJob> ras_jobs(const std::string& run_id, const std::string& proc) {
  std::vector<RasJob> jobs;
  for (const std::string& name : names_in(proc).names) {
    if (!as_number<int>(name)) continue;  // No process.
    const std::string process = proc + "/" + name;
    RasJob job{started_with(process, "TORCHELASTIC_RUN_ID"),
               started_with(process, "NCCL_RAS_ADDR")};
    const bool wanted = run_id.empty() || job.run_id == run_id;
    if (job.run_id.empty() || job.address.empty() || !wanted) continue;
    if (std::find(jobs.begin(), jobs.end(), job) == jobs.end()) jobs.push_back(std::move(job));
  }
  std::sort(jobs.begin(), jobs.end(), [](const RasJob& a, const RasJob& b) {
    return std::tie(a.run_id, a.address) < std::tie(b.run_id, b.address);
  });
  return jobs;
}

}  // namespace ddprun::launcher
