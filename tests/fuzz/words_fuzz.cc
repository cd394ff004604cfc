// What workers and the kernel leave behind, under any bytes: error files, last lines, C++ names,
// the counters of cgroups; and what is made of lines for JSON. The first byte says which.

#include "tests/fuzz/words_fuzz.h"

#include <nlohmann/json.hpp>
#include <string>

#include "agent/fault.h"
#include "agent/last_words.h"
#include "agent/line_format.h"
#include "agent/oom_watch.h"
#include "common/assert.h"
#include "rendezvous/verdict.h"

namespace ddprun::fuzz {
namespace {

// Whatever a worker said, its verdict is a fault that has a word, and a file that is JSON in UTF-8.
void fuzz_death(const std::string& text) {
  rendezvous::WorkerDeath death;
  death.exit_code = 1;
  death.detail = agent::last_words({text}, /*error_file=*/"");
  death.fault = agent::classify(death, death.detail, false);
  death.blames = agent::rank_blamed(death.detail);
  DDPRUN_ASSERT(death.blames >= -1);
  DDPRUN_ASSERT(rendezvous::fault_of_name(rendezvous::fault_name(death.fault)) == death.fault);
  if (agent::ends_in_exception({text})) DDPRUN_ASSERT(!text.empty());
  const rendezvous::Verdict verdict = rendezvous::worker_verdict({death}, 0, 0);
  DDPRUN_ASSERT(verdict.exit_code == 1);
  DDPRUN_ASSERT(verdict.text.size() <= death.detail.size() + 1024);
  const std::string file = rendezvous::verdict_json(verdict, "run", 0);
  DDPRUN_ASSERT(nlohmann::json::accept(file));  // It refuses what is no UTF-8.
}

}  // namespace

void fuzz_words(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return;
  const std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  std::string scratch;
  switch (data[0] % 5) {
    case 0: DDPRUN_ASSERT(agent::error_file_words(text).size() <= text.size() * 8 + 8192); break;
    case 1: fuzz_death(text); break;
    case 2: {
      const std::string plain = agent::demangled(text);
      // Only names change.
      if (text.find("(_Z") == std::string::npos) DDPRUN_ASSERT(plain == text);
      DDPRUN_ASSERT(agent::demangled(plain) == plain || text.find("_Z") != std::string::npos);
      break;
    }
    case 3:
      (void)agent::oom_kills_in(text);
      DDPRUN_ASSERT(agent::memory_cgroup_in(text).path.size() <= text.size());
      break;
    default: {
      const std::string line =
          "{\"line\":\"" + std::string(agent::json_text(text, scratch)) + "\"}";
      DDPRUN_ASSERT(nlohmann::json::accept(line));
    }
  }
}

}  // namespace ddprun::fuzz

#ifdef DDPRUN_LIBFUZZER
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  ddprun::fuzz::fuzz_words(data, size);
  return 0;
}
#endif
