#pragma once
// Host names to addresses without blocking the loop. Used by async_connect.

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/ip/address.hpp>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/error.h"

namespace ddprun::rendezvous {

using Addresses = std::vector<boost::asio::ip::address>;

// Hands the addresses of `host`, a name or a numeric address, to the handler from `executor`'s
// loop. Let go of the returned handle to cancel; do so before the loop's io_context dies. There is
// no deadline here: the C library's resolver cannot be stopped, so its thread is left to end by
// itself.
std::shared_ptr<void> async_resolve(const boost::asio::any_io_executor& executor,
                                    const std::string& host,
                                    std::function<void(Result<Addresses>)> handler);

}  // namespace ddprun::rendezvous
