// The public class of ddprun/elastic/sharded.h: passes calls on.

#include "ddprun/elastic/sharded.h"

#include <string>
#include <utility>

#include "worker_sdk/group/group_inside.h"
#include "worker_sdk/job/sharded_state.h"

namespace ddprun::elastic {

Sharded::Sharded(std::unique_ptr<ShardedState> state) : state_(std::move(state)) {}
Sharded::~Sharded() = default;

std::size_t Sharded::first() const noexcept { return state_->first(); }
std::size_t Sharded::size() const noexcept { return state_->now().count; }
Buffer Sharded::now() const noexcept { return state_->now(); }
Buffer Sharded::next() {
  if (worker_sdk::GroupInside::refusal) {
    throw Error(ErrorKind::bad_argument, {.operation = "Sharded::next"},
                "\"" + state_->name() +
                    "\" was asked for by the function that commit() calls, which is too late: the "
                    "copy on another rank has been made");
  }
  return state_->next();
}

void Sharded::gather(ProcessGroup& group, Buffer whole) const {
  state_->gather(group, state_->now(), whole);
}
void Sharded::gather_next(ProcessGroup& group, Buffer whole) {
  state_->gather(group, state_->next(), whole);
}

void Sharded::require_type(DataType type) const {
  if (type == state_->type()) return;
  throw Error(ErrorKind::bad_argument, {.operation = "Sharded"},
              "\"" + state_->name() + "\" has elements of " + name_of(state_->type()) + ", not " +
                  name_of(type));
}

}  // namespace ddprun::elastic
