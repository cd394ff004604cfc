// The list of modules that a program imports, and what a worker notes for it, under any bytes.

#include "tests/fuzz/agent/learned_fuzz.h"

#include <algorithm>
#include <string_view>

#include "agent/workers/learned_names.h"
#include "common/assert.h"

namespace ddprun::fuzz {

void fuzz_learned(const std::uint8_t* data, std::size_t size) {
  using agent::LearnedNames;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  LearnedNames list = LearnedNames::parse(text.substr(0, size / 2));
  const std::size_t before = list.names().size();
  const std::size_t added = list.add(text.substr(size / 2));
  DDPRUN_ASSERT(list.names().size() == before + added);
  DDPRUN_ASSERT(list.names().size() <= LearnedNames::kNamesMax);
  const LearnedNames read = LearnedNames::parse(list.text(text));
  DDPRUN_ASSERT(read.names() == list.names() && read.whole() == list.whole());
  DDPRUN_ASSERT(list.add(text.substr(size / 2)) == 0);
}

}  // namespace ddprun::fuzz

#ifdef DDPRUN_LIBFUZZER
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  ddprun::fuzz::fuzz_learned(data, size);
  return 0;
}
#endif
