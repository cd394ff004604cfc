#pragma once
// Writes the store's requests as PyTorch clients do, for tests that talk to the store.

#include <string>
#include <utility>
#include <vector>

#include "common/store/store_wire.h"

namespace ddprun::test {

using Strings = std::vector<std::string>;

// The client of one dialect: its numbers differ, its fields do not.
class StoreRequests {
 public:
  explicit StoreRequests(bool new_dialect = true) : shift_(new_dialect ? 1 : 0) {}

  static std::string validate() { return std::string("\x00\xce\xf7\x85\x3c", 5); }
  static std::string ping(std::uint32_t nonce) {
    std::string out(1, 13);
    store::append_u32(out, nonce);
    return out;
  }
  std::string set(const std::string& key, const std::string& value) const {
    return strings(0 + shift_, {key, value});
  }
  std::string compare_set(const std::string& key, const std::string& expected,
                          const std::string& desired) const {
    return strings(1 + shift_, {key, expected, desired});
  }
  std::string get(const std::string& key) const { return strings(2 + shift_, {key}); }
  std::string add(const std::string& key, std::int64_t delta) const {
    return numbered(3 + shift_, key, delta);
  }
  std::string check(const Strings& keys) const { return list(4 + shift_, keys); }
  std::string wait(const Strings& keys) const { return list(5 + shift_, keys); }
  std::string key_count() const { return std::string(1, static_cast<char>(6 + shift_)); }
  static std::string watch(const std::string& key) { return strings(7, {key}); }   // 1.13 only.
  static std::string remove(const std::string& key) { return strings(8, {key}); }  // 8 in both.

  static std::string append(const std::string& key, const std::string& more) {
    return strings(9, {key, more});
  }
  static std::string multi_get(const Strings& keys) { return list(10, keys); }
  static std::string multi_set(const std::vector<std::pair<std::string, std::string>>& pairs) {
    std::string out(1, 11);
    store::append_i64(out, static_cast<std::int64_t>(pairs.size()));
    for (const auto& [key, value] : pairs) {
      store::append_string(out, key);
      store::append_string(out, value);
    }
    return out;
  }
  static std::string cancel_wait() { return std::string(1, 12); }
  static std::string queue_push(const std::string& key, const std::string& element) {
    return strings(14, {key, element});
  }
  static std::string queue_pop(const std::string& key) { return strings(15, {key}); }
  static std::string queue_length(const std::string& key) { return strings(16, {key}); }
  static std::string list_keys() { return std::string(1, 17); }
  static std::string barrier(const std::string& key, std::int64_t world_size) {
    return numbered(18, key, world_size);
  }

 private:
  static std::string strings(int opcode, const Strings& fields) {
    std::string out(1, static_cast<char>(opcode));
    for (const std::string& field : fields) store::append_string(out, field);
    return out;
  }
  static std::string numbered(int opcode, const std::string& key, std::int64_t number) {
    std::string out = strings(opcode, {key});
    store::append_i64(out, number);
    return out;
  }
  static std::string list(int opcode, const Strings& keys) {
    std::string out(1, static_cast<char>(opcode));
    store::append_i64(out, static_cast<std::int64_t>(keys.size()));
    for (const std::string& key : keys) store::append_string(out, key);
    return out;
  }

  const int shift_;
};

inline std::string u8(int value) { return std::string(1, static_cast<char>(value)); }
inline std::string i64(std::int64_t value) {
  std::string out;
  store::append_i64(out, value);
  return out;
}
inline std::string text(const std::string& value) {
  std::string out;
  store::append_string(out, value);
  return out;
}

}  // namespace ddprun::test
