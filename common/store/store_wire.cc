#include "common/store/store_wire.h"

#include <array>

#include "common/assert.h"

namespace ddprun::store {

enum class StoreField : std::uint8_t { kKey, kValue, kNumber, kNonce, kMagic, kKeyList, kPairList };

// An operation's number in the dialect of 1.13 (-1: it has none there) and in that of 2.2 and
// later, and the fields that follow it.
struct StoreShape {
  StoreOp op;
  int old_opcode;
  int new_opcode;
  std::array<StoreField, 3> fields = {};
  std::size_t field_count = 0;

  constexpr StoreShape(StoreOp o, int old_number, int new_number,
                       std::initializer_list<StoreField> list)
      : op(o), old_opcode(old_number), new_opcode(new_number) {
    for (const StoreField field : list) fields[field_count++] = field;
  }
};

namespace {

using enum StoreField;

// The dialects. The same table is in docs/protocol.md.
constexpr StoreShape kShapes[] = {
    {StoreOp::kValidate, -1, 0, {kMagic}},
    {StoreOp::kPing, -1, 13, {kNonce}},
    {StoreOp::kSet, 0, 1, {kKey, kValue}},
    {StoreOp::kCompareSet, 1, 2, {kKey, kValue, kValue}},
    {StoreOp::kGet, 2, 3, {kKey}},
    {StoreOp::kAdd, 3, 4, {kKey, kNumber}},
    {StoreOp::kCheck, 4, 5, {kKeyList}},
    {StoreOp::kWait, 5, 6, {kKeyList}},
    {StoreOp::kCancelWait, -1, 12, {}},
    {StoreOp::kKeyCount, 6, 7, {}},
    {StoreOp::kWatch, 7, -1, {kKey}},
    {StoreOp::kDelete, 8, 8, {kKey}},
    {StoreOp::kAppend, -1, 9, {kKey, kValue}},
    {StoreOp::kMultiGet, -1, 10, {kKeyList}},
    {StoreOp::kMultiSet, -1, 11, {kPairList}},
    {StoreOp::kQueuePush, -1, 14, {kKey, kValue}},
    {StoreOp::kQueuePop, -1, 15, {kKey}},
    {StoreOp::kQueueLength, -1, 16, {kKey}},
    {StoreOp::kListKeys, -1, 17, {}},
    {StoreOp::kBarrier, -1, 18, {kKey, kNumber}},
};

using Opcodes = std::array<const StoreShape*, 19>;

constexpr Opcodes opcodes_of(int StoreShape::*number) {
  Opcodes opcodes{};
  for (const StoreShape& shape : kShapes) {
    if (shape.*number >= 0) opcodes[static_cast<std::size_t>(shape.*number)] = &shape;
  }
  return opcodes;
}

constexpr Opcodes kOld = opcodes_of(&StoreShape::old_opcode);
constexpr Opcodes kNew = opcodes_of(&StoreShape::new_opcode);

constexpr std::string_view kValidate("\x00\xce\xf7\x85\x3c", 5);
constexpr std::uint32_t kMagicNumber = 0x3c85f7ce;
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

// The fields of one request, taken in their order.
class FieldWriter {
 public:
  FieldWriter(std::string& out, const StoreRequest& request) : out_(out), request_(request) {}

  void append(StoreField field) {
    switch (field) {
      case kKey: return append_string(out_, request_.keys.at(keys_++));
      case kValue: return append_string(out_, request_.values.at(values_++));
      case kNumber: return append_i64(out_, request_.number);
      case kNonce: return append_u32(out_, static_cast<std::uint32_t>(request_.number));
      case kMagic: return append_u32(out_, kMagicNumber);
      case kKeyList:
      case kPairList: return append_list(field);
    }
  }
  bool complete() const {
    return keys_ == request_.keys.size() && values_ == request_.values.size();
  }

