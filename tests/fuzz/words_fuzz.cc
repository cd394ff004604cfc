// What workers and the kernel leave behind, under any bytes: error files, last lines, C++ names,
// the counters of cgroups; and what is made of lines for JSON and for terminals. The first byte
// says which.

#include "tests/fuzz/words_fuzz.h"

#include <nlohmann/json.hpp>
#include <string>

#include "agent/fault.h"
#include "agent/last_words.h"
#include "agent/line_format.h"
#include "agent/oom_watch.h"
#include "common/assert.h"
#include "common/terminal_text.h"

namespace ddprun::fuzz {

void fuzz_words(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return;
  const std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  std::string scratch;
  switch (data[0] % 6) {
    case 0: DDPRUN_ASSERT(agent::error_file_words(text).size() <= text.size() * 8 + 8192); break;
    case 1: {
      const rendezvous::WorkerDeath death{.exit_code = 1};
      (void)agent::classify(death, text, false);
      DDPRUN_ASSERT(agent::rank_blamed(text) >= -1);
      (void)agent::ends_in_exception({text});
      break;
    }
    case 2: (void)agent::demangled(text); break;
    case 5: {
      const std::string shown = without_escapes(text);
      DDPRUN_ASSERT(without_escapes(shown) == shown && !leaves_colours_on(shown));
      DDPRUN_ASSERT(shown.size() <= text.size() + kColoursOff.size());
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
