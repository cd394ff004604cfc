#include "agent/workers/end_slots.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

#include "agent/workers/child_start.h"

namespace ddprun::agent {
namespace {

// Above the numbers that ends get in a worker.
UniqueFd placeholder(int null) {
  return UniqueFd(::fcntl(null, F_DUPFD_CLOEXEC, kLinkDescriptor + 1));
}

}  // namespace

EndSlots::EndSlots(std::size_t children) {
  const UniqueFd opened(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  const bool can_close = ::syscall(SYS_close_range, ~0U, ~0U, 0) == 0;  // Nothing has that number.
  if (!opened || !can_close) return;
  null_ = placeholder(opened.get());
  int last = null_.get();
  std::vector<Numbers> numbers(children);
  for (Numbers& child : numbers) {
    for (int& number : child) {
      number = places_.emplace_back(placeholder(opened.get())).get();
      if (number < 0) return;
      last = std::max(last, number);
    }
  }
  numbers_ = std::move(numbers);
  table_end_ = static_cast<unsigned>(last) + 1;
  make_room_after(last);
}

const EndSlots::Numbers* EndSlots::of_child(std::size_t child) const {
  return numbers_.empty() ? nullptr : &numbers_[child % numbers_.size()];
}

// A table never shrinks.
void EndSlots::make_room_after(int number) {
  constexpr int kAtLeast = 1024;
  room_ = std::max({kAtLeast, 2 * room_, number + 2 * kMargin});
  const UniqueFd far(::fcntl(null_.get(), F_DUPFD_CLOEXEC, room_ - 1));
}

void EndSlots::clear() const {
  if (numbers_.empty()) return;
  for (const UniqueFd& place : places_) ::dup3(null_.get(), place.get(), O_CLOEXEC);
}

}  // namespace ddprun::agent
