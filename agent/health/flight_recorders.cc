#include "agent/health/flight_recorders.h"

#include <fcntl.h>
#include <unistd.h>

#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/steady_timer.hpp>
#include <fstream>
#include <iterator>
#include <utility>

#include "common/assert.h"
#include "common/system/log.h"

namespace ddprun::agent {
namespace {

using boost::asio::local::stream_protocol;
using boost::system::error_code;

constexpr const char* kSocketVariable = "DDPRUN_WATCH_SOCKET";
constexpr const char* kDumpVariable = "DDPRUN_WATCH_DUMP";
constexpr const char* kLeft = ".last";  // What a worker has left behind has this ending.

std::optional<FlightRecord> decoded(const std::string& text) {
  auto record = decode_flight_record(text);
  if (record) return std::move(*record);
  log::debug(to_string(record.error()));
  return std::nullopt;
}

// Of a worker that has ended.
std::optional<FlightRecord> record_left(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text(kFlightBytesMax + 1, '\0');
  if (!file.read(text.data(), static_cast<std::streamsize>(text.size())) && file.gcount() <= 0) {
    return std::nullopt;
  }
  text.resize(static_cast<std::size_t>(file.gcount()));
  auto record = decoded(text);
  if (record) record->ended = true;
  return record;
}

}  // namespace

// One answer of each worker, or the limit.
class FlightRecorders::Question : public std::enable_shared_from_this<Question> {
 public:
  Question(boost::asio::io_context& loop, Done done) : timer_(loop), done_(std::move(done)) {}

  void put(int local_rank, const stream_protocol::endpoint& where, std::string left) {
    auto& one =
        ranks_.try_emplace(local_rank, timer_.get_executor(), std::move(left)).first->second;
    ++open_;
    one.socket.async_connect(where, [self = shared_from_this(), local_rank](const error_code& ec) {
      if (ec) return self->ended(local_rank, ec);
      Rank& rank = self->ranks_.at(local_rank);
      rank.listens = true;
      error_code ignored;  // Sends no question: those are for torch's debug handlers.
      rank.socket.shutdown(stream_protocol::socket::shutdown_send, ignored);
      boost::asio::async_read(rank.socket,
                              boost::asio::dynamic_buffer(rank.text, kFlightBytesMax + 1),
                              [self, local_rank](const error_code& error, std::size_t) {
                                self->ended(local_rank, error);
                              });
    });
  }

  void wait(Duration limit) {
    timer_.expires_after(limit);
    timer_.async_wait([self = shared_from_this()](const error_code& ec) {
      if (!ec) self->finish();
    });
    if (open_ == 0) {
      boost::asio::post(timer_.get_executor(), [self = shared_from_this()] { self->finish(); });
    }
  }

  void drop() {
    done_ = nullptr;
    close();
  }

 private:
  struct Rank {
    Rank(const boost::asio::any_io_executor& executor, std::string left_file)
        : socket(executor), left(std::move(left_file)) {}
    stream_protocol::socket socket;
    std::string left;  // The file of what it may have left behind.
    std::string text = {};
    bool listens = false;
    bool answered = false;
  };

  void ended(int local_rank, const error_code& ec) {
    if (ec == boost::asio::error::operation_aborted) return;
    Rank& rank = ranks_.at(local_rank);
    rank.answered = ec == boost::asio::error::eof && !rank.text.empty();
    if (!rank.answered && ec == boost::asio::error::eof) rank.listens = false;
    if (ec == boost::asio::error::connection_reset) rank.listens = false;
    DDPRUN_ASSERT(open_ > 0);
    if (--open_ == 0) finish();
  }

  void finish() {
    const Done done = std::exchange(done_, nullptr);
    close();
    if (!done) return;
    Answers answers;
    for (auto& [local_rank, rank] : ranks_) {
      if (rank.answered) {
        answers[local_rank] = decoded(rank.text);
      } else if (rank.listens) {
        answers[local_rank] = std::nullopt;
      } else if (auto record = record_left(rank.left)) {
        answers[local_rank] = std::move(record);
      }
    }
    done(std::move(answers));
  }

  void close() {
    timer_.cancel();
    error_code ignored;
    for (auto& [local_rank, rank] : ranks_) rank.socket.close(ignored);
  }

  boost::asio::steady_timer timer_;
  Done done_;
  std::map<int, Rank> ranks_;
  int open_ = 0;
};

FlightRecorders::FlightRecorders(boost::asio::io_context& loop, const std::string& stem)
    : loop_(loop) {
  const std::size_t slash = stem.rfind('/');
  if (slash == std::string::npos) return;
  folder_ = stem.substr(0, slash + 1);
  stem_ = stem.substr(slash + 1);
  // A path may be longer than an address: the folder is named by its descriptor.
  folder_fd_ = UniqueFd(::open(folder_.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!folder_fd_) folder_.clear();
}

FlightRecorders::~FlightRecorders() {
  for (const auto& weak : questions_) {
    if (const auto question = weak.lock()) question->drop();
  }
}

std::vector<std::string> FlightRecorders::variables(int local_rank, const std::string& dump) {
  if (folder_.empty()) return {};
  const std::string path = folder_ + name_of(local_rank);
  ::unlink(path.c_str());
  ::unlink((path + kLeft).c_str());
  return {std::string(kSocketVariable) + "=" + path, std::string(kDumpVariable) + "=" + dump};
}

void FlightRecorders::query(int workers, Duration limit, Done done) {
  DDPRUN_ASSERT(workers >= 0 && limit > Duration::zero() && done);
  std::erase_if(questions_, [](const auto& question) { return question.expired(); });
  const auto question = std::make_shared<Question>(loop_, std::move(done));
  questions_.push_back(question);
  const std::string folder = "/proc/self/fd/" + std::to_string(folder_fd_.get()) + "/";
  for (int local_rank = 0; local_rank < workers && !folder_.empty(); ++local_rank) {
    const std::string name = name_of(local_rank);
    question->put(local_rank, stream_protocol::endpoint(folder + name), folder_ + name + kLeft);
  }
  question->wait(limit);
}

}  // namespace ddprun::agent
