#pragma once
// Makes sockets and files of this thread another user's for a while. Needs root.

#include <sys/fsuid.h>
#include <sys/types.h>

#include <catch2/catch.hpp>

namespace ddprun::test {

constexpr uid_t kSomeUser = 54'321;  // Need not exist.

// Prints why a test case ends early.
inline void skip(const char* why) { WARN(why); }

class AsUser {
 public:
  explicit AsUser(uid_t user) : before_(static_cast<uid_t>(::setfsuid(user))) {}
  ~AsUser() { ::setfsuid(before_); }
  AsUser(const AsUser&) = delete;
  AsUser& operator=(const AsUser&) = delete;

 private:
  const uid_t before_;
};

}  // namespace ddprun::test
