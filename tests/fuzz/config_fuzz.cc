// The config file under any bytes, and through it the parser of every flag's value: what is wrong
// is reported in one line with the place, and what is right is a default of a flag.

#include "tests/fuzz/config_fuzz.h"

#include <string_view>

#include "common/assert.h"
#include "launcher/options/config_file.h"
#include "launcher/options/flags.h"

namespace ddprun::fuzz {
namespace {

void check_error(const std::string& error) {
  constexpr std::size_t kErrorBytesMax = 1000;
  DDPRUN_ASSERT(!error.empty() && error.size() < kErrorBytesMax);
  DDPRUN_ASSERT(error.find('\n') == std::string::npos);
}

}  // namespace

void fuzz_config(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto config = launcher::parse_config(text, "the-file");
  if (!config) {
    DDPRUN_ASSERT(config.error().context.starts_with("the-file"));
    return check_error(config.error().context);
  }
  for (const auto& [flag, entry] : config->entries) {
    DDPRUN_ASSERT(find_option(launcher::all_options(), flag) != nullptr);
    DDPRUN_ASSERT(!entry.value.empty() && entry.line > 0);
  }
  CommandLine line;
  line.rest = {"program"};
  const auto options = launcher::read_options(line, launcher::with_config({}, *config));
  if (!options) check_error(launcher::explained(options.error().context, *config, {}));
}

}  // namespace ddprun::fuzz

#ifdef DDPRUN_LIBFUZZER
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  ddprun::fuzz::fuzz_config(data, size);
  return 0;
}
#endif
