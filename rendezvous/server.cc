#include "rendezvous/server.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <utility>

#include "common/log.h"

namespace ddprun::rendezvous {
namespace {

using Clock = std::chrono::steady_clock;

// A tick that comes this late tells of our own standstill, not of the nodes' silence.
constexpr Milliseconds kTickLateMax{100};

constexpr off_t kJournalBytesMax = off_t{1} << 30;

Result<std::string> read_all(int fd) {
  struct stat info {};
  if (::fstat(fd, &info) != 0) return errno_failure("reading the journal's size");
  if (info.st_size > kJournalBytesMax) {
    return Failure{Errc::kBadMessage,
                   "reading a journal of " + std::to_string(info.st_size) + " bytes"};
  }
  std::string bytes(static_cast<std::size_t>(info.st_size), '\0');
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t n =
        ::pread(fd, bytes.data() + done, bytes.size() - done, static_cast<off_t>(done));
    if (n < 0) return errno_failure("reading the journal");
    if (n == 0) break;
    done += static_cast<std::size_t>(n);
  }
  bytes.resize(done);
  return bytes;
}

bool write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno != EINTR) return false;
    if (n > 0) bytes.remove_prefix(static_cast<std::size_t>(n));
  }
  return true;
}

}  // namespace

Server::Server(boost::asio::io_context& io, ServerOptions options, std::function<void()> on_over)
    : io_(io), options_(std::move(options)), on_over_(std::move(on_over)), timer_(io) {}

Result<std::unique_ptr<Server>> Server::open(boost::asio::io_context& io, ServerOptions options,
                                             std::function<void()> on_over) {
  std::unique_ptr<Server> server(new Server(io, std::move(options), std::move(on_over)));
  if (const auto opened = server->open_journal(); !opened) return opened.error();
  auto listener = Listener::open(
      io, server->options_.listen,
      [self = server.get()](const std::shared_ptr<Link>& link) { self->accept(link); });
  if (!listener) return listener.error();
  server->listener_ = std::move(*listener);
  server->arm();
  return server;
}

Result<void> Server::open_journal() {
  const std::string& path = options_.journal_path;
  if (path.empty()) return {};
  journal_ = UniqueFd(::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  if (!journal_) return errno_failure("opening the journal " + path);
  if (::flock(journal_.get(), LOCK_EX | LOCK_NB) != 0) {
    return errno_failure("locking the journal " + path + ", which another daemon may be using");
  }
  const auto bytes = read_all(journal_.get());
  if (!bytes) return bytes.error();
  const Journal journal = decode_journal(*bytes);
  if (journal.bytes_good < bytes->size()) {
    log::warning("the journal " + path + " ends in a damaged record; it is cut off there");
    if (::ftruncate(journal_.get(), static_cast<off_t>(journal.bytes_good)) != 0) {
      return errno_failure("cutting the journal " + path);
    }
  }
  coordinator_.replay(journal, Clock::now());
  carry_out({});
  if (!journal.records.empty()) log::info("back, with " + status());
  return {};
}

void Server::accept(const std::shared_ptr<Link>& link) {
  const LinkId id = next_link_++;
  links_[id] = link;
  log::debug("a connection from " + link->peer_address(), {.peer = link->peer_address()});
  link->start({
      .on_message =
          [this, id](const std::string& body) {
            log::debug("from " + std::to_string(id) + " " + body);
            carry_out(coordinator_.on_message(id, body, Clock::now()));
          },
      .on_closed =
          [this, id](const Failure& why) {
            log::debug("connection " + std::to_string(id) + " ended: " + to_string(why));
            if (why.code == Errc::kFrameTooLarge) refused_.add(Refusal::kBadMessage);
            links_.erase(id);
            if (ending_ == Ending::kLeave) return carry_out({});
            carry_out(coordinator_.on_closed(id, Clock::now()));
          },
  });
}

void Server::carry_out(std::vector<LinkAction> actions) {
  const std::string records = coordinator_.take_records();
  if (journal_ && !write_all(journal_.get(), records)) {
    // Going on with decisions that could be forgotten would break what the journal promises.
    log::error(to_string(errno_failure("writing the journal " + options_.journal_path)));
    std::exit(1);
  }
  for (LinkAction& action : actions) {
    if (auto* send = std::get_if<Send>(&action)) {
      if (const auto it = links_.find(send->link); it != links_.end()) {
        log::debug("to " + std::to_string(send->link) + " " + send->body);
        it->second->send(send->body);
      }
    } else {
      hang_up(std::get<Hangup>(action));
    }
  }
  log_news();
  arm();
  const bool over = ending() ? links_.empty() : options_.end_when_over && coordinator_.over();
  if (over && on_over_) std::exchange(on_over_, nullptr)();
}

void Server::hang_up(const Hangup& hangup) {
  const auto it = links_.find(hangup.link);
  if (it == links_.end()) return;
  it->second->close();
  if (hangup.reason.empty()) return;
  const std::string& peer = it->second->peer_address();
  const auto line = complaints_.say(peer + " " + hangup.reason,
                                    "hung up on " + peer + ": " + hangup.reason, Clock::now());
  if (line) log::warning(*line, {.peer = peer});
}

void Server::log_news() {
  for (const News& news : coordinator_.take_news()) {
    const std::string text =
        "run " + news.run_id + ": " + news.text + (news.node.empty() ? "" : " (" + news.node + ")");
    const auto say = options_.log_news ? log::info : log::debug;
    say(text, {.run = news.run_id, .node = news.node});
  }
}

// A timer that goes off too early costs less than setting it anew for each message.
void Server::arm() {
  const auto due = coordinator_.deadline();
  if (!due || (armed_ && timer_.expiry() <= *due)) return;
  armed_ = true;
  timer_.expires_at(*due);
  timer_.async_wait([this](const boost::system::error_code& ec) {
    if (!ec) tick();
  });
}

void Server::tick() {
  const auto late = Clock::now() - timer_.expiry();
  if (late > kTickLateMax) {
    // We stood still, not the nodes. Read first what they have said meanwhile.
    timer_.expires_after(kTickLateMax);
    timer_.async_wait([this](const boost::system::error_code& ec) {
      if (!ec) look();
    });
    return;
  }
  // Heartbeats that are already here count before anybody is declared silent.
  boost::asio::post(io_, [this] { look(); });
}

void Server::look() {
  armed_ = false;
  // Nobody is declared silent by a daemon that does not listen any more.
  if (ending_ == Ending::kLeave) return;
  carry_out(coordinator_.on_tick(Clock::now()));
}

std::string Server::status() const {
  std::string text;
  for (const auto& [run_id, run] : coordinator_.runs()) {
    text += (text.empty() ? "" : "; ") + ("run " + run_id + ": " + run.describe());
  }
  return text.empty() ? "no run" : text;
}

void Server::shut_down(int signal) {
  ending_ = Ending::kShutDown;
  carry_out(coordinator_.on_shutdown(signal, Clock::now()));
}

void Server::leave() {
  ending_ = Ending::kLeave;
  listener_->close();
  for (const auto& [id, link] : links_) link->close();
  carry_out({});
}

}  // namespace ddprun::rendezvous
