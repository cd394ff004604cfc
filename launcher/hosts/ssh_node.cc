#include "launcher/hosts/ssh_node.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>

#include "common/frames.h"
#include "common/release.h"
#include "common/system/descriptors.h"
#include "common/system/log.h"
#include "common/system/own_process.h"
#include "common/system/secrets.h"
#include "common/text/figures.h"
#include "common/text/words.h"
#include "launcher/hosts/own_copy.h"
#include "launcher/hosts/remote_node.h"
#include "launcher/options/hosts.h"

namespace ddprun::launcher {
namespace {

constexpr PortRange kMeetingPorts{29'400, 32'599};

}  // namespace

std::vector<std::string> way_to(const HostEntry& host, const std::vector<std::string>& ssh,
                                const MachineFacts& facts) {
  if (host.user.empty() && names_this_machine(host.name, facts)) return {};
  // Of two values for one option ssh takes the first: the user's words win.
  std::vector<std::string> argv = ssh;
  for (const char* option :
       {"BatchMode=yes", "ConnectTimeout=10", "ServerAliveInterval=5", "ServerAliveCountMax=3"}) {
    argv.insert(argv.end(), {"-o", option});
  }
  argv.insert(argv.end(), {"-T", "-x", "--", ssh_target(host)});
  return argv;
}

std::vector<std::string> far_end_command(const HostEntry& host, const std::vector<std::string>& ssh,
                                         const MachineFacts& facts) {
  std::vector<std::string> argv = way_to(host, ssh, facts);
  if (argv.empty()) return {own_program(), std::string(kControlFlag)};
  argv.push_back(far_end_command_line(own_program()));
  return argv;
}

std::uint16_t random_meeting_port(const PortRange& range) {
  const std::uint64_t random = std::stoull(random_hex(2), nullptr, 16);
  return (range.is_any() ? kMeetingPorts : range).port(random, 0);
}

std::optional<Failure> unreachable_names(const std::vector<HostEntry>& hosts) {
  const auto here = std::find_if(hosts.begin(), hosts.end(),
                                 [](const HostEntry& host) { return is_loopback(host.name); });
  const bool all = std::all_of(hosts.begin(), hosts.end(),
                               [](const HostEntry& host) { return is_loopback(host.name); });
  if (here == hosts.end() || all) return std::nullopt;
  return Failure{Errc::kBadOption, "--hosts: " + here->name +
                                       " means another machine on each of the others; give the "
                                       "name that they know it by"};
}

std::optional<Failure> missing_variable(const std::vector<std::string>& names,
                                        const Environment& environment) {
  for (const std::string& name : names) {
    if (environment.contains(name)) continue;
    return Failure{Errc::kBadOption, "--env: the variable " + name + " is not set"};
  }
  return std::nullopt;
}

namespace {

constexpr int kLastReads = 64;

// Reads without waiting. Closes the descriptor at the end of the input.
void drain(UniqueFd& fd, NamedLines& lines) {
  char buffer[65536];
  while (fd) {
    const ssize_t n = ::read(fd.get(), buffer, sizeof buffer);
    if (n > 0) {
      lines.feed(std::string_view(buffer, static_cast<std::size_t>(n)));
      if (n < static_cast<ssize_t>(sizeof buffer)) return;  // Others next.
    } else if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
      return;
    } else {
      fd.reset();
      lines.finish();
    }
  }
}

}  // namespace

void NamedLines::on_line(std::string_view line) {
  if (is_shown_(line)) on_piece(line);
}

void NamedLines::on_piece(std::string_view piece) {
  text_ += name_;
  text_ += piece;
  text_ += '\n';
}

SshNode::SshNode(HostEntry entry, const std::string& program, ChildProcess started,
                 std::function<bool(std::string_view)> take)
    : host(std::move(entry)),
      remote(host.name, program, own_machine()),
      output_(host.name,
              [this, take = std::move(take)](std::string_view line) {
                return remote.on_stdout_line(line) && !(take && take(line));
              }),
      errors_(host.name, [this](std::string_view line) { return remote.on_stderr_line(line); }),
      process_(std::move(started)) {}

void SshNode::add_polls(std::vector<pollfd>& polls) const {
  for (const UniqueFd* fd : {&process_.pidfd, &process_.output, &process_.errors}) {
    if (*fd) polls.push_back({fd->get(), POLLIN, 0});
  }
  if (process_.input && (!to_send_.empty() || copy_))
    polls.push_back({process_.input.get(), POLLOUT, 0});
}

void SshNode::queue(std::string_view body) { append_frame(to_send_, body); }

void SshNode::kill() {
  if (process_.pid > 0) ::kill(process_.pid, SIGKILL);
}

bool SshNode::serve() {
  if (remote.state() == RemoteNode::State::kEnded) return false;
  // Read this before the pipes, so that the process's last output is in them if it has ended.
  const bool is_over = process_.has_ended();
  drain(process_.output, output_);
  drain(process_.errors, errors_);
  give_copy();
  send();
  if (is_over) end();
  // If the reader is gone, the nodes continue.
  (void)write_all(STDOUT_FILENO, output_.take());
  (void)write_all(STDERR_FILENO, errors_.take());
  return is_over;
}

void SshNode::end() {
  // ssh may leave a master connection behind that holds the pipes open: their end is not awaited.
  for (int i = 0; i < kLastReads && (process_.output || process_.errors); ++i) {
    drain(process_.output, output_);
    drain(process_.errors, errors_);
  }
  output_.finish();
  errors_.finish();
  remote.on_end(reap(process_));
  process_ = ChildProcess();
}

// A far end without ddprun ends when its input does.
void SshNode::give_copy() {
  if (remote.is_other_machine()) return hang_up();
  const RemoteNode::Wants wants = remote.take_wants();
  if (wants == RemoteNode::Wants::kNothing) return;
  if (wants == RemoteNode::Wants::kOffer) {
    auto copy = own_copy();
    if (!copy) {
      log::error(to_string(copy.error()));
      return hang_up();
    }
    offer_ = std::move(*copy);
    to_send_ += offer_->sha256 + " " + std::to_string(offer_->archive.size()) + "\n";
  } else if (offer_) {
    log::info(host.name + " has no ddprun " + release() + ": copying this one, " +
              memory_text(offer_->archive.size()) + ", into the cache folder there");
    copy_ = std::exchange(offer_, nullptr);
  }
}

// The copy, of which megabytes may be on their way, is sent before all that follows.
void SshNode::send() {
  while (process_.input && (!to_send_.empty() || copy_)) {
    const std::string_view rest =
        copy_ ? std::string_view(copy_->archive).substr(copied_) : std::string_view(to_send_);
    const ssize_t n = ::write(process_.input.get(), rest.data(), rest.size());
    if (n < 0 && errno != EAGAIN && errno != EINTR) {  // It is ending.
      to_send_.clear();
      copy_.reset();
    }
    if (n <= 0) return;
    if (!copy_) {
      to_send_.erase(0, static_cast<std::size_t>(n));
    } else if (copied_ += static_cast<std::size_t>(n); copied_ == copy_->archive.size()) {
      copy_.reset();
    }
  }
}

}  // namespace ddprun::launcher
