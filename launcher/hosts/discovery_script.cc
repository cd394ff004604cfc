#include "launcher/hosts/discovery_script.h"

#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <utility>

#include "common/assert.h"
#include "launcher/hosts/host_lines.h"

namespace ddprun::launcher {
namespace {

constexpr std::size_t kWordsMax = 300;

// What can be read at once; closes the descriptor at its end.
std::string read_some(UniqueFd& fd) {
  char buffer[65536];
  const ssize_t n = ::read(fd.get(), buffer, sizeof buffer);
  if (n > 0) return {buffer, static_cast<std::size_t>(n)};
  if (n == 0 || (errno != EAGAIN && errno != EINTR)) fd.reset();
  return {};
}

// The end of it, in one line, and nothing that a terminal would obey.
std::string one_line(const std::string& text) {
  const std::size_t end = text.find_last_not_of(" \t\r\n");
  if (end == std::string::npos) return "";
  std::string line = text.substr(0, end + 1);
  if (line.size() > kWordsMax) line = "..." + line.substr(line.size() - kWordsMax);
  for (char& letter : line) {
    if (letter == '\n') letter = '|';
    if (static_cast<unsigned char>(letter) < ' ' || letter == '\x7f') letter = ' ';
  }
  return line;
}

}  // namespace

std::optional<HostListing> DiscoveryScript::start() {
  DDPRUN_ASSERT(!runs());
  listing_ = {};
  if (!reap_killed()) return std::nullopt;  // Not another beside it: there is no answer this time.
  auto process = start_piped(argv_);
  if (!process) {
    listing_.cannot_start = to_string(process.error());
    return listing_;
  }
  process_ = std::move(*process);
  process_.input.reset();
  return std::nullopt;
}

void DiscoveryScript::add_polls(std::vector<pollfd>& polls) const {
  for (const UniqueFd* fd : {&process_.pidfd, &process_.output, &process_.errors}) {
    if (*fd) polls.push_back({fd->get(), POLLIN, 0});
  }
}

void DiscoveryScript::read_output() {
  while (process_.output && listing_.output.size() <= kHostLinesBytesMax) {
    const std::string text = read_some(process_.output);
    if (text.empty()) break;
    listing_.output += text;
  }
  listing_.is_too_long = listing_.output.size() > kHostLinesBytesMax;
}

void DiscoveryScript::read_errors() {
  while (process_.errors) {
    const std::string text = read_some(process_.errors);
    if (text.empty()) break;
    listing_.last_words += text;
    if (listing_.last_words.size() <= 2 * kWordsMax) continue;
    listing_.last_words.erase(0, listing_.last_words.size() - 2 * kWordsMax);
    return;  // One that writes without end is not read without end.
  }
}

std::optional<HostListing> DiscoveryScript::serve() {
  if (!runs()) return std::nullopt;
  // Asked before the pipes are read: what it wrote until its end is there by then.
  pollfd ended{process_.pidfd.get(), POLLIN, 0};
  const bool is_over = ::poll(&ended, 1, 0) > 0;
  read_output();
  read_errors();
  if (!is_over && !listing_.is_too_long) return std::nullopt;
  if (is_over) {
    ::kill(-process_.pid, SIGKILL);  // What it has started, too.
    listing_.exit_code = reap(process_);
    process_ = PipedProcess();
  }
  kill();
  listing_.last_words = one_line(listing_.last_words);
  return std::exchange(listing_, {});
}

void DiscoveryScript::kill() {
  if (!runs()) return;
  ::kill(-process_.pid, SIGKILL);
  killed_ = std::exchange(process_, PipedProcess());
}

// Does not wait: a file system that hangs may keep it from ending.
bool DiscoveryScript::reap_killed() {
  if (killed_.pid == 0) return true;
  pollfd ended{killed_.pidfd.get(), POLLIN, 0};
  if (::poll(&ended, 1, 0) <= 0) return false;
  (void)reap(killed_);
  killed_ = PipedProcess();
  return true;
}

}  // namespace ddprun::launcher
