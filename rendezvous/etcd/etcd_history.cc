#include "rendezvous/etcd/etcd_history.h"

#include <utility>

#include "common/system/log.h"

namespace ddprun::rendezvous {
namespace {

constexpr Milliseconds kRequestLimit{2'000};
constexpr Milliseconds kReadRetry{500};
constexpr int kRecordsInRead = 8;

std::string after(const std::string& key) { return key + std::string(1, '\0'); }

}  // namespace

EtcdHistory::EtcdHistory(boost::asio::io_context& io, const EtcdOptions& options, Leader leader,
                         Limits limits)
    : options_(options),
      leader_(std::move(leader)),
      limits_(limits),
      client_(io, options.endpoints, options.access),
      retry_(io) {}

void EtcdHistory::start(Remember remember) {
  remember_ = std::move(remember);
  read(folder());
}

// Each request may come twice: an answer that was lost does no harm.
void EtcdHistory::send(const etcd::Request& request, int tries, const Take& take,
                       const std::function<void()>& give_up) {
  client_.post(request, kRequestLimit, [=, this](const Result<std::string>& body) {
    const Result<void> taken = body ? take(*body) : Result<void>(body.error());
    if (taken) return;
    if (tries <= 1 || leaving_) {
      log::warning("the history of runs in etcd cannot be used: " + to_string(taken.error()));
      return give_up();
    }
    retry_.expires_after(kReadRetry);
    retry_.async_wait([=, this](const boost::system::error_code& ec) {
      if (!ec) send(request, tries - 1, take, give_up);
    });
  });
}

void EtcdHistory::read(const std::string& first) {
  // '0' follows '/'.
  const std::string end = options_.prefix + "/history0";
  send(
      etcd::get_range(first, end, kRecordsInRead), kTries,
      [this](const std::string& body) -> Result<void> {
        const auto range = etcd::read_range(body);
        if (!range) return range.error();
        take(*range);
        return {};
      },
      [this] { take({}); });
}

void EtcdHistory::take(const etcd::Range& range) {
  for (const etcd::KeyValue& one : range.found) {
    kept_.push_back({one.key, one.value.size()});
    auto record = decode_record(one.value);
    if (record && record->took_s) remember_(std::move(*record));
  }
  if (range.more && !range.found.empty()) return read(after(range.found.back().key));
  read_ = true;
  for (RunRecord& record : std::exchange(later_, {})) put(std::move(record));
  settle();
}

void EtcdHistory::put(RunRecord record) {
  if (!read_) return later_.push_back(std::move(record));
  unwritten_.push_back({record.run_id, encode_within(record, limits_.record_bytes)});
  remember_(std::move(record));
  write();
}

// How many of the oldest have to go for one more of so many bytes.
std::size_t EtcdHistory::surplus(std::size_t more) const {
  std::size_t bytes = more, count = 0;
  for (const Kept& one : kept_) bytes += one.bytes;
  while (count < kept_.size() &&
         (bytes > limits_.bytes || kept_.size() - count + 1 > limits_.records)) {
    bytes -= kept_[count++].bytes;
  }
  return count;
}

void EtcdHistory::write() {
  if (writing_ || over_ || unwritten_.empty()) return;
  writing_ = true;
  const Unwritten& next = unwritten_.front();
  const std::string key =
      folder() + etcd::sortable(leader_.term) + "/" + etcd::sortable(sequence_++);
  const std::size_t gone = surplus(next.text.size()), bytes = next.text.size();
  std::vector<etcd::DeleteRange> oldest;
  if (gone > 0) oldest.push_back({kept_.front().key, after(kept_[gone - 1].key)});
  send(
      etcd::write_if(leader_.key, leader_.term, {{key, next.text}}, oldest), kTries,
      [=, this](const std::string& body) -> Result<void> {
        const auto outcome = etcd::read_outcome(body);
        if (!outcome) return outcome.error();
        over_ = !outcome->succeeded;
        if (!over_) {
          kept_.erase(kept_.begin(), kept_.begin() + static_cast<std::ptrdiff_t>(gone));
          kept_.push_back({key, bytes});
        }
        end_write();
        return {};
      },
      [this] {
        log::warning("the record of run " + unwritten_.front().run_id +
                     " is not kept: it is known as long as this daemon lives");
        end_write();
      });
}

void EtcdHistory::end_write() {
  writing_ = false;
  unwritten_.pop_front();
  write();
  settle();
}

void EtcdHistory::leave(std::function<void()> done) {
  leaving_ = true;
  on_left_ = std::move(done);
  settle();
}

void EtcdHistory::settle() {
  const bool busy = !over_ && (!read_ || writing_);
  if (!busy && on_left_) std::exchange(on_left_, nullptr)();
}

}  // namespace ddprun::rendezvous
