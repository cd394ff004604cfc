#include "rendezvous/etcd/etcd_log.h"

#include <algorithm>
#include <utility>

#include "common/system/log.h"

namespace ddprun::rendezvous {
namespace {

constexpr Milliseconds kWriteLimit{2'000};
constexpr Milliseconds kRetry{100};
// etcd takes 1.5 MiB and 128 operations in one write, and the gateway answers in one piece.
constexpr std::size_t kPartBytesMax = std::size_t{256} * 1024;
constexpr std::size_t kPartsInWrite = 4;
constexpr int kPartsInRead = 8;
constexpr std::size_t kCompactAt = std::size_t{4} << 20;
constexpr std::size_t kCompactFactor = 4;

}  // namespace

EtcdLog::EtcdLog(boost::asio::io_context& io, const EtcdOptions& options)
    : options_(options),
      election_(io, options,
                {.on_lead = [this](Term term) { load(term); },
                 .on_deposed = [this](const std::string& why) { handlers_.on_over(why); }}),
      client_(io, options.endpoints, options.access),
      retry_(io) {}

void EtcdLog::start(Handlers handlers) {
  handlers_ = std::move(handlers);
  election_.start();
}

std::string EtcdLog::data_key(Term term, std::int64_t sequence) const {
  return options_.prefix + "/data/" + etcd::sortable(term) + "/" + etcd::sortable(sequence);
}

// Until it is answered with sense; an answer that was lost does no harm, for each request may come
// twice.
void EtcdLog::send(const etcd::Request& request, const Take& then) {
  client_.post(request, kWriteLimit, [this, request, then](const Result<std::string>& body) {
    const Result<void> taken = body ? then(*body) : Result<void>(body.error());
    if (taken) return;
    if (!trouble_) {
      trouble_ = "etcd cannot be used: " + to_string(taken.error());
      log::warning(*trouble_ + "; nothing is decided until it can");
    }
    retry_.expires_after(kRetry);
    retry_.async_wait([this, request, then](const boost::system::error_code& ec) {
      if (!ec) send(request, then);
    });
  });
}

void EtcdLog::load(Term term) {
  term_ = term;
  send(etcd::get(options_.prefix + "/manifest"), [this](const std::string& body) -> Result<void> {
    const auto range = etcd::read_range(body);
    if (!range) return range.error();
    if (range->found.empty()) return handlers_.on_lead({}), Result<void>();
    const auto manifest = etcd::read_manifest(range->found.front().value);
    if (!manifest) return handlers_.on_over(manifest.error().context), Result<void>();
    loaded_end_ = data_key(manifest->term + 1, 0);
    load_parts(data_key(manifest->term, manifest->first));
    return {};
  });
}

void EtcdLog::load_parts(const std::string& first) {
  send(etcd::get_range(first, loaded_end_, kPartsInRead),
       [this](const std::string& body) -> Result<void> {
         const auto range = etcd::read_range(body);
         if (!range) return range.error();
         take_part(*range);
         return {};
       });
}

void EtcdLog::take_part(const etcd::Range& range) {
  for (const etcd::KeyValue& part : range.found) loaded_ += part.value;
  if (range.more && !range.found.empty()) {
    return load_parts(range.found.back().key + std::string(1, '\0'));
  }
  trouble_.reset();
  Journal journal = decode_journal(std::exchange(loaded_, {}));
  if (journal.refusal) return handlers_.on_over("the journal in etcd: " + *journal.refusal);
  handlers_.on_lead(std::move(journal));
}

void EtcdLog::append(std::string records, std::function<void()> done) {
  operations_.push_back({std::move(records), 0, false, {std::move(done)}});
  if (begun_) write();
}

void EtcdLog::replace(std::string snapshot) {
  Operation operation{journal_header() + snapshot, 0, true, {}};
  // What waits is part of it; what is under way comes before it.
  while (!operations_.empty() && operations_.back().written == 0 && !operations_.back().snapshot) {
    for (auto& done : operations_.back().done) operation.done.push_back(std::move(done));
    operations_.pop_back();
  }
  std::reverse(operation.done.begin(), operation.done.end());
  operations_.push_back(std::move(operation));
  begun_ = true;
  size_ = snapshot_size_ = operations_.back().bytes.size();
  write();
}

bool EtcdLog::wants_snapshot() const {
  if (!begun_) return term_ != 0;
  return !trouble_ && size_ >= snapshot_size_ + kCompactAt &&
         size_ >= kCompactFactor * snapshot_size_;
}

// What fits into one write of what is first in line: a part of a snapshot, or of several appends.
std::string EtcdLog::take_bytes(std::size_t& finished) {
  constexpr std::size_t kMax = kPartBytesMax * kPartsInWrite;
  std::string bytes;
  finished = 0;
  for (Operation& operation : operations_) {
    if (operation.snapshot && finished > 0) break;
    const std::size_t n = std::min(kMax - bytes.size(), operation.bytes.size() - operation.written);
    bytes.append(operation.bytes, operation.written, n);
    operation.written += n;
    if (operation.written < operation.bytes.size()) break;
    if (operation.snapshot) break;
    ++finished;
  }
  return bytes;
}

void EtcdLog::write() {
  if (writing_ || operations_.empty()) return;
  writing_ = true;
  Operation& next = operations_.front();
  if (next.snapshot && next.written == 0) first_ = sequence_;
  if (next.snapshot && next.written == next.bytes.size()) return write_manifest();
  std::size_t finished = 0;
  const std::string bytes = take_bytes(finished);
  std::vector<etcd::Put> puts;
  for (std::size_t at = 0; at < bytes.size(); at += kPartBytesMax) {
    puts.push_back({data_key(term_, sequence_++), bytes.substr(at, kPartBytesMax)});
  }
  size_ += next.snapshot ? 0 : bytes.size();
  commit(etcd::write_if(election_.key(), term_, puts, {}), [this, finished] { finish(finished); });
}

void EtcdLog::write_manifest() {
  const etcd::Put manifest{options_.prefix + "/manifest",
                           etcd::manifest_text({.term = term_, .first = first_})};
  const etcd::DeleteRange older{options_.prefix + "/data/", data_key(term_, first_)};
  commit(etcd::write_if(election_.key(), term_, {manifest}, {older}), [this] { finish(1); });
}

void EtcdLog::commit(const etcd::Request& request, std::function<void()> then) {
  send(request, [this, then = std::move(then)](const std::string& body) -> Result<void> {
    const auto outcome = etcd::read_outcome(body);
    if (!outcome) return outcome.error();
    if (!outcome->succeeded) return election_.fenced(), Result<void>();
    if (trouble_) log::info("etcd can be used again; continuing");
    trouble_.reset();
    then();
    return {};
  });
}

void EtcdLog::finish(std::size_t count) {
  std::vector<std::function<void()>> done;
  for (; count > 0; --count) {
    for (auto& one : operations_.front().done) done.push_back(std::move(one));
    operations_.pop_front();
  }
  writing_ = false;
  write();
  for (const auto& one : done) one();
}

}  // namespace ddprun::rendezvous
