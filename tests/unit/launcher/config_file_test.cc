#include "launcher/options/config_file.h"

#include <catch2/catch.hpp>
#include <random>

#include "launcher/options/flags.h"
#include "tests/fuzz/config_fuzz.h"
#include "tests/support/command_line.h"

namespace ddprun::launcher {
namespace {

std::string error_in(std::string_view text) {
  const auto config = parse_config(text, "f");
  return config ? "(no error)" : config.error().context;
}

// How a command line ends with that file, or what is wrong.
Result<Options> with_file(std::string_view text, const std::string& line,
                          const Environment& environment = {}) {
  const Config config = parse_config(text, "f").value();
  auto outcome = parse_line(line, with_config(environment, config));
  if (!outcome)
    return Failure{Errc::kBadOption, explained(outcome.error().context, config, environment)};
  return std::get<Options>(*outcome);
}

TEST_CASE("Config: one flag a line, comments, both spellings", "[config]") {
  const Options options =
      with_file("# mine\n\n max-restarts = 3\nnproc_per_node=gpu\r\n--role = a b\nquiet=1", "t")
          .value();
  CHECK(options.max_restarts == 3);
  CHECK(options.nproc_per_node.kind == WorkerCount::Kind::kGpu);
  CHECK(options.role == "a b");
  CHECK(options.verbosity == Verbosity::kQuiet);
  CHECK(with_file("", "t").value().max_restarts == 0);
  CHECK(with_file("rdzv-conf = a=b", "t").error().context.starts_with("f:1: rdzv-conf 'a=b': "));
}

TEST_CASE("Config: the command line wins, then the environment, then the file", "[config]") {
  const char* file = "max-restarts = 3\nrdzv-endpoint = file\nshutdown-timeout = 5";
  CHECK(with_file(file, "--max-restarts 1 t").value().max_restarts == 1);
  CHECK(with_file(file, "t", {{"PET_MAX_RESTARTS", "2"}}).value().max_restarts == 2);
  CHECK(with_file(file, "t", {{"PET_MAX_RESTARTS", ""}}).value().max_restarts == 3);
  CHECK(with_file(file, "t", {{"DDPRUN_ENDPOINT", "env"}}).value().rdzv_endpoint->host == "env");
  CHECK(with_file(file, "t").value().rdzv_endpoint->host == "file");
  const Environment grace = {{"TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "9"}};
  CHECK(with_file(file, "t", grace).value().shutdown_timeout == std::chrono::seconds(9));
  const Environment token = {{"DDPRUN_TOKEN", "x"}};
  CHECK_FALSE(with_file("token-file = f", "t", token).value().token_file);
}

TEST_CASE("Config: what is wrong is named with its line", "[config]") {
  CHECK(error_in("nnodes = 1\nnnode = 2") == "f:2: unknown flag 'nnode'; did you mean --nnodes?");
  CHECK(error_in("nnodes 1") == "f:1: is not FLAG = VALUE, such as max-restarts = 3");
  CHECK(error_in("nnodes =") == "f:1: nnodes has no value");
  CHECK(error_in("tee=1\ntee=2") == "f:2: tee is given twice");
  CHECK(error_in("dry-run = 1") == "f:1: dry-run cannot be a default for all runs");
  CHECK(error_in("help = 1") == "f:1: help cannot be a default for all runs");
  CHECK(error_in("node-rank = 1") == "f:1: node-rank cannot be a default for all runs");
  CHECK(error_in("local-addr = a") == "f:1: local-addr cannot be a default for all runs");
  CHECK(error_in("rdzv-id = a") == "f:1: rdzv-id cannot be a default for all runs");
  CHECK(error_in("print-completion = zsh") ==
        "f:1: print-completion cannot be a default for all runs");
  CHECK(error_in(std::string_view("tee = 1\0", 8)) == "f:1: is not text");
  CHECK(error_in(std::string(70'000, '#')) == "f is longer than 64 KiB");
  CHECK(with_file("# x\nmax-restarts = many", "t")
            .error()
            .context.starts_with("f:2: max-restarts 'many': give a whole number"));
  // A value that the environment has set is not the file's fault.
  CHECK(with_file("max-restarts = 3", "t", {{"PET_MAX_RESTARTS", "many"}})
            .error()
            .context.starts_with("PET_MAX_RESTARTS 'many'"));
}

TEST_CASE("Config: where it is looked for", "[config]") {
  CHECK(config_path({{"HOME", "/h"}}) == "/h/.config/ddprun/config");
  CHECK(config_path({{"HOME", "/h"}, {"XDG_CONFIG_HOME", "/x"}}) == "/x/ddprun/config");
  CHECK(config_path({{"HOME", "/h"}, {"DDPRUN_CONFIG", "/c"}}) == "/c");
  CHECK(config_path({{"HOME", "/h"}, {"DDPRUN_CONFIG", ""}}).empty());
  CHECK(config_path({}).empty());
  CHECK(read_config_file("/does/not/exist", {}).has_value());
  CHECK(read_config_file("/does/not/exist", {{"DDPRUN_CONFIG", "/does/not/exist"}})
            .error()
            .context.find("cannot be read: No such file") != std::string::npos);
  // A folder cannot mean "no file".
  CHECK(read_config_file("/", {}).error().context == "'/' cannot be read: Is a directory");
  CHECK(read_config_file("/", {{"DDPRUN_CONFIG", "/"}}).error().context ==
        "DDPRUN_CONFIG '/' cannot be read: Is a directory");
  CHECK(read_config_file("/dev/null", {{"DDPRUN_CONFIG", "/dev/null"}}).value().entries.empty());
}

TEST_CASE("Config: damaged files break no promise", "[fuzz]") {
  std::mt19937 random(7);
  const std::vector<std::string> flags = option_names();
  const std::string letters = "a1:,[]{}=%\"'-/. \t\xff";
  for (int round = 0; round < 20'000; ++round) {
    std::string text;
    for (unsigned lines = random() % 4; lines > 0; --lines) {
      text += flags[random() % flags.size()] + " = ";
      for (unsigned n = random() % 12; n > 0; --n) text += letters[random() % letters.size()];
      text += "1\n";
    }
    fuzz::fuzz_config(reinterpret_cast<const std::uint8_t*>(text.data()), text.size());
  }
  SUCCEED("nothing aborted");
}

}  // namespace
}  // namespace ddprun::launcher
