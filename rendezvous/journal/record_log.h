#pragma once
// Where a daemon's records lie: a file, or etcd. The Server appends to it and lets nothing out
// before the records made with it are durable. What a failure means is the log's own business: it
// tries again until the records are durable, or reports that this daemon may not decide any more.
// Pure.

#include <functional>
#include <optional>
#include <string>

#include "common/error.h"
#include "common/time.h"

namespace ddprun::rendezvous {

class RecordLog {
 public:
  virtual ~RecordLog() = default;

  // `done` is called once they are durable, in the order of the calls, perhaps from inside this
  // call. Never, if this daemon may not decide any more.
  virtual void append(std::string records, std::function<void()> done) = 0;

  // `snapshot` stands for everything appended so far, and takes its place once it is durable; a
  // crash before that loses nothing. If it cannot be written, the log stays as it is.
  virtual void replace(std::string snapshot) = 0;
  virtual bool wants_snapshot() const = 0;

  // What keeps records from becoming durable just now, as a sentence.
  virtual std::optional<std::string> trouble() const = 0;

  // False once another daemon may have taken over. Called before each event.
  virtual bool may_decide(TimePoint /*now*/) const { return true; }

  // The last call: this daemon decides nothing any more. `done` once the next one may begin.
  virtual void leave(std::function<void()> done) { done(); }
};

}  // namespace ddprun::rendezvous
