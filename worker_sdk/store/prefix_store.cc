// with_prefix(): a part of the keys of another store.

#include "ddprun/store.h"

namespace ddprun {
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
