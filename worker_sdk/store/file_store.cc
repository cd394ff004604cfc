#include "worker_sdk/store/file_store.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <mutex>

#include "common/store/store_table.h"
#include "common/system/descriptors.h"
#include "ddprun/store.h"
#include "worker_sdk/base/retry.h"

namespace ddprun::worker_sdk {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLongestPause{10};  // Between two questions.

// The limit for reading an existing key.
constexpr milliseconds kAtOnce{1000};

}  // namespace

void PolledStore::set(std::string_view key, std::string_view value) {
  const std::lock_guard lock(keys_->mutex);
  keys_->inner->set(key, value);
}

std::string PolledStore::get(std::string_view key, milliseconds timeout) {
  wait({std::string(key)}, timeout);
  const std::lock_guard lock(keys_->mutex);
  return keys_->inner->get(key, kAtOnce);
}

std::int64_t PolledStore::add(std::string_view key, std::int64_t delta) {
  const std::lock_guard lock(keys_->mutex);
  return keys_->inner->add(key, delta);
}

bool PolledStore::check(const std::vector<std::string>& keys) {
  const std::lock_guard lock(keys_->mutex);
  return keys_->inner->check(keys);
}

void PolledStore::wait(const std::vector<std::string>& keys, milliseconds timeout) {
  bool there = false;
  const auto attempt = [&] {
    there = check(keys);
    return there || (fence_ && fence_->is_raised());
  };
  const bool ended = retry_until(deadline_after(timeout), attempt, kLongestPause);
  if (there) return;
  const std::string what = "waiting for \"" + keys.front() + "\"";
  if (ended) throw Error(ErrorKind::aborted, {.operation = "wait"}, what + " was given up");
  throw Error(ErrorKind::timed_out, {.operation = "wait"}, what);
}

bool PolledStore::erase(std::string_view key) {
  const std::lock_guard lock(keys_->mutex);
  return keys_->inner->erase(key);
}

std::shared_ptr<Store> fenced(const Store& polled, std::shared_ptr<RoundFence> fence) {
  return std::make_shared<PolledStore>(dynamic_cast<const PolledStore&>(polled), std::move(fence));
}

std::shared_ptr<Store> fenced_file(const std::string& path, std::shared_ptr<RoundFence> fence) {
  std::shared_ptr<Store> store = open_file_store(path);
  return fence ? std::make_shared<PolledStore>(std::move(store), std::move(fence)) : store;
}

}  // namespace ddprun::worker_sdk

namespace ddprun {

// open_file_store(): a store in one file, for ranks that share a file system and nothing else.
//
// The file is a log of records, appended under an exclusive flock; each reader replays what it has
// not read yet. A record that is cut off at the end is a writer that died, and is overwritten.

namespace worker_sdk {
namespace {

using std::chrono::milliseconds;

constexpr store::StoreLimits kLimits = store::kRankStoreLimits;

// A rank that holds the lock for longer is stopped.
constexpr milliseconds kLockPatience{30000};

// The first byte identifies our files.
enum class Record : char { kSet = 'S', kErase = 'E' };

struct Header {
  Record record{};
  std::uint32_t key_bytes = 0;
  std::uint32_t value_bytes = 0;
};

class FileStore : public Store {
 public:
  explicit FileStore(const std::string& path)
      : path_(path), file_(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600)) {
    if (!file_) fail(ErrorKind::system, "opening", std::strerror(errno));
  }

  void set(std::string_view key, std::string_view value) override {
    const std::lock_guard guard(mutex_);
    const FileLock lock(*this);
    replay();
    append(Record::kSet, key, value);
  }

  std::string get(std::string_view key, milliseconds timeout) override {
    const std::lock_guard guard(mutex_);
    wait_locked({std::string(key)}, timeout);
    return *table_.find(key);
  }

  std::int64_t add(std::string_view key, std::int64_t delta) override {
    const std::lock_guard guard(mutex_);
    const FileLock lock(*this);
    replay();
    const Result<std::int64_t> sum = table_.sum(key, delta);
    if (!sum) fail(ErrorKind::bad_argument, "add", "\"" + std::string(key) + "\" is not a counter");
    append(Record::kSet, key, std::to_string(*sum));
    return *sum;
  }

  bool check(const std::vector<std::string>& keys) override {
    const std::lock_guard guard(mutex_);
    return all_there(keys);
  }

  void wait(const std::vector<std::string>& keys, milliseconds timeout) override {
    const std::lock_guard guard(mutex_);
    wait_locked(keys, timeout);
  }

  bool erase(std::string_view key) override {
    const std::lock_guard guard(mutex_);
    const FileLock lock(*this);
    replay();
    if (!table_.find(key)) return false;
    append(Record::kErase, key, {});
    return true;
  }

