#include "agent/memory/memory_link.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <array>

#include "common/archive/json.h"
#include "common/system/log.h"
#include "rendezvous/protocol/wire_fields.h"

namespace ddprun::agent::memory {

void fields(auto& a, archive::Is<Order> auto& m) {
  a("node", m.node), a("host", m.host), a("address", m.address);
  a("copy_to", m.copy_to), a("fill", m.fill);
  a("daemon_host", m.daemon_host), a("daemon_port", m.daemon_port);
  a("one_port", m.one_port);
}
void fields(auto& a, archive::Is<Report> auto& m) {
  a.enumerator("kind", m.kind, Report::Kind::kCopied), a("used", m.used);
  a("relayed", m.relayed);
}

std::string encode(const Order& order) { return archive::text_of(archive::tree_of(order)); }
std::string encode(const Report& report) { return archive::text_of(archive::tree_of(report)); }

Result<Order> decode_order(std::string_view text) {
  return archive::read_message<Order>(text, "an order to the memory server");
}
Result<Report> decode_report(std::string_view text) {
  return archive::read_message<Report>(text, "a report of the memory server");
}

MemoryLink::MemoryLink(boost::asio::io_context& loop, int fd)
    : socket_(loop, ::fcntl(fd, F_DUPFD_CLOEXEC, 0)) {
  await();
}

void MemoryLink::send(const Order& order) {
  const std::string text = encode(order);
  if (::send(socket_.native_handle(), text.data(), text.size(), MSG_DONTWAIT | MSG_NOSIGNAL) < 0) {
    log::debug(to_string(errno_failure("writing to the memory server")));
  }
}

void MemoryLink::close() {
  boost::system::error_code ignored;
  socket_.close(ignored);
}

void MemoryLink::await() {
  using boost::asio::posix::stream_descriptor;
  socket_.async_wait(stream_descriptor::wait_read, [this](const boost::system::error_code& ec) {
    if (ec) return;
    std::array<char, kDatagramMax> text;
    const ssize_t size =
        ::recv(socket_.native_handle(), text.data(), text.size(), MSG_DONTWAIT | MSG_TRUNC);
    const int error = errno;
    if (size == 0 || (size < 0 && error != EAGAIN && error != EINTR)) return;
    await();
    if (size < 0 || static_cast<std::size_t>(size) > text.size()) return;
    const auto report = decode_report({text.data(), static_cast<std::size_t>(size)});
    if (!report) return log::debug(to_string(report.error()));
    on_report(*report);
  });
}

}  // namespace ddprun::agent::memory
