#include "common/system/peer_user.h"

#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "common/system/folder.h"
#include "common/text/figures.h"

namespace ddprun {
namespace {

constexpr std::uint32_t kLoopbackInterface = 1;  // In every network namespace.

// One end, as both ways to query want it: an IPv4 address has one word, even if the socket is an
// IPv6 one.
struct End {
  bool v6 = false;
  std::array<std::uint32_t, 4> words{};  // In network order, as they lie in memory.
  std::uint16_t port = 0;                // In network order.
};

using NameCall = int(int, sockaddr*, socklen_t*);

std::optional<End> end_of(int fd, NameCall* call) {
  sockaddr_storage storage{};
  socklen_t size = sizeof storage;
  if (call(fd, reinterpret_cast<sockaddr*>(&storage), &size) != 0) return std::nullopt;
  End end;
  if (storage.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(storage);
    end.words[0] = v4.sin_addr.s_addr;
    end.port = v4.sin_port;
    return end;
  }
  if (storage.ss_family != AF_INET6) return std::nullopt;
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(storage);
  std::memcpy(end.words.data(), &v6.sin6_addr, sizeof v6.sin6_addr);
  end.port = v6.sin6_port;
  end.v6 = !IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr);
  if (!end.v6) end.words = {end.words[3]};
  return end;
}

// A connection that has ended frees its numbers for another user's.
bool still_there(int fd) {
  tcp_info info{};
  socklen_t size = sizeof info;
  if (::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return false;
  return info.tcpi_state == TCP_ESTABLISHED || info.tcpi_state == TCP_CLOSE_WAIT;
}

struct Question {
  nlmsghdr header{};
  inet_diag_req_v2 request{};
};

Question question_about(const End& from, const End& to) {
  Question question;
  question.header.nlmsg_len = sizeof question;
  question.header.nlmsg_type = SOCK_DIAG_BY_FAMILY;
  question.header.nlmsg_flags = NLM_F_REQUEST;
  inet_diag_req_v2& request = question.request;
  request.sdiag_family = from.v6 ? AF_INET6 : AF_INET;
  request.sdiag_protocol = IPPROTO_TCP;
  request.idiag_states = ~0U;
  request.id.idiag_sport = from.port;
  request.id.idiag_dport = to.port;
  std::copy(from.words.begin(), from.words.end(), request.id.idiag_src);
  std::copy(to.words.begin(), to.words.end(), request.id.idiag_dst);
  // Finds sockets that are bound to no interface, and those that are bound to the loopback.
  request.id.idiag_if = kLoopbackInterface;
  request.id.idiag_cookie[0] = request.id.idiag_cookie[1] = INET_DIAG_NOCOOKIE;
  return question;
}

// Requests an exact match; the answer is there when send() returns. If no connection has the
// numbers, the kernel answers with the socket that listens at `from`.
std::optional<SocketFacts> query_kernel(int kernel, const End& from, const End& to) {
  const Question question = question_about(from, to);
  if (::send(kernel, &question, sizeof question, 0) != sizeof question) return std::nullopt;
  alignas(nlmsghdr) std::array<char, 4096> answer;
  const ssize_t got = ::recv(kernel, answer.data(), answer.size(), MSG_DONTWAIT);
  if (got < static_cast<ssize_t>(NLMSG_LENGTH(sizeof(inet_diag_msg)))) return std::nullopt;
  const auto* header = reinterpret_cast<const nlmsghdr*>(answer.data());
  if (header->nlmsg_type != SOCK_DIAG_BY_FAMILY) return std::nullopt;
  const auto* found = static_cast<const inet_diag_msg*>(NLMSG_DATA(header));
  if (found->idiag_state == TCP_LISTEN || found->id.idiag_dport != to.port ||
      found->id.idiag_sport != from.port) {
    return std::nullopt;
  }
  return SocketFacts{found->idiag_state, found->idiag_uid, found->idiag_inode};
}

// "0100007F:1F90": words as the machine reads them, the port as people do.
std::string table_text(const End& end) {
  std::array<char, 48> text{};
  std::size_t size = 0;
  for (std::size_t i = 0; i < (end.v6 ? 4 : 1); ++i) {
    size += static_cast<std::size_t>(
        std::snprintf(text.data() + size, text.size() - size, "%08X", end.words[i]));
  }
  std::snprintf(text.data() + size, text.size() - size, ":%04X", ntohs(end.port));
  return text.data();
}

// An IPv4 connection of an IPv6 socket.
End mapped(const End& end) { return {true, {0, 0, htonl(0xFFFF), end.words[0]}, end.port}; }

std::optional<SocketFacts> find_in(const std::string& table, const End& from, const End& to) {
  const std::string local = table_text(from), remote = table_text(to);
  std::ifstream in(table);
  for (std::string line; std::getline(in, line);) {
    if (const auto facts = facts_of_line(line, local, remote)) return facts;
  }
  return std::nullopt;
}

std::optional<SocketFacts> read_tables(const std::string& folder, const End& from, const End& to) {
  if (from.v6) return find_in(folder + "/tcp6", from, to);
  const auto found = find_in(folder + "/tcp", from, to);
  return found ? found : find_in(folder + "/tcp6", mapped(from), mapped(to));
}

std::string_view next_word(std::string_view& text) {
  text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
  const std::string_view word = text.substr(0, text.find(' '));
  text.remove_prefix(word.size());
  return word;
}

}  // namespace

std::optional<SocketFacts> facts_of_line(std::string_view line, std::string_view local,
                                         std::string_view remote) {
  constexpr int kColumns = 10;  // number, local, remote, state, queues, timer, retries, uid, ...
  std::array<std::string_view, kColumns> column;
  for (std::string_view& word : column) word = next_word(line);
  if (column[1] != local || column[2] != remote) return std::nullopt;
  const auto state = as_number<int>(column[3], 16);
  const auto user = as_number<uid_t>(column[7]);
  const auto inode = as_number<std::uint64_t>(column[9]);
  if (!state || !user || !inode) return std::nullopt;
  return SocketFacts{.state = *state, .user = *user, .inode = *inode};
}

PeerUser peer_user_of(const SocketFacts& facts, uid_t self) {
  const bool connected = facts.state == TCP_ESTABLISHED || facts.state == TCP_FIN_WAIT1 ||
                         facts.state == TCP_FIN_WAIT2 || facts.state == TCP_CLOSE_WAIT;
  if (!connected || facts.inode == 0) return PeerUser::kGone;
  return facts.user == self || facts.user == 0 ? PeerUser::kOurs : PeerUser::kOthers;
}

PeerUsers::PeerUsers(std::string_view proc_net, bool query_kernel)
    : proc_net_(proc_net),
      kernel_(query_kernel ? ::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG)
                           : -1) {
  const bool readable = ::access((std::string(proc_net) + "/tcp").c_str(), R_OK) == 0;
  way_ = kernel_ ? Way::kKernel : readable ? Way::kTables : Way::kNone;
}

