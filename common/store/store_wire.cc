#include "common/store/store_wire.h"

#include <array>
#include <span>

#include "common/assert.h"

namespace ddprun::rendezvous {
namespace {

constexpr std::string_view kValidate("\x00\xce\xf7\x85\x3c", 5);
constexpr std::int64_t kMagic = 0x3c85f7ce;
constexpr std::size_t kLengthBytes = 8;

std::uint64_t decode(std::string_view bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = bytes.size(); i-- > 0;) {
    value = value << 8 | static_cast<unsigned char>(bytes[i]);
  }
  return value;
}

void append_little_endian(std::string& out, std::uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) out += static_cast<char>(value >> 8 * i & 0xff);
}

Failure bad(std::string context) { return {Errc::kBadMessage, std::move(context)}; }

}  // namespace

void append_u8(std::string& out, std::uint8_t value) { append_little_endian(out, value, 1); }
void append_u32(std::string& out, std::uint32_t value) { append_little_endian(out, value, 4); }
void append_i64(std::string& out, std::int64_t value) {
  append_little_endian(out, static_cast<std::uint64_t>(value), 8);
}
void append_string(std::string& out, std::string_view value) {
  append_little_endian(out, value.size(), kLengthBytes);
  out += value;
}

struct StoreReader::Shape {
  StoreOp op;
  std::array<Field, 3> fields = {};
  std::size_t field_count = 0;

  constexpr Shape(StoreOp o, std::initializer_list<Field> list) : op(o) {
    for (const Field field : list) fields[field_count++] = field;
  }
};

const StoreReader::Shape* StoreReader::shape_of(Dialect dialect, unsigned char opcode) {
  using enum Field;
  static constexpr Shape kNew[] = {
      {StoreOp::kValidate, {kMagic}},
      {StoreOp::kSet, {kKey, kValue}},
      {StoreOp::kCompareSet, {kKey, kValue, kValue}},
      {StoreOp::kGet, {kKey}},
      {StoreOp::kAdd, {kKey, kNumber}},
      {StoreOp::kCheck, {kKeyList}},
      {StoreOp::kWait, {kKeyList}},
      {StoreOp::kKeyCount, {}},
      {StoreOp::kDelete, {kKey}},
      {StoreOp::kAppend, {kKey, kValue}},
      {StoreOp::kMultiGet, {kKeyList}},
      {StoreOp::kMultiSet, {kPairList}},
      {StoreOp::kCancelWait, {}},
      {StoreOp::kPing, {kNonce}},
      {StoreOp::kQueuePush, {kKey, kValue}},
      {StoreOp::kQueuePop, {kKey}},
      {StoreOp::kQueueLength, {kKey}},
      {StoreOp::kListKeys, {}},
      {StoreOp::kBarrier, {kKey, kNumber}},
  };
  static constexpr Shape kOld[] = {
      {StoreOp::kSet, {kKey, kValue}}, {StoreOp::kCompareSet, {kKey, kValue, kValue}},
      {StoreOp::kGet, {kKey}},         {StoreOp::kAdd, {kKey, kNumber}},
      {StoreOp::kCheck, {kKeyList}},   {StoreOp::kWait, {kKeyList}},
      {StoreOp::kKeyCount, {}},        {StoreOp::kWatch, {kKey}},
      {StoreOp::kDelete, {kKey}},
  };
  const std::span<const Shape> shapes =
      dialect == Dialect::kNew ? std::span<const Shape>(kNew) : std::span<const Shape>(kOld);
  return opcode < shapes.size() ? &shapes[opcode] : nullptr;
}

// False while the first bytes may still become a VALIDATE. They are few, and a request of the old
// dialect that begins like them is longer, so nobody waits for an answer meanwhile.
bool StoreReader::find_dialect() {
  const std::string_view head = rest().substr(0, kValidate.size());
  if (!kValidate.starts_with(head)) {
    dialect_ = Dialect::kOld;
  } else if (head.size() == kValidate.size()) {
    dialect_ = Dialect::kNew;
  }
  return dialect_ != Dialect::kUnknown;
}

