#include "worker_sdk/join/reopened_store.h"

#include "worker_sdk/store/tcp_store.h"

namespace ddprun::worker_sdk {
namespace {

// A store that does not answer within this is of no use to explain a failure.
constexpr std::chrono::milliseconds kReopenTimeout{500};

}  // namespace

std::function<std::shared_ptr<Store>()> reopening(const Rendezvous& at,
                                                  std::shared_ptr<Store> given) {
  if (at.kind == Rendezvous::Kind::kGiven) return [given] { return given; };
  if (at.kind == Rendezvous::Kind::kFile) return [at] { return open_file_store(at.path); };
  return [at] {
    return connect_tcp_store({.host = at.host,
                              .port = at.port,
                              .connect_timeout = kReopenTimeout,
                              .reply_timeout = kReopenTimeout,
                              .fence = nullptr});
  };
}

}  // namespace ddprun::worker_sdk