 private:
  class FileLock {
   public:
    explicit FileLock(FileStore& store) : fd_(store.file_.get()) {
      const bool locked = retry_until(Clock::now() + kLockPatience, [&] {
        if (::flock(fd_, LOCK_EX | LOCK_NB) == 0) return true;
        if (errno == EWOULDBLOCK || errno == EINTR) return false;
        store.fail(ErrorKind::system, "locking", std::strerror(errno));
      });
      if (!locked) store.fail(ErrorKind::timed_out, "locking", "another rank holds the lock");
    }
    ~FileLock() { ::flock(fd_, LOCK_UN); }
    FileLock(const FileLock&) = delete;

   private:
    int fd_;
  };

  bool all_there(const std::vector<std::string>& keys) {
    const FileLock lock(*this);
    replay();
    return table_.has_all(keys);
  }

  void wait_locked(const std::vector<std::string>& keys, milliseconds timeout) {
    if (retry_until(deadline_after(timeout), [&] { return all_there(keys); })) return;
    std::string missing;
    for (const std::string& key : keys) {
      if (!table_.find(key)) missing += (missing.empty() ? "\"" : ", \"") + key + "\"";
    }
    fail(ErrorKind::timed_out, "wait", "waiting for " + missing);
  }

  // Applies the complete records that were appended since the last call; end_ is after the last of
  // them.
  void replay() {
    struct stat status {};
    if (::fstat(file_.get(), &status) != 0)
      fail(ErrorKind::system, "reading", std::strerror(errno));
    size_ = static_cast<std::size_t>(status.st_size);
    if (size_ <= end_) return;
    std::string bytes(size_ - end_, '\0');
    const ssize_t got = ::pread(file_.get(), bytes.data(), bytes.size(), static_cast<off_t>(end_));
    if (got < 0) fail(ErrorKind::system, "reading", std::strerror(errno));
    std::string_view rest(bytes.data(), static_cast<std::size_t>(got));
    while (rest.size() >= sizeof(Header)) {
      Header header;
      std::memcpy(static_cast<void*>(&header), rest.data(), sizeof(header));
      check_header(header);
      const std::size_t length = sizeof(header) + header.key_bytes + header.value_bytes;
      if (rest.size() < length) break;
      const std::string_view key = rest.substr(sizeof(header), header.key_bytes);
      if (header.record == Record::kErase) {
        table_.erase(key);
      } else if (!table_.set(key, std::string(rest.substr(sizeof(header) + key.size(),
                                                          header.value_bytes)))) {
        fail(ErrorKind::bad_argument, "reading", "more than a store may hold");
      }
      rest.remove_prefix(length);
      end_ += length;
    }
  }

  void check_header(const Header& header) {
    const bool known = header.record == Record::kSet || header.record == Record::kErase;
    if (known && header.key_bytes <= kLimits.key_bytes_max &&
        header.value_bytes <= kLimits.value_bytes_max) {
      return;
    }
    fail(ErrorKind::bad_argument, "reading", "this is not the file of a store");
  }

  // Called after replay(), under the lock.
  void append(Record record, std::string_view key, std::string_view value) {
    if (key.size() > kLimits.key_bytes_max || value.size() > kLimits.value_bytes_max) {
      fail(ErrorKind::bad_argument, "set", "above the limits of a store");
    }
    Header header{};
    header.record = record;
    header.key_bytes = static_cast<std::uint32_t>(key.size());
    header.value_bytes = static_cast<std::uint32_t>(value.size());
    std::string bytes(sizeof(header), '\0');
    std::memcpy(bytes.data(), &header, sizeof(header));
    bytes.append(key).append(value);
    // A dead writer's incomplete record must not precede ours. Truncating nothing would cost a
    // journal's commit on a busy disk.
    if (size_ > end_ && ::ftruncate(file_.get(), static_cast<off_t>(end_)) != 0) {
      fail(ErrorKind::system, "writing", std::strerror(errno));
    }
    const ssize_t wrote =
        ::pwrite(file_.get(), bytes.data(), bytes.size(), static_cast<off_t>(end_));
    if (wrote != static_cast<ssize_t>(bytes.size())) {
      const int error = wrote < 0 ? errno : ENOSPC;
      fail(ErrorKind::system, "writing", std::strerror(error));
    }
    replay();
  }

  [[noreturn]] void fail(ErrorKind kind, const char* operation, const std::string& text) const {
    throw Error(kind, {.operation = operation + std::string(" in the file store")},
                path_ + ": " + text);
  }

  const std::string path_;
  std::mutex mutex_;
  UniqueFd file_;
  store::StoreTable table_{kLimits};
  std::size_t size_ = 0;  // The file's size, under the lock.
  std::size_t end_ = 0;
};

}  // namespace
}  // namespace worker_sdk

std::unique_ptr<Store> open_file_store(const std::string& path) {
  return std::make_unique<worker_sdk::FileStore>(path);
}

}  // namespace ddprun
