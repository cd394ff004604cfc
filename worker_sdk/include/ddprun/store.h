#pragma once
// The key-value store through which the ranks of a job find each other.

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace ddprun {

/// Keys and values are bytes. Every call may be made from any thread; calls on one Store are
/// carried out one after the other, so a waiting thread keeps the others waiting. Throws Error.
class Store {
 public:
  virtual ~Store() = default;

  virtual void set(std::string_view key, std::string_view value) = 0;
  /// Waits until the key is there, at most `timeout`; the error names the key.
  virtual std::string get(std::string_view key, std::chrono::milliseconds timeout) = 0;
  /// Adds to a decimal counter, which starts at 0, and returns the new value.
  virtual std::int64_t add(std::string_view key, std::int64_t delta) = 0;
  virtual bool check(const std::vector<std::string>& keys) = 0;  ///< True if all are there.
  virtual void wait(const std::vector<std::string>& keys, std::chrono::milliseconds timeout) = 0;
  virtual bool erase(std::string_view key) = 0;  ///< True if it was there.
};

/// A client of PyTorch's TCPStore or of ddprun's own server of that protocol (wire format of
/// PyTorch 2.2 and later). Resolves `host`, tries each of its addresses and retries until
/// `timeout`.
std::unique_ptr<Store> connect_tcp_store(const std::string& host, std::uint16_t port,
                                         std::chrono::milliseconds timeout);

/// A store in one file that all ranks can lock and append to. The file is created if it is missing
/// and must be new for each run.
std::unique_ptr<Store> open_file_store(const std::string& path);

/// `inner` with `prefix` + "/" before every key. `inner` must outlive the result.
std::unique_ptr<Store> with_prefix(Store& inner, std::string prefix);

}  // namespace ddprun
