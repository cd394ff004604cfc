#include "worker_sdk/store/store_session.h"

namespace ddprun::worker_sdk {
namespace {

// One request: the largest that the limits allow is an append of a value to a key, or a few such in
// a MULTI_SET.
constexpr std::size_t kRequestBytesMax = 4 * wire::kValueBytesMax;
// A client that does not read its answers.
constexpr std::size_t kOutputBytesMax = 64 << 20;

}  // namespace

// Reads the fields of a request. After a failure all further fields are empty; `bad` tells a broken
// request from one of which more bytes are to come.
class StoreSession::Cursor {
 public:
  explicit Cursor(std::string_view bytes) : rest_(bytes) {}

  template <class Integer>
  Integer integer() {
    Integer value{};
    if (!need(sizeof(value))) return value;
    rest_.copy(reinterpret_cast<char*>(&value), sizeof(value));
    rest_.remove_prefix(sizeof(value));
    return value;
  }

  std::string_view string(std::size_t max) {
    const auto size = integer<std::uint64_t>();
    if (ok() && size > max) bad_ = true;
    if (!ok() || !need(size)) return {};
    const std::string_view text = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return text;
  }
  std::string_view key() { return string(wire::kKeyBytesMax); }
  std::string_view value() { return string(wire::kValueBytesMax); }

  std::vector<std::string> keys() {
    const std::size_t n = number();
    std::vector<std::string> keys;
    for (std::size_t i = 0; i < n && ok(); ++i) keys.emplace_back(key());
    return keys;
  }
  std::size_t number() {
    const auto n = integer<std::uint64_t>();
    if (n > wire::kKeysMax) bad_ = true;
    return ok() ? n : 0;
  }

  bool ok() const { return !bad_ && !short_; }
  bool bad() const { return bad_; }
  void set_bad() { bad_ = true; }
  std::string_view rest() const { return rest_; }

 private:
  bool need(std::size_t size) {
    if (rest_.size() < size) short_ = true;
    return ok();
  }

  std::string_view rest_;
  bool bad_ = false;
  bool short_ = false;
};

bool StoreSession::feed(std::string_view bytes, StoreTable& table) {
  input_.append(bytes);
  std::string_view rest = input_;
  while (!rest.empty()) {
    const auto op = static_cast<wire::Op>(rest.front());
    if (!validated_ && op != wire::Op::kValidate) return false;
    Cursor request(rest.substr(1));
    if (!execute(op, request, table) || request.bad()) return false;
    if (!request.ok()) break;
    rest = request.rest();
  }
  input_.erase(0, input_.size() - rest.size());
  return input_.size() <= kRequestBytesMax && output_.size() <= kOutputBytesMax;
}

// False if the request cannot be carried out. Does nothing while the request is incomplete.
bool StoreSession::execute(wire::Op op, Cursor& request, StoreTable& table) {
  switch (op) {
    case wire::Op::kValidate: {
      const auto magic = request.integer<std::uint32_t>();
      if (request.ok()) validated_ = magic == wire::kMagic;
      return !request.ok() || validated_;
    }
    case wire::Op::kPing: {
      const auto nonce = request.integer<std::uint32_t>();
      if (request.ok()) wire::put(output_, nonce);
      return true;
    }
    case wire::Op::kSet: {
      const auto key = request.key();
      const auto value = request.value();
      return !request.ok() || table.set(key, value);
    }
    case wire::Op::kAppend: {
      const auto key = request.key();
      const auto value = request.value();
      return !request.ok() || table.append(key, value);
    }
    case wire::Op::kGet: {
      const auto key = request.key();
      if (!request.ok()) return true;
      const std::string* value = table.find(key);
      wire::put_string(output_, value ? *value : std::string());
      return true;
    }
    case wire::Op::kAdd: {
      const auto key = request.key();
      const auto delta = request.integer<std::int64_t>();
      if (!request.ok()) return true;
      const auto value = table.add(key, delta);
      if (value) wire::put(output_, *value);
      return value.has_value();
    }
    default: return execute_many(op, request, table);
  }
}

bool StoreSession::execute_many(wire::Op op, Cursor& request, StoreTable& table) {
  switch (op) {
    case wire::Op::kCompareSet: {
      const auto key = request.key();
      const auto expected = request.value();
      const auto desired = request.value();
      if (!request.ok()) return true;
      const auto now = table.compare_set(key, expected, desired);
      if (now) wire::put_string(output_, *now);
      return now.has_value();
    }
    case wire::Op::kCheck: {
      const auto keys = request.keys();
      if (request.ok()) output_.push_back(table.has_all(keys) ? wire::kReady : 1);
      return true;
    }
    case wire::Op::kWait: {
      auto keys = request.keys();
      if (request.ok()) start_waiting(std::move(keys), table);
      return true;
    }
    case wire::Op::kCancelWait:
      waiting_ = false;
      output_.push_back(wire::kWaitCanceled);
      return true;
    case wire::Op::kGetNumKeys:
      wire::put(output_, static_cast<std::int64_t>(table.size()));
      return true;
    case wire::Op::kDeleteKey: {
      const auto key = request.key();
      if (request.ok()) wire::put(output_, std::int64_t{table.erase(key)});
      return true;
    }
    case wire::Op::kMultiGet: {
      const auto keys = request.keys();
      if (!request.ok()) return true;
      for (const std::string& key : keys) {
        const std::string* value = table.find(key);
        wire::put_string(output_, value ? *value : std::string());
        if (output_.size() > kOutputBytesMax) return false;
      }
      return true;
    }
    case wire::Op::kMultiSet: {
      std::vector<std::pair<std::string_view, std::string_view>> pairs(request.number());
      for (auto& [key, value] : pairs) {
        key = request.key();
        value = request.value();
      }
      if (!request.ok()) return true;
      for (const auto& [key, value] : pairs) {
        if (!table.set(key, value)) return false;
      }
      return true;
    }
    default: return false;
  }
}

void StoreSession::start_waiting(std::vector<std::string> keys, const StoreTable& table) {
  awaited_ = std::move(keys);
  waiting_ = true;
  wake(table);
}

void StoreSession::wake(const StoreTable& table) {
  if (!waiting_ || !table.has_all(awaited_)) return;
  waiting_ = false;
  output_.push_back(wire::kStopWaiting);
}

}  // namespace ddprun::worker_sdk
