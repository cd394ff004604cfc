// Random conversations of several clients with the StoreMachine, compared after each request with a
// model that is as slow and plain as can be. Queues take part, but waiting for one is store_test's.

#include <catch2/catch.hpp>
#include <map>
#include <random>
#include <set>

#include "common/store/store_machine.h"
#include "tests/support/bytes.h"
#include "tests/support/store_requests.h"

namespace ddprun::store {
namespace {

using test::i64;
using test::StoreRequests;
using test::Strings;
using test::text;
using test::u8;

constexpr int kClients = 5;

class Model {
 public:
  std::map<std::string, std::string> values;
  std::map<std::string, std::vector<std::string>> queues;
  std::map<int, std::string> answers;

  void give_up(int client) {
    missing_.erase(client);
    barriers_.erase(client);
  }

  void set(const std::string& key, const std::string& value) {
    values[key] = value;
    for (auto waiter = missing_.begin(); waiter != missing_.end();) {
      waiter->second.erase(key);
      if (!waiter->second.empty()) {
        ++waiter;
        continue;
      }
      answers[waiter->first] += u8(0);
      waiter = missing_.erase(waiter);
    }
  }

  void wait(int client, const Strings& keys) {
    std::set<std::string> missing;
    for (const std::string& key : keys) {
      if (!values.contains(key) && !queues.contains(key)) missing.insert(key);
    }
    if (missing.empty()) {
      answers[client] += u8(0);
    } else {
      missing_[client] = missing;
    }
  }

  std::int64_t add(const std::string& key, std::int64_t delta) {
    const std::int64_t sum = (values.contains(key) ? std::stoll(values[key]) : 0) + delta;
    set(key, std::to_string(sum));
    return sum;
  }

  void barrier(int client, const std::string& key, int world) {
    barriers_[client] = key;
    if (add(key, 1) < world) return;
    for (auto waiter = barriers_.begin(); waiter != barriers_.end();) {
      if (waiter->second != key) {
        ++waiter;
        continue;
      }
      answers[waiter->first] += u8(0);
      waiter = barriers_.erase(waiter);
    }
  }

  std::string pop(const std::string& key) {
    if (!queues.contains(key)) return i64(0);
    std::vector<std::string>& queue = queues[key];
    const std::string answer = i64(static_cast<std::int64_t>(queue.size())) + text(queue.front());
    queue.erase(queue.begin());
    if (queue.empty()) queues.erase(key);
    return answer;
  }

 private:
  std::map<int, std::set<std::string>> missing_;
  std::map<int, std::string> barriers_;
};

class Conversation {
 public:
  explicit Conversation(unsigned seed) : random_(seed) {
    for (int client = 0; client < kClients; ++client) {
      store_.open(client);
      if (is_new(client)) send(client, StoreRequests::validate());
    }
  }

  void step() {
    const int client = pick(kClients);
    model_.give_up(client);
    const int choice = pick(is_new(client) ? 16 : 8);
    choice < 8 ? common_request(client, choice) : new_request(client, choice);
  }

  std::map<int, std::string> answers;
  const std::map<int, std::string>& expected() const { return model_.answers; }

 private:
  static bool is_new(int client) { return client != 0; }
  int pick(int count) { return static_cast<int>(random_() % static_cast<unsigned>(count)); }
  std::string number_key() { return "/n" + std::to_string(pick(3)); }
  std::string key() { return "/k" + std::to_string(pick(6)); }
  std::string queue() { return "/q" + std::to_string(pick(2)); }
  std::string value() { return std::string(static_cast<std::size_t>(pick(3)), 'v'); }
  Strings keys() {
    Strings list;
    for (int i = pick(4); i > 0; --i) list.push_back(pick(4) ? key() : number_key());
    return list;
  }

  // In one piece or in two.
  void send(int client, const std::string& request) {
    std::vector<StoreReply> replies;
    const std::size_t cut = random_() % (request.size() + 1);
    for (const std::string& part : {request.substr(0, cut), request.substr(cut)}) {
      REQUIRE(store_.feed(client, part, replies).has_value());
    }
    store_.check_invariants();
    for (const StoreReply& reply : replies) answers[reply.connection] += reply.bytes;
  }

  void common_request(int client, int choice);
  void new_request(int client, int choice);

  std::mt19937 random_;
  StoreMachine store_;
  Model model_;
};

void Conversation::common_request(int client, int choice) {
  const StoreRequests to(is_new(client));
  const std::string k = key(), n = number_key(), v = value(), w = value();
  const Strings list = keys();
  std::string& out = model_.answers[client];
  switch (choice) {
    case 0: return model_.set(k, v), send(client, to.set(k, v));
    case 1: {
      const bool missing = !model_.values.contains(k);
      if (missing ? v.empty() : model_.values[k] == v) {
        model_.set(k, w);
        out += text(w);
      } else {
        out += text(missing ? v : model_.values[k]);
      }
      return send(client, to.compare_set(k, v, w));
    }
    case 2:
      return out += text(model_.values.contains(k) ? model_.values[k] : ""),
             send(client, to.get(k));
    case 3: return out += i64(model_.add(n, 7)), send(client, to.add(n, 7));
    case 4: {
      bool all = true;
      for (const std::string& each : list) all &= model_.values.contains(each);
      return out += u8(all ? 0 : 1), send(client, to.check(list));
    }
    case 5: return model_.wait(client, list), send(client, to.wait(list));
    case 6:
      out += i64(static_cast<std::int64_t>(model_.values.size()));
      return send(client, to.key_count());
    default:
      return out += i64(static_cast<std::int64_t>(model_.values.erase(k))),
             send(client, to.remove(k));
  }
}

void Conversation::new_request(int client, int choice) {
  const std::string k = key(), n = number_key(), v = value(), q = queue();
  std::string& out = model_.answers[client];
  switch (choice) {
    case 8: return model_.set(k, model_.values[k] + v), send(client, StoreRequests::append(k, v));
    case 9: {
      const Strings list = keys();
      for (const std::string& each : list) {
        out += text(model_.values.contains(each) ? model_.values[each] : "");
      }
      return send(client, StoreRequests::multi_get(list));
    }
    case 10:
      model_.set(k, v);
      model_.set(n, "1");
      return send(client, StoreRequests::multi_set({{k, v}, {n, "1"}}));
    case 11: return out += u8(1), send(client, StoreRequests::cancel_wait());
    case 12: return model_.queues[q].push_back(v), send(client, StoreRequests::queue_push(q, v));
    case 13: return out += model_.pop(q), send(client, StoreRequests::queue_pop(q));
    case 14: {
      const std::size_t length = model_.queues.contains(q) ? model_.queues[q].size() : 0;
      return out += i64(static_cast<std::int64_t>(length)),
             send(client, StoreRequests::queue_length(q));
    }
    default: return model_.barrier(client, n, 15), send(client, StoreRequests::barrier(n, 15));
  }
}

TEST_CASE("Store: agrees with a plain model in random conversations", "[store]") {
  for (unsigned seed = 0; seed < 200; ++seed) {
    Conversation conversation(seed);
    for (int step = 0; step < 300; ++step) {
      conversation.step();
      CAPTURE(seed, step);
      for (int client = 0; client < kClients; ++client) {
        const auto expected = conversation.expected().find(client);
        const std::string want = expected == conversation.expected().end() ? "" : expected->second;
        REQUIRE(test::hex(conversation.answers[client]) == test::hex(want));
      }
    }
  }
}

}  // namespace
}  // namespace ddprun::store
