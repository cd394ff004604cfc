#pragma once
// Who of a store's clients waits for which key. Waking one waiter costs the same however many wait
// and however many keys each of them waits for. Pure; used by the StoreMachine.

#include <cstddef>
#include <list>
#include <string>
#include <unordered_map>
#include <vector>

namespace ddprun::store {

class StoreWaits {
 public:
  // `connection`, which must not be waiting, waits until each of `keys` (at least one) has been
  // woken.
  void begin(int connection, const std::vector<std::string>& keys);

  bool waiting(int connection) const { return waiters_.contains(connection); }
  void cancel(int connection);  // Forgets what the connection waits for, if anything.

  // Wakes everyone who waits for `key`, or whoever has waited longest; appends to `done` those who
  // now wait for nothing any more.
  void wake_all(const std::string& key, std::vector<int>& done);
  void wake_first(const std::string& key, std::vector<int>& done);

  std::size_t size() const {
    return places_;
  }  // Pairs of a connection and a key it still waits for.
  std::size_t waiter_count() const { return waiters_.size(); }
  bool awaited(const std::string& key) const { return lines_.contains(key); }

  // Aborts unless lines and waiters name each other, none is empty and size() counts them.
  void check_invariants() const;

 private:
  struct Place {
    int connection;
    std::size_t index;  // Into the waiter's `links`.
  };
  using Line = std::list<Place>;  // In the order of arrival.
  using Node =
      std::pair<const std::string, Line>;  // Of lines_; does not move when others come and go.
  struct Link {
    Node* node;  // Null once woken.
    Line::iterator place;
  };
  struct Waiter {
    std::vector<Link> links;
    std::size_t missing = 0;
  };

  void wake_front(Node& node, std::vector<int>& done);

  std::unordered_map<std::string, Line> lines_;  // None is empty.
  std::unordered_map<int, Waiter> waiters_;
  std::size_t places_ = 0;
};

}  // namespace ddprun::store
