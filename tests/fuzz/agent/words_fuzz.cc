// What workers and the kernel leave behind, under any bytes: error files, last lines, C++ names,
// the counters of cgroups; and what is made of lines for JSON and for terminals. The first byte
// chooses.

#include "tests/fuzz/agent/words_fuzz.h"

#include <nlohmann/json.hpp>
#include <string>

#include "agent/health/death_evidence.h"
#include "agent/health/fault.h"
#include "agent/lines/lines.h"
#include "agent/output/last_words.h"
#include "common/assert.h"
#include "common/text/display.h"
#include "rendezvous/run/verdict.h"

namespace ddprun::fuzz {
namespace {

constexpr std::size_t kMessageMax = 4096, kStackMax = 3072;  // Of last_words.cc.

bool is_utf8(const std::string& text) {
  using nlohmann::json;
  const std::string kept = json(text).dump(-1, ' ', false, json::error_handler_t::ignore);
  return json::parse(kept) == text;
}

// A cut text stays text of the file, and is no longer than a verdict can bear.
void check_error_file(const std::string& text) {
  const std::string message = agent::error_file_message(text);
  const std::string words = agent::error_file_text(text);
  DDPRUN_ASSERT(words.empty() == message.empty());
  DDPRUN_ASSERT(words.find(message.substr(0, kMessageMax - kStackMax - 4)) != std::string::npos);
  DDPRUN_ASSERT(is_utf8(message));
  if (words.find("(_Z") != std::string::npos || text.find("_Z") != std::string::npos) return;
  DDPRUN_ASSERT(is_utf8(words));
  DDPRUN_ASSERT(words.size() <= kMessageMax + kStackMax + 1);
}

// A rank is only blamed by its number; and whatever a worker printed, its verdict is a fault with a
// name, and a file that is JSON in UTF-8.
void check_death(const std::string& text) {
  WorkerDeath death;
  death.exit_code = 1;
  death.detail = agent::last_words({text}, /*error_file=*/"");
  death.fault = agent::classify(death, death.detail, false);
  death.blames = agent::rank_blamed(death.detail);
  DDPRUN_ASSERT(death.blames >= -1);
  DDPRUN_ASSERT(death.blames == -1 ||
                death.detail.find(std::to_string(death.blames)) != std::string::npos);
  DDPRUN_ASSERT(rendezvous::fault_of_name(rendezvous::fault_name(death.fault)) == death.fault);
  DDPRUN_ASSERT(!agent::ends_in_exception({text}) || !text.empty());
  const rendezvous::Verdict verdict = rendezvous::worker_verdict({death}, 0, 0);
  DDPRUN_ASSERT(verdict.exit_code == 1);
  DDPRUN_ASSERT(verdict.text.size() <= death.detail.size() + 1024);
  // It refuses what is no UTF-8.
  DDPRUN_ASSERT(nlohmann::json::accept(rendezvous::verdict_json(verdict, "run", 0)));
}

// What is no C++ name stays as it was.
void check_demangled(const std::string& text) {
  const std::string plain = agent::demangled(text);
  const std::size_t name = text.find("(_Z");
  DDPRUN_ASSERT(plain.starts_with(text.substr(0, name)));
  DDPRUN_ASSERT(name != std::string::npos || plain == text);
}

// Numbers and paths are read, not invented.
void check_counters(const std::string& text) {
  DDPRUN_ASSERT(agent::oom_kills_in(text) == 0 || text.find("oom_kill ") != std::string::npos);
  const agent::MemoryCgroup cgroup = agent::memory_cgroup_in(text);
  DDPRUN_ASSERT(text.find(":" + cgroup.path) != std::string::npos || cgroup.path.empty());
  DDPRUN_ASSERT(cgroup.path.find('\n') == std::string::npos);
}

// A line comes out of its JSON as it went in; bytes that are no text are replaced.
void check_json_line(const std::string& text) {
  std::string scratch;
  const std::string line = "{\"line\":\"" + std::string(agent::json_text(text, scratch)) + "\"}";
  const auto object = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  DDPRUN_ASSERT(object.is_object());
  DDPRUN_ASSERT(!is_utf8(text) || object["line"] == text);
}

// What is shown is the same when it is shown again, and leaves no colour on.
void check_terminal_text(const std::string& text) {
  const std::string shown = without_escapes(text);
  DDPRUN_ASSERT(without_escapes(shown) == shown && !leaves_colours_on(shown));
  DDPRUN_ASSERT(shown.size() <= text.size() + kColoursOff.size());
}

}  // namespace

void fuzz_words(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return;
  const std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 6) {
    case 0: return check_error_file(text);
    case 1: return check_death(text);
    case 2: return check_demangled(text);
    case 3: return check_counters(text);
    case 4: return check_terminal_text(text);
    default: return check_json_line(text);
  }
}

}  // namespace ddprun::fuzz

#ifdef DDPRUN_LIBFUZZER
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  ddprun::fuzz::fuzz_words(data, size);
  return 0;
}
#endif
