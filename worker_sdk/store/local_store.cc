#include "worker_sdk/store/local_store.h"

#include "ddprun/store.h"
#include "worker_sdk/base/operation.h"

namespace ddprun::worker_sdk {
namespace {

[[noreturn]] void throw_error(ErrorKind kind, const char* operation, const std::string& text) {
  throw Error(kind, {.operation = operation}, text);
}

}  // namespace

void LocalStore::set(std::string_view key, std::string_view value) {
  const std::lock_guard lock(mutex_);
  put(key, std::string(value), "set");
}

// Under the lock.
void LocalStore::put(std::string_view key, std::string value, const char* operation) {
  if (!table_.set(key, std::move(value))) {
    throw_error(ErrorKind::bad_argument, operation, "above the limits of a store");
  }
  changed_.notify_all();
}

std::string LocalStore::get(std::string_view key, std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  const std::string* value = nullptr;
  changed_.wait_until(lock, deadline_after(timeout),
                      [&] { return (value = table_.find(key)) != nullptr; });
  if (!value) {
    throw_error(ErrorKind::timed_out, "get", "waiting for \"" + std::string(key) + "\"");
  }
  return *value;
}

std::int64_t LocalStore::add(std::string_view key, std::int64_t delta) {
  const std::lock_guard lock(mutex_);
  const Result<std::int64_t> sum = table_.sum(key, delta);
  if (!sum) {
    throw_error(ErrorKind::bad_argument, "add", "\"" + std::string(key) + "\" is not a counter");
  }
  put(key, std::to_string(*sum), "add");
  return *sum;
}

bool LocalStore::check(const std::vector<std::string>& keys) {
  const std::lock_guard lock(mutex_);
  return table_.has_all(keys);
}

void LocalStore::wait(const std::vector<std::string>& keys, std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  if (changed_.wait_until(lock, deadline_after(timeout), [&] { return table_.has_all(keys); })) {
    return;
  }
  std::string missing;
  for (const std::string& key : keys) {
    if (!table_.find(key)) missing += (missing.empty() ? "\"" : ", \"") + key + "\"";
  }
  throw_error(ErrorKind::timed_out, "wait", "waiting for " + missing);
}

bool LocalStore::erase(std::string_view key) {
  const std::lock_guard lock(mutex_);
  return table_.erase(key).has_value();
}

}  // namespace ddprun::worker_sdk

namespace ddprun {

// with_prefix(): a part of the keys of another store.

namespace {

class PrefixStore : public Store {
 public:
  PrefixStore(Store& inner, std::string prefix) : inner_(inner), prefix_(std::move(prefix) + "/") {}

  void set(std::string_view key, std::string_view value) override { inner_.set(full(key), value); }
  std::string get(std::string_view key, std::chrono::milliseconds timeout) override {
    return inner_.get(full(key), timeout);
  }
  std::int64_t add(std::string_view key, std::int64_t delta) override {
    return inner_.add(full(key), delta);
  }
  bool check(const std::vector<std::string>& keys) override { return inner_.check(full(keys)); }
  void wait(const std::vector<std::string>& keys, std::chrono::milliseconds timeout) override {
    inner_.wait(full(keys), timeout);
  }
  bool erase(std::string_view key) override { return inner_.erase(full(key)); }

 private:
  std::string full(std::string_view key) const { return prefix_ + std::string(key); }
  std::vector<std::string> full(const std::vector<std::string>& keys) const {
    std::vector<std::string> result;
    for (const std::string& key : keys) result.push_back(full(key));
    return result;
  }

  Store& inner_;
  const std::string prefix_;
};

}  // namespace

std::unique_ptr<Store> with_prefix(Store& inner, std::string prefix) {
  return std::make_unique<PrefixStore>(inner, std::move(prefix));
}

}  // namespace ddprun
