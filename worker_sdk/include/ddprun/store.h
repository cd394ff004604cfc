#pragma once
// The key-value store by which the ranks of a job exchange addresses.

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace ddprun {

/// Keys and values are bytes. Any thread may make any call. Calls on one Store run one after the
/// other, so a waiting call blocks those of other threads. Throws Error.
class Store {
 public:
  virtual ~Store() = default;

  virtual void set(std::string_view key, std::string_view value) = 0;
  /// Waits until the key exists, at most `timeout`; the error names the key.
  virtual std::string get(std::string_view key, std::chrono::milliseconds timeout) = 0;
  /// Adds to a decimal counter that starts at 0 and returns the new value. If the key's value is
  /// not a decimal number, or the sum does not fit, a TCPStore closes the connection, and this and
  /// every later call of this client throws Error(unreachable); other stores throw
  /// Error(bad_argument) and remain usable.
  virtual std::int64_t add(std::string_view key, std::int64_t delta) = 0;
  virtual bool check(const std::vector<std::string>& keys) = 0;  ///< True if all exist.
  virtual void wait(const std::vector<std::string>& keys, std::chrono::milliseconds timeout) = 0;
  virtual bool erase(std::string_view key) = 0;  ///< True if it existed.
};

/// A client of PyTorch's TCPStore or of ddprun's server for the same protocol (wire format of
/// PyTorch 2.2 and later). Resolves `host` and retries each of its addresses until `timeout`.
std::unique_ptr<Store> connect_tcp_store(const std::string& host, std::uint16_t port,
                                         std::chrono::milliseconds timeout);

/// A store in one file, which all ranks must be able to lock and append to. Creates the file if it
/// is missing. Each run needs a new file.
std::unique_ptr<Store> open_file_store(const std::string& path);

/// Forwards to `inner` with `prefix` + "/" before every key. `inner` must outlive the result.
std::unique_ptr<Store> with_prefix(Store& inner, std::string prefix);

}  // namespace ddprun
