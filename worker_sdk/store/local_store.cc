#include "worker_sdk/store/local_store.h"

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