 private:
  void append_list(StoreField field) {
    append_i64(out_, static_cast<std::int64_t>(request_.keys.size()));
    while (keys_ < request_.keys.size()) {
      append(kKey);
      if (field == kPairList) append(kValue);
    }
  }

  std::string& out_;
  const StoreRequest& request_;
  std::size_t keys_ = 0;
  std::size_t values_ = 0;
};

}  // namespace

Failure bad_message(std::string context) { return {Errc::kBadMessage, std::move(context)}; }

std::string encode(const StoreRequest& request) {
  const StoreShape& shape = kShapes[static_cast<std::size_t>(request.op)];
  DDPRUN_ASSERT(shape.op == request.op && shape.new_opcode >= 0);
  std::string out(1, static_cast<char>(shape.new_opcode));
  FieldWriter writer(out, request);
  for (std::size_t i = 0; i < shape.field_count; ++i) writer.append(shape.fields[i]);
  DDPRUN_ASSERT(writer.complete());
  return out;
}

void append_u8(std::string& out, std::uint8_t value) { append_little_endian(out, value, 1); }
void append_u32(std::string& out, std::uint32_t value) { append_little_endian(out, value, 4); }
void append_i64(std::string& out, std::int64_t value) {
  append_little_endian(out, static_cast<std::uint64_t>(value), 8);
}
void append_string(std::string& out, std::string_view value) {
  append_little_endian(out, value.size(), kLengthBytes);
  out += value;
}

// False while the first bytes may still become a VALIDATE. They are few, and a request of the old
// dialect that begins like them is longer, so no client waits for an answer meanwhile.
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
  const Opcodes& opcodes = dialect_ == Dialect::kNew ? kNew : kOld;
  shape_ = opcode < opcodes.size() ? opcodes[opcode] : nullptr;
  if (!shape_) return bad_message("reading a store request with opcode " + std::to_string(opcode));
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

Result<bool> StoreReader::read_field(StoreField field) {
  switch (field) {
    case kKey: return read_string(request_.keys, limits_.key_bytes_max, "key");
    case kValue: return read_string(request_.values, limits_.value_bytes_max, "value");
    case kNumber: return read_integer(8);
    case kNonce: return read_integer(4);
    case kMagic: return check_magic();
    case kKeyList:
    case kPairList: return read_list(field);
  }
  DDPRUN_ASSERT(false);
  return false;
}

Result<bool> StoreReader::check_magic() {
  Result<bool> read = read_integer(4);
  if (read && *read && request_.number != kMagicNumber) {
    return bad_message("reading a VALIDATE with a wrong number");
  }
  return read;
}

Result<bool> StoreReader::read_integer(std::size_t bytes) {
  if (rest().size() < bytes) return false;
  request_.number = static_cast<std::int64_t>(decode(rest().substr(0, bytes)));
  consume(bytes);
  return true;
}

Result<bool> StoreReader::read_list(StoreField field) {
  if (!items_left_) {
    if (rest().size() < kLengthBytes) return false;
    const std::uint64_t count = decode(rest().substr(0, kLengthBytes));
    if (count > limits_.request_keys_max) {
      return bad_message("reading a store request for " + std::to_string(count) + " keys");
    }
    consume(kLengthBytes);
    items_left_ = count;
  }
  for (; *items_left_ > 0; --*items_left_) {
    // A pair may be cut between its halves: the key is there, its value is not.
    if (field == kKeyList || request_.keys.size() == request_.values.size()) {
      Result<bool> key = read_string(request_.keys, limits_.key_bytes_max, "key");
      if (!key || !*key) return key;
    }
    if (field == kPairList) {
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
    return bad_message("reading a store " + std::string(what) + " of " + std::to_string(length) +
                       " bytes");
  }
  if (request_bytes_ + kLengthBytes + length > limits_.request_bytes_max) {
    return bad_message("reading a store request of more than " +
                       std::to_string(limits_.request_bytes_max) + " bytes");
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

}  // namespace ddprun::store
