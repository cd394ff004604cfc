#include "rendezvous/daemon/c10d_port.h"

#include "common/system/log.h"
#include "common/text/words.h"

namespace ddprun::rendezvous {
namespace {

std::string whom(const C10dOptions& options) {
  if (!options.allow.empty()) {
    std::string text = "this machine";
    for (const std::string& address : options.allow) text += ", " + address;
    return text;
  }
  return is_loopback(options.address) ? "this machine" : "everybody who reaches it";
}

}  // namespace

Result<std::unique_ptr<StoreServer>> open_c10d_port(boost::asio::io_context& io,
                                                    const C10dOptions& options) {
  if (!options.port) return std::unique_ptr<StoreServer>();
  StoreServerOptions store;
  store.address = options.address;
  store.port = *options.port;
  store.admit_everyone = options.allow.empty();
  auto server = StoreServer::listen(io, std::move(store));
  if (!server) return server.error();
  if (Result<void> admitted = (*server)->admit(options.allow); !admitted) return admitted.error();
  log::info("torchrun's c10d rendezvous on " + options.address + ":" +
            std::to_string((*server)->port()) + ", without a token, for " + whom(options));
  return server;
}

}  // namespace ddprun::rendezvous
