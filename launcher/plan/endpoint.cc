#include "launcher/plan/endpoint.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "agent/workers/birth.h"
#include "common/assert.h"
#include "common/system/log.h"
#include "common/system/random_id.h"
#include "common/system/secrets.h"
#include "common/text/host_text.h"
#include "rendezvous/net/listen_socket.h"

namespace ddprun::launcher {
namespace {

constexpr std::size_t kTokenBytes = 16;

Result<UniqueFd> memory_file(const std::string& text) {
  UniqueFd fd(::memfd_create("ddprun-token", MFD_CLOEXEC));
  if (!fd) return errno_failure("making a memory file for the token");
  if (::write(fd.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    return errno_failure("writing the token to a memory file");
  }
  return fd;
}

std::string own_folder() { return std::filesystem::read_symlink("/proc/self/exe").parent_path(); }

}  // namespace

Result<std::string> obtain_token(const RendezvousPlan& plan, const std::string& given) {
  if (plan.token != RendezvousPlan::Token::kNone) hide_memory();
  switch (plan.token) {
    case RendezvousPlan::Token::kNone: return std::string();
    case RendezvousPlan::Token::kMint: return random_hex(kTokenBytes);
    case RendezvousPlan::Token::kEnvironment: return trimmed(given);
    case RendezvousPlan::Token::kFile: break;
  }
  return secret_in_file(plan.token_file, "token");
}

Result<std::unique_ptr<HostedEndpoint>> open_endpoint(RendezvousPlan& plan,
                                                      const std::string& token) {
  DDPRUN_ASSERT(plan.mode == RendezvousPlan::Mode::kHost);
  auto listening = rendezvous::listen_socket(plan.listen_host, plan.endpoint.port.value_or(0));
  if (!listening && listening.error().code == boost::system::errc::address_in_use) {
    if (plan.if_taken == RendezvousPlan::IfTaken::kJoin) {
      plan.mode = RendezvousPlan::Mode::kJoin;
      return std::unique_ptr<HostedEndpoint>();
    }
    if (plan.if_taken == RendezvousPlan::IfTaken::kAnyPort) {
      listening = rendezvous::listen_socket(plan.listen_host, 0);
    }
  }
  if (!listening) return listening.error();
  plan.endpoint.port = rendezvous::local_port(listening->get());
  UniqueFd token_file;
  if (!token.empty()) {
    const auto warning = is_loopback(plan.listen_host) ? std::nullopt : short_token_warning(token);
    if (warning) log::warning(*warning);
    auto file = memory_file(token);
    if (!file) return file.error();
    token_file = std::move(*file);
  }
  return std::make_unique<HostedEndpoint>(
      HostedEndpoint{std::move(*listening), std::move(token_file)});
}

GuardedChild daemon_child(const HostedEndpoint& endpoint, const std::string& state_folder,
                          bool verbose) {
  GuardedChild child;
  child.kind = GuardedChild::Kind::kService;
  child.name = "the rendezvous daemon";
  child.argv = {own_folder() + "/ddprun-rendezvous",
                "--end-when-over",
                "--end-runs-on-exit",
                "--state-dir",
                state_folder,
                "--listen-fd",
                std::to_string(endpoint.listening.get())};
  child.inherited_fds = {endpoint.listening.get()};
  if (endpoint.token_file) {
    child.argv.insert(child.argv.end(), {"--token-fd", std::to_string(endpoint.token_file.get())});
    child.inherited_fds.push_back(endpoint.token_file.get());
  } else {
    child.argv.emplace_back("--no-auth");
  }
  if (verbose) child.argv.emplace_back("--verbose");
  child.environment = agent::current_environment();
  return child;
}

}  // namespace ddprun::launcher
