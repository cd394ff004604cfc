#pragma once
// What both ends of a measured connection share: waiting with a deadline, and the words between
// them. Used by tcp_link.cc and tcp_link_server.cc.
//
//   client -> hello(nonce)     server -> one byte, or hangs up
//   client -> kBlockFollows and a block, again and again, then kEndOfPiece
//   server -> one byte once it has read all of that

#include <string>
#include <string_view>

#include "common/system/descriptors.h"
#include "common/time.h"

namespace ddprun::doctor {

inline constexpr std::size_t kHelloBytes = 48;
inline constexpr std::size_t kLinkBlockBytes = 256 * 1024;  // More than one packet of any size.
inline constexpr char kBlockFollows = 'b', kEndOfPiece = 'e', kServed = 's';

std::string hello(const std::string& nonce);  // Of kHelloBytes bytes.

// Non-blocking sockets. False, or nothing: the peer has gone, or `end` has passed.
bool wait_for_socket(const UniqueFd& socket, short events, TimePoint end);
bool send_all(const UniqueFd& socket, std::string_view bytes, TimePoint end);
std::string receive_exactly(const UniqueFd& socket, std::size_t size, TimePoint end);

}  // namespace ddprun::doctor
