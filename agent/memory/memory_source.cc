#include "agent/memory/memory_source.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <utility>

#include "common/assert.h"
#include "common/checksum.h"

namespace ddprun::agent::memory {
namespace {

using Clock = std::chrono::steady_clock;

// Half of what a Link may have unsent.
constexpr int kInFlightMax = 8;

bool is_unchanged(int file, const Entry& entry) {
  struct stat status;
  constexpr std::int64_t kNanoseconds = 1'000'000'000;
  return ::fstat(file, &status) == 0 && static_cast<std::uint64_t>(status.st_size) == entry.bytes &&
         status.st_mtim.tv_sec * kNanoseconds + status.st_mtim.tv_nsec == entry.modified;
}

// Fewer bytes where the file has ended.
std::string read_at(int file, std::uint64_t offset, std::size_t size) {
  std::string bytes(size, '\0');
  std::size_t done = 0;
  while (done < size) {
    const ssize_t got =
        ::pread(file, bytes.data() + done, size - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    done += static_cast<std::size_t>(got);
  }
  bytes.resize(done);
  return bytes;
}

}  // namespace

Source::Source(boost::asio::io_context& loop, std::shared_ptr<rendezvous::Link> link,
               std::uint64_t rate)
    : link_(std::move(link)), rate_(rate), pause_(loop) {}

void Source::offer(std::string folder, Snapshot snapshot, OnDone done) {
  DDPRUN_ASSERT(!done_ && done);
  folder_ = std::move(folder);
  snapshot_ = std::move(snapshot);
  done_ = std::move(done);
  wants_.clear();
  needs_known_ = false;
  next_ = 0;
  in_flight_ = 0;
  file_.reset();
  for (const std::string& frame : encode_all<Index>(snapshot_.entries)) link_->send(frame);
}

Result<void> Source::take(const Message& message) {
  if (const auto* refusal = std::get_if<Denial>(&message); refusal && done_) {
    finish(Failure{Errc::kNotFound, refusal->reason});
    return {};
  }
  if (const auto* committed = std::get_if<Committed>(&message); committed && done_) {
    finish(*committed);
    return {};
  }
  if (std::holds_alternative<Ack>(message) && in_flight_ > 0) {
    --in_flight_;
    pump();
    return {};
  }
  const auto* need = std::get_if<Lacks>(&message);
  if (!need || !done_ || needs_known_) {
    return Failure{Errc::kBadMessage, "sending files: an answer that does not belong here"};
  }
  for (const Want& want : need->wants) {
    const bool follows = wants_.empty() || want.entry > wants_.back().entry;
    if (!follows || want.entry >= snapshot_.entries.size() ||
        want.offset > snapshot_.entries[want.entry].bytes) {
      return Failure{Errc::kBadMessage, "sending files: one that was not offered is asked for"};
    }
    wants_.push_back(want);
  }
  needs_known_ = need->last;
  pump();
  return {};
}

void Source::pump() {
  while (needs_known_ && !pausing_ && done_ && in_flight_ < kInFlightMax && send_next()) {
    const TimePoint now = Clock::now();
    if (rate_ == 0 || next_send_ <= now) continue;
    pausing_ = true;
    pause_.expires_at(next_send_);
    pause_.async_wait([this](const boost::system::error_code& ec) {
      if (ec) return;
      pausing_ = false;
      pump();
    });
  }
}

// False once there is nothing left.
bool Source::send_next() {
  if (next_ == wants_.size()) return false;
  const Want& want = wants_[next_];
  const Entry& entry = snapshot_.entries[want.entry];
  if (!file_) {
    file_.reset(::open((folder_ + "/" + entry.path).c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
    at_ = want.offset;
    if (!file_ || !is_unchanged(file_.get(), entry)) return skip(), true;
  }
  const auto size =
      static_cast<std::size_t>(std::min<std::uint64_t>(kPieceBytes, entry.bytes - at_));
  Piece piece{want.entry, at_, 0, at_ + size == entry.bytes, read_at(file_.get(), at_, size)};
  // A file that was written in place has another time by now, or another size.
  const bool whole =
      piece.bytes.size() == size && (!piece.last || is_unchanged(file_.get(), entry));
  if (!whole) return skip(), true;
  piece.checksum = checksum(piece.bytes.data(), size);
  at_ += size;
  ++in_flight_;
  if (piece.last) file_.reset(), ++next_;
  if (rate_ > 0) {
    const auto takes = std::chrono::nanoseconds(size * 1'000'000'000 / rate_);
    next_send_ = std::max(next_send_, Clock::now()) + takes;
  }
  link_->send(encode(std::move(piece)));
  return true;
}

void Source::skip() {
  link_->send(encode(Skip{wants_[next_].entry}));
  file_.reset();
  ++next_;
}

void Source::finish(Result<Committed> result) {
  pause_.cancel();
  pausing_ = false;
  snapshot_.locks.clear();
  std::exchange(done_, nullptr)(std::move(result));
}

}  // namespace ddprun::agent::memory
