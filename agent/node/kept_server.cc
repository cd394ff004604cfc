#include "agent/node/kept_server.h"

#include <sys/file.h>

#include <csignal>
#include <filesystem>
#include <utility>

#include "agent/workers/fork_messages.h"
#include "agent/workers/import_notes.h"
#include "common/system/child_process.h"
#include "common/system/log.h"
#include "common/text/figures.h"

namespace ddprun::agent {

KeptServer::KeptServer(KeepOptions options, PosixProcessHost& processes)
    : options_(options), processes_(processes) {
  processes_.on_unfit = [this](const std::string& why) { discard(why); };
}

KeepOrder KeptServer::order_for(const WorkerSpec& spec, const std::string& modules) {
  std::error_code failed;
  const std::string folder = std::filesystem::current_path(failed).string();
  if (!is_wanted() || failed || !is_python_command(spec.argv)) return {};
  facts_.key = kept_key(spec.argv, spec.environment, modules, folder);
  facts_.program = program_text(spec.argv);
  KeepOrder order{.wanted = true};
  // Later ones of this run have learned more.
  if (std::exchange(searched_, true)) return order;
  find();
  if (found_) order.saved = found_->file.get();
  return order;
}

// The lock shows that it is in use.
void KeptServer::find() {
  int others = 0;
  for (KeptImage& image : kept_images()) {
    if (image.facts.program == facts_.program) ++others;
    if (image.facts.key == facts_.key) found_ = std::move(image);
  }
  if (!found_) {
    const std::string why = others == 0 ? "" : ", but for another environment or folder";
    return log::debug("preload: " + number_of(others, "fork server") +
                      " of earlier runs of this program kept" + why);
  }
  (void)::flock(found_->file.get(), LOCK_SH | LOCK_NB);
  (void)keep_for(found_->file.get(), options_.time);
  log::debug("preload: process " + std::to_string(found_->holder) +
             " has kept the fork server of an earlier run");
}

void KeptServer::discard(const std::string& why) {
  if (!found_) return;
  log::debug("preload: what process " + std::to_string(found_->holder) +
             " has kept is thrown away: " + why);
  send_signal(found_->process, SIGKILL);
  found_.reset();
}

void KeptServer::keep() {
  if (!is_wanted()) return;
  const ForkServer& server = processes_.fork_server();
  if (found_ && server.is_resumed()) {
    (void)keep_for(found_->file.get(), options_.time);
    const bool is_held = send_signal(found_->process, 0);
    return is_held ? log::info(kept_sentence(found_->holder, found_->file.get()))
                   : log::debug("preload: what was kept has been ended");
  }
  if (options_.file < 0) return;
  const auto modules = processes_.save_fork_server(options_.file);
  if (!modules) {
    return log::info("preload: nothing is kept for the next start: " + modules.error().context);
  }
  facts_.modules = *modules;
  const auto sealed = seal_image(options_.file, facts_);
  if (!sealed) log::warning(to_string(sealed.error()));
}

}  // namespace ddprun::agent
