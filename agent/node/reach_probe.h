#pragma once
// Connects to what reach_targets() names, reports once what does not answer, and remembers it for
// the verdict. Used by the Agent with each seat. A node that was reached is not tried again: a
// restart costs nothing.

#include <boost/asio/io_context.hpp>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "agent/node/reach.h"

namespace ddprun::agent {

class ReachProbe {
 public:
  explicit ReachProbe(boost::asio::io_context& loop) : loop_(loop) {}
  ~ReachProbe() { stop(); }

  // Once per target that is not reached.
  std::function<void(const std::string& text)> on_unreachable;

  // In place of those of the round before.
  void begin(std::vector<ReachTarget> targets, ReachView view);
  void stop();  // What is known stays.

  // What is not reached, and what has not answered for so long that it hardly will: sentences, or
  // empty.
  std::string unreachable() const;

 private:
  class Attempt;

  boost::asio::io_context& loop_;
  ReachView view_;
  std::vector<std::shared_ptr<Attempt>> attempts_;
  std::set<std::string> reached_;   // Addresses, behind the kind.
  std::set<std::string> reported_;  // The same.
};

}  // namespace ddprun::agent
