#pragma once
// Requests of PyTorch's TCPStore, read from a stream of bytes (docs/protocol.md, "The store").
//
// The format has no frame length and no request number: a request is an opcode byte and the fields
// that the opcode calls for. There are two dialects, distinguished by a connection's first bytes:
// PyTorch 2.2 and later open with VALIDATE (00 CE F7 85 3C), PyTorch 1.13 and 2.0 open with
// anything else. 2.1 speaks the old dialect with other numbers from 7 up and cannot be
// distinguished from 1.13, so those operations fail there. Pure: bytes in, requests out, and back.
// Used by the StoreMachine, and by the SDK's client, which writes requests.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/error.h"

namespace ddprun::store {

// The operations, whatever their number in the client's dialect. In the order of the table of
// dialects, see store_wire.cc.
enum class StoreOp {
  kValidate,    // "I speak 2.2+"; must come first, has no answer.
  kPing,        // Echo a number.
  kSet,         // Store a value; no answer.
  kCompareSet,  // Store a value if the present one is as expected.
  kGet,         // The value, empty if there is none.
  kAdd,         // Add to a value that is decimal text.
  kCheck,       // Are all these keys there?
  kWait,        // Answer once all these keys are there.
  kCancelWait,  // Give up waiting.
  kKeyCount,    // How many keys there are.
  kWatch,       // 1.13 only: notify this connection of each change of a key.
  kDelete,      // Remove a key.
  kAppend,      // Append to a value; no answer.
  kMultiGet,    // Several values.
  kMultiSet,    // Store several values; no answer.
  kQueuePush,   // Append to a queue; wakes one waiter.
  kQueuePop,    // Take from a queue.
  kQueueLength,
  kListKeys,  // Every key.
  kBarrier,   // Answer once so many have come.
};

Failure bad_message(std::string context);

struct StoreLimits {
  std::size_t key_bytes_max = 8 << 10;
  std::size_t value_bytes_max = 8 << 20;
  std::size_t request_keys_max = 131'072;    // Keys named by one request.
  std::size_t request_bytes_max = 64 << 20;  // One request, all fields together.
  std::size_t reply_bytes_max = 64 << 20;    // Answers to what one feed() carried.
  std::size_t keys_max = 1 << 20;            // Keys, queues and watches of the whole store.
  std::size_t store_bytes_max = std::size_t{1} << 30;  // Keys and values of the whole store.
};

// For a store inside a rank, which shares its memory with the training program.
constexpr StoreLimits kRankStoreLimits{.request_bytes_max = 32 << 20, .keys_max = 128 << 10};

struct StoreRequest {
  StoreOp op = StoreOp::kPing;
  std::vector<std::string> keys = {};
  std::vector<std::string> values = {};  // COMPARE_SET: expected, desired.
  std::int64_t number = 0;               // ADD: delta; BARRIER: world size; PING: nonce.
};

// `request` in the dialect of 2.2 and later, which must have its operation, with as many keys and
// values as that has.
std::string encode(const StoreRequest& request);

struct StoreShape;  // A row of the table of dialects.
enum class StoreField : std::uint8_t;

// Cuts one connection's bytes, which may arrive in pieces of any size, into requests. No byte is
// read twice, however small the pieces are.
class StoreReader {
 public:
  explicit StoreReader(const StoreLimits& limits) : limits_(limits) {}

  void feed(std::string_view bytes) { buffer_.append(bytes); }

  // The next whole request, which is valid until the next call; null if more bytes are needed; a
  // Failure if these bytes are not a request, after which the stream cannot be read any further.
  Result<StoreRequest*> next();

  // The client opened with VALIDATE. Known once next() has returned a request.
  bool new_dialect() const { return dialect_ == Dialect::kNew; }

 private:
  enum class Dialect { kUnknown, kOld, kNew };

  bool find_dialect();
  Result<bool> begin_request();
  Result<bool> read_fields();
  Result<bool> read_field(StoreField field);
  Result<bool> read_list(StoreField field);
  Result<bool> read_string(std::vector<std::string>& into, std::size_t bytes_max, const char* what);
  Result<bool> read_integer(std::size_t bytes);
  Result<bool> check_magic();
  std::string_view rest() const { return std::string_view(buffer_).substr(consumed_); }
  void consume(std::size_t bytes);
  void drop_consumed();

  const StoreLimits& limits_;
  std::string buffer_;
  std::size_t consumed_ = 0;
  Dialect dialect_ = Dialect::kUnknown;

  // The request being read.
  const StoreShape* shape_ = nullptr;
  StoreRequest request_;
  std::size_t field_ = 0;  // Of shape_->fields.
  std::size_t request_bytes_ = 0;
  std::optional<std::uint64_t> items_left_;  // Of the list being read.
};

constexpr std::uint8_t kAllThere = 0;     // Answers a CHECK; 1: not all.
constexpr std::uint8_t kStopWaiting = 0;  // Answers a WAIT or a BARRIER, when it is over.
constexpr std::uint8_t kWaitCanceled = 1;

// Pieces of answers: integers are little-endian, strings follow their 8-byte length.
void append_u8(std::string& out, std::uint8_t value);
void append_u32(std::string& out, std::uint32_t value);
void append_i64(std::string& out, std::int64_t value);
void append_string(std::string& out, std::string_view value);

}  // namespace ddprun::store