Result<StoreRequest*> StoreReader::next() {
  if (dialect_ == Dialect::kUnknown && !find_dialect()) return nullptr;
  if (!shape_) {
    const Result<bool> begun = begin_request();
    if (!begun) return begun.error();
    if (!*begun) return nullptr;
  }
  const Result<bool> whole = read_fields();
  if (!whole) return whole.error();
  if (!*whole) {
    drop_consumed();
    return nullptr;
  }
  shape_ = nullptr;
  return &request_;
}

Result<bool> StoreReader::begin_request() {
  if (rest().empty()) {
    drop_consumed();
    return false;
  }
  const auto opcode = static_cast<unsigned char>(rest().front());
  shape_ = shape_of(dialect_, opcode);
  if (!shape_) return bad("reading a store request with opcode " + std::to_string(opcode));
  request_bytes_ = 0;
  consume(1);
  request_.op = shape_->op;
  request_.keys.clear();
  request_.values.clear();
  request_.number = 0;
  field_ = 0;
  items_left_.reset();
  return true;
}

Result<bool> StoreReader::read_fields() {
  for (; field_ < shape_->field_count; ++field_) {
    Result<bool> read = read_field(shape_->fields[field_]);
    if (!read || !*read) return read;
  }
  return true;
}

Result<bool> StoreReader::read_field(Field field) {
  switch (field) {
    case Field::kKey: return read_string(request_.keys, limits_.key_bytes_max, "key");
    case Field::kValue: return read_string(request_.values, limits_.value_bytes_max, "value");
    case Field::kNumber: return read_integer(8);
    case Field::kNonce: return read_integer(4);
    case Field::kMagic: return check_magic();
    case Field::kKeyList:
    case Field::kPairList: return read_list(field);
  }
  DDPRUN_ASSERT(false);
  return false;
}

Result<bool> StoreReader::check_magic() {
  Result<bool> read = read_integer(4);
  if (read && *read && request_.number != kMagic)
    return bad("reading a VALIDATE with a wrong number");
  return read;
}

Result<bool> StoreReader::read_integer(std::size_t bytes) {
  if (rest().size() < bytes) return false;
  request_.number = static_cast<std::int64_t>(decode(rest().substr(0, bytes)));
  consume(bytes);
  return true;
}

Result<bool> StoreReader::read_list(Field field) {
  if (!items_left_) {
    if (rest().size() < kLengthBytes) return false;
    const std::uint64_t count = decode(rest().substr(0, kLengthBytes));
    if (count > limits_.request_keys_max) {
      return bad("reading a store request for " + std::to_string(count) + " keys");
    }
    consume(kLengthBytes);
    items_left_ = count;
  }
  for (; *items_left_ > 0; --*items_left_) {
    // A pair may be cut between its halves: the key is there, its value is not.
    if (field == Field::kKeyList || request_.keys.size() == request_.values.size()) {
      Result<bool> key = read_string(request_.keys, limits_.key_bytes_max, "key");
      if (!key || !*key) return key;
    }
    if (field == Field::kPairList) {
      Result<bool> value = read_string(request_.values, limits_.value_bytes_max, "value");
      if (!value || !*value) return value;
    }
  }
  items_left_.reset();
  return true;
}

Result<bool> StoreReader::read_string(std::vector<std::string>& into, std::size_t bytes_max,
                                      const char* what) {
  if (rest().size() < kLengthBytes) return false;
  const std::uint64_t length = decode(rest().substr(0, kLengthBytes));
  if (length > bytes_max) {
    return bad("reading a store " + std::string(what) + " of " + std::to_string(length) + " bytes");
  }
  if (request_bytes_ + kLengthBytes + length > limits_.request_bytes_max) {
    return bad("reading a store request of more than " + std::to_string(limits_.request_bytes_max) +
               " bytes");
  }
  if (rest().size() < kLengthBytes + length) return false;
  into.emplace_back(rest().substr(kLengthBytes, length));
  consume(kLengthBytes + length);
  return true;
}

void StoreReader::consume(std::size_t bytes) {
  consumed_ += bytes;
  request_bytes_ += bytes;
}

// Done once all whole requests have been read, so that the bytes moved are at most those of one
// field.
void StoreReader::drop_consumed() {
  buffer_.erase(0, consumed_);
  consumed_ = 0;
  // A connection that once carried a large value does not keep its room.
  if (buffer_.empty() && buffer_.capacity() > 64 << 10) std::string().swap(buffer_);
}

}  // namespace ddprun::rendezvous
