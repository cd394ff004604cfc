#pragma once
// One client of the small store server: bytes in, bytes out. store_host.cc owns the sockets.

#include <string>
#include <string_view>
#include <vector>

#include "worker_sdk/store/store_table.h"
#include "worker_sdk/store/store_wire.h"

namespace ddprun::worker_sdk {

class StoreSession {
 public:
  // Carries out all requests that are complete. False: the client broke the protocol or a limit,
  // and the connection must be closed.
  bool feed(std::string_view bytes, StoreTable& table);

  // To be called after `table` may have changed: answers a WAIT whose keys are there now.
  void wake(const StoreTable& table);

  // Answers, for the caller to send and cut off at the front.
  std::string& output() { return output_; }

 private:
  class Cursor;
  bool execute(wire::Op op, Cursor& request, StoreTable& table);
  bool execute_many(wire::Op op, Cursor& request, StoreTable& table);
  void start_waiting(std::vector<std::string> keys, const StoreTable& table);

  bool validated_ = false;
  bool waiting_ = false;
  std::vector<std::string> awaited_;
  std::string input_;
  std::string output_;
};

}  // namespace ddprun::worker_sdk
