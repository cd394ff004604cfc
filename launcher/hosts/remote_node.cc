#include "launcher/hosts/remote_node.h"

#include <csignal>
#include <utility>

#include "common/archive/packed.h"
#include "common/assert.h"
#include "common/exit_status.h"
#include "common/text/display.h"
#include "launcher/options/option_values.h"

namespace ddprun::launcher {
namespace {

constexpr std::string_view kMagic = "orders 2";
constexpr std::size_t kStringsMax = 100'000;

constexpr std::pair<std::string_view, int> kSignals[] = {
    {"SIGINT", SIGINT},   {"SIGTERM", SIGTERM}, {"SIGHUP", SIGHUP},
    {"SIGQUIT", SIGQUIT}, {"SIGUSR1", SIGUSR1}, {"SIGUSR2", SIGUSR2},
};

// Neither arguments nor variables can hold a zero byte.
using Form = archive::Ended<'\0'>;

}  // namespace

template <class A>
void fields(A& a, archive::Is<Orders> auto& m) {
  a.constant("version", kMagic), a("nonce", m.nonce), a("token", m.token);
  a("working_folder", m.working_folder);
  a.list("argv", m.argv, kStringsMax), a.list("environment", m.environment, kStringsMax);
  if (A::kReads && m.argv.empty()) throw archive::BadField{"argv"};
}

std::string encode(const Orders& orders) { return archive::packed<Form>(orders); }

Result<Orders> decode_orders(std::string_view body) {
  return archive::unpacked<Form, Orders>(
      body, "the orders of the launching ddprun, which may be of another version");
}

std::string encode_signal(int signal) {
  for (const auto& [name, number] : kSignals) {
    if (number == signal) return "signal " + std::string(name);
  }
  return "signal SIGTERM";
}

std::optional<int> decode_signal(std::string_view body) {
  for (const auto& [name, number] : kSignals) {
    if (body == "signal " + std::string(name)) return number;
  }
  return std::nullopt;
}

std::string ended_line(const std::string& nonce, int exit_code) {
  return "ddprun-control " + nonce + " ended " + std::to_string(exit_code);
}

std::optional<int> exit_code_in(std::string_view line, const std::string& nonce) {
  const std::string start = "ddprun-control " + nonce + " ended ";
  if (nonce.empty() || !line.starts_with(start)) return std::nullopt;
  const Result<int> code = parse_integer(line.substr(start.size()), 0, 255);
  return code ? std::optional(*code) : std::nullopt;
}

namespace {

constexpr int kSshFailed = 255;
constexpr std::size_t kWordsMax = 2'000;
constexpr std::size_t kLineMax = 300;

struct Known {
  std::string_view message;  // Message of OpenSSH's ssh; the first match counts.
  std::string_view means;    // Behind the host's name.
};

constexpr Known kKnown[] = {
    {"Could not resolve hostname", " is not known: no such host name"},
    {"REMOTE HOST IDENTIFICATION HAS CHANGED",
     "'s host key has changed: is it another machine now? See ssh-keygen -R"},
    {"Host key verification failed",
     "'s host key is not known here: run ssh once by hand, or "
     "add it to known_hosts"},
    {"Permission denied",
     " refuses our key: ssh has to work there without a password (ssh-copy-id)"},
    {"Too many authentication failures",
     " refuses our keys: name the right one, --ssh 'ssh -i KEY'"},
    {"Connection refused", " does not answer ssh (connection refused): is sshd running there?"},
    {"No route to host", " cannot be reached: there is no route to it, or it is down"},
    {"Network is unreachable", " cannot be reached: there is no route to it"},
    {"timed out", " cannot be reached: no answer within ssh's time"},
    {"Connection closed by", " closed the connection before ddprun ran"},
};

}  // namespace

void RemoteNode::ordered(std::string nonce) {
  DDPRUN_ASSERT(state_ == State::kReady);
  state_ = State::kRunning;
  has_run_ = true;
  nonce_ = std::move(nonce);
  last_words_.clear();
}

bool RemoteNode::on_stdout_line(std::string_view line) {
  if (state_ == State::kConnecting) {
    if (line == kReadyLine) {
      state_ = State::kReady;
      was_ready_ = true;
    } else if (there_.empty() && line.starts_with(kWantsLine)) {
      there_ = plain_line(line.substr(kWantsLine.size(), kLineMax));
      if (there_ == machine_) wants_ = Wants::kOffer;
      return false;
    } else if (is_copying() && line == kSendLine) {
      wants_ = Wants::kCopy;
      return false;
    }
    // A greeting of the shell's start-up files; or why there is no shell, as nologin writes it.
    if (!line.empty()) greeting_ = plain_line(line.substr(0, kLineMax));
    return false;
  }
  if (const auto code = exit_code_in(line, nonce_)) {
    exit_code_ = code;
    return false;
  }
  return true;
}

bool RemoteNode::on_stderr_line(std::string_view line) {
  if (has_run_) return true;
  if (last_words_.size() < kWordsMax && !line.empty()) {
    last_words_ += (last_words_.empty() ? "" : " | ") + plain_line(line.substr(0, kLineMax));
  }
  return false;
}

void RemoteNode::on_end(int exit_code) {
  state_ = State::kEnded;
  ssh_code_ = exit_code;
}

std::string RemoteNode::why_ssh_failed() const {
  for (const Known& known : kKnown) {
    if (last_words_.find(known.message) == std::string::npos) continue;
    return host_ + std::string(known.means) + " (" + last_words_ + ")";
  }
  return "ssh to " + host_ + " failed: " +
         (!last_words_.empty() ? last_words_
          : !greeting_.empty() ? greeting_
                               : "without a message");
}

std::string RemoteNode::why() const {
  if (was_lost()) return "the connection to " + host_ + " broke: " + std::to_string(ssh_code_);
  const std::string& words = last_words_.empty() && !was_ready_ ? greeting_ : last_words_;
  const std::string message = words.empty() ? "" : ": " + words;
  if (was_ready_)
    return "ddprun on " + host_ + " ended before it was given anything to do" + message;
  if (ssh_code_ == kSshFailed) return why_ssh_failed();
  if (is_other_machine()) {
    return "ddprun is not installed on " + host_ +
           ", and this one cannot be copied there: " + host_ + " is of the kind " + there_ +
           ", this machine of the kind " + machine_;
  }
  if (!there_.empty()) {
    return "this ddprun could not be copied to " + host_ + " (code " + std::to_string(ssh_code_) +
           ")" + message;
  }
  if (ssh_code_ == kExitCannotStart) {
    return "ddprun is not installed on " + host_ + ": neither " + program_ +
           " nor in the PATH that ssh gives there";
  }
  return "ddprun did not start on " + host_ + " (code " + std::to_string(ssh_code_) + ")" + message;
}

}  // namespace ddprun::launcher
