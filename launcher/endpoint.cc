#include "launcher/endpoint.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "agent/spawn.h"
#include "common/random_id.h"
#include "common/secrets.h"
#include "rendezvous/listen_socket.h"

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

Result<ScratchFolder> ScratchFolder::make(const std::string& name) {
  const char* runtime = std::getenv("XDG_RUNTIME_DIR");
  const char* temporary = std::getenv("TMPDIR");
  const std::string base = runtime && *runtime       ? runtime
                           : temporary && *temporary ? temporary
                                                     : "/tmp";
  for (const std::string& place : {base, std::string("/tmp")}) {
    std::string path = place + "/" + name + "-XXXXXX";
    if (::mkdtemp(path.data())) return ScratchFolder(path, ::getpid());
  }
  return errno_failure("making a folder in " + base);
}

ScratchFolder::ScratchFolder(ScratchFolder&& other) noexcept
    : path_(std::move(other.path_)), owner_(other.owner_) {
  other.path_.clear();
}

ScratchFolder::~ScratchFolder() {
  if (path_.empty() || owner_ != ::getpid()) return;
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

Result<std::string> obtain_token(const Plan& plan, const std::string& given) {
  if (plan.token != Plan::Token::kNone) hide_memory();
  switch (plan.token) {
    case Plan::Token::kNone: return std::string();
    case Plan::Token::kMint: return random_hex(kTokenBytes);
    case Plan::Token::kEnvironment: return trimmed(given);
    case Plan::Token::kFile: break;
  }
  return secret_in_file(plan.token_file, "token");
}

Result<std::unique_ptr<HostedEndpoint>> open_endpoint(Plan& plan, const std::string& token) {
  auto listening = rendezvous::listen_socket(plan.listen_host, plan.endpoint.port.value_or(0));
  if (!listening && listening.error().code == boost::system::errc::address_in_use) {
    if (plan.if_taken == Plan::IfTaken::kJoin) {
      plan.mode = Plan::Mode::kJoin;
      return std::unique_ptr<HostedEndpoint>();
    }
    if (plan.if_taken == Plan::IfTaken::kAnyPort) {
      listening = rendezvous::listen_socket(plan.listen_host, 0);
    }
  }
  if (!listening) return listening.error();
  plan.endpoint.port = rendezvous::local_port(listening->get());
  UniqueFd token_file;
  if (!token.empty()) {
    auto file = memory_file(token);
    if (!file) return file.error();
    token_file = std::move(*file);
  }
  auto state = ScratchFolder::make("ddprun");
  if (!state) return state.error();
  return std::make_unique<HostedEndpoint>(
      HostedEndpoint{std::move(*listening), std::move(token_file), std::move(*state)});
}

agent::GuardedChild daemon_child(const HostedEndpoint& endpoint, bool verbose) {
  agent::GuardedChild child;
  child.kind = agent::GuardedChild::Kind::kService;
  child.name = "the rendezvous daemon";
  child.argv = {own_folder() + "/ddprun-rendezvous",
                "--end-when-over",
                "--end-runs-on-exit",
                "--state-dir",
                endpoint.state.path(),
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
