#include "rendezvous/store/hand_over.h"

#include <array>
#include <cerrno>
#include <string>

#include "common/system/descriptors.h"
#include "common/system/log.h"

namespace ddprun::rendezvous {

using boost::asio::posix::stream_descriptor;

namespace {

constexpr std::size_t kLineMax = 16'384;  // Then the oldest is closed: each takes a descriptor.

}  // namespace

void StoreHandOver::send(UniqueFd client) {
  if (line_.size() >= kLineMax) line_.pop_front();
  line_.push_back(std::move(client));
  if (!waits_) flush();
}

// ETOOMANYREFS: the user has as many descriptors on their way as it may have open.
void StoreHandOver::flush() {
  for (; !line_.empty(); line_.pop_front()) {
    const std::array<int, 1> client{line_.front().get()};
    const auto sent = send_descriptors(socket_.native_handle(), "s", client,
                                       "handing over a client of the store");
    if (sent) continue;
    const int why = sent.error().code.value();
    if (why != EAGAIN && why != ETOOMANYREFS) {
      log::debug(to_string(sent.error()));
      continue;
    }
    waits_ = true;
    return socket_.async_wait(stream_descriptor::wait_write, [this](boost::system::error_code ec) {
      if (ec) return;
      waits_ = false;
      flush();
    });
  }
}

}  // namespace ddprun::rendezvous