PeerUser PeerUsers::look_up(int connection) {
  const auto peer = end_of(connection, ::getpeername);
  const auto local = end_of(connection, ::getsockname);
  if (!peer || !local) return PeerUser::kGone;
  std::optional<SocketFacts> facts;
  if (way_ == Way::kKernel) {
    facts = query_kernel(kernel_.get(), *peer, *local);
    // A kernel that does not even find this end cannot answer for the other.
    if (!facts && still_there(connection) && !query_kernel(kernel_.get(), *local, *peer)) {
      *this = PeerUsers(proc_net_, false);
    }
  }
  if (way_ == Way::kTables) facts = read_tables(std::string(proc_net_), *peer, *local);
  if (!still_there(connection)) return PeerUser::kGone;
  if (facts) return peer_user_of(*facts, ::geteuid());
  return way_ == Way::kNone ? PeerUser::kUnknown : PeerUser::kElsewhere;
}

namespace {

constexpr char kListening[] = "0A";

// Inodes of the sockets on a local port as one of /proc/net/tcp{,6} lists them: a line is
// "  0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000  0 12345 ...".
void find_inodes(const char* file, std::uint16_t port, std::set<std::string>& listening,
                 std::set<std::string>& others) {
  std::ifstream in(file);
  std::string line;
  std::getline(in, line);
  while (std::getline(in, line)) {
    std::istringstream words(line);
    std::array<std::string, 10> column;
    for (std::string& word : column) words >> word;
    const std::string& local = column[1];
    const std::size_t colon = local.rfind(':');
    if (colon == std::string::npos) continue;
    unsigned number = 0;
    std::from_chars(local.data() + colon + 1, local.data() + local.size(), number, 16);
    if (number != port || column[9] == "0") continue;
    (column[3] == kListening ? listening : others).insert("socket:[" + column[9] + "]");
  }
}

bool holds(const std::string& process, const std::set<std::string>& sockets) {
  for (const std::string& fd : names_in(process + "/fd").names) {
    std::array<char, 64> target{};
    const std::string link = process + "/fd/" + fd;
    const ssize_t size = ::readlink(link.c_str(), target.data(), target.size());
    if (size <= 0) continue;
    if (sockets.contains({target.data(), static_cast<std::size_t>(size)})) return true;
  }
  return false;
}

std::string find_holder(const std::set<std::string>& sockets) {
  if (sockets.empty()) return {};
  for (const std::string& pid : names_in("/proc").names) {
    if (pid.find_first_not_of("0123456789") != std::string::npos) continue;
    const std::string process = "/proc/" + pid;
    if (!holds(process, sockets)) continue;
    std::string name;
    std::getline(std::ifstream(process + "/comm"), name);
    return name + " (pid " + pid + ")";
  }
  return {};
}

}  // namespace

std::string port_owner(std::uint16_t port) {
  std::set<std::string> listening, others;
  find_inodes("/proc/net/tcp", port, listening, others);
  find_inodes("/proc/net/tcp6", port, listening, others);
  const std::string listener = find_holder(listening);
  return listener.empty() ? find_holder(others) : listener;
}

}  // namespace ddprun
