#include "launcher/doctor/doctor_options.h"

#include <CLI/CLI.hpp>
#include <array>
#include <charconv>

#include "common/assert.h"
#include "launcher/options/hosts.h"
#include "launcher/options/read_options.h"

namespace ddprun::launcher {
namespace {

constexpr const char* kExamples = R"(Examples
  ddprun doctor                               is this machine fit for a run?
  ddprun doctor --hosts node1,node2,node3     are these, alone and together?
  ddprun doctor --hosts node1,node2 train     the program and its libraries, too
  ddprun doctor --json | jq '.checks[] | select(.status != "ok")'

Exit codes: 0: all well; 1: warnings; 2: unfit: a run fails or may give wrong results; 3: something
that matters could not be measured, or usage. To start a program named doctor: ddprun ./doctor.)";

struct Texts {
  std::string hosts, ssh, env, workers, port, colour;
};

void declare(CLI::App& app, DoctorOptions& o, Texts& texts) {
  app.description("Checks whether machines are fit for a run. Nothing is changed.");
  app.footer(kExamples);
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  app.add_option("--hosts", texts.hosts, "Check these hosts by ssh: HOST[:N],...");
  app.add_option("--ssh", texts.ssh, "ssh command for --hosts [ssh]");
  app.add_option("--env", texts.env, "Further variables that --hosts transfers");
  app.add_option("--nproc-per-node,--nproc_per_node", texts.workers,
                 "Workers on each node: N, auto, gpu or cpu [auto]");
  app.add_option("--port", texts.port,
                 "Port where the nodes meet [29400; a random one with --hosts]");
  app.add_option("--color", texts.colour, "auto, always or never [auto]");
  app.add_flag("--ascii", o.ascii, "Print ASCII characters only");
  app.add_flag("--json", o.json, "As JSON; docs/doctor.md has its fields");
  app.add_flag("-v,--verbose", o.verbose, "List the good checks of several nodes, too");
  app.add_flag("--far-end", o.far_end)->group("");
  app.add_option("program", o.program, "Compare this program and its libraries between nodes");
}

template <class Value>
std::optional<Failure> read(const char* flag, const std::string& text, Value& target,
                            Result<Value> (*parse)(std::string_view)) {
  if (text.empty()) return std::nullopt;
  Result<Value> value = parse(text);
  if (!value) {
    return Failure{Errc::kBadOption,
                   std::string(flag) + " '" + text.substr(0, 80) + "': " + value.error().context};
  }
  target = std::move(*value);
  return std::nullopt;
}

Result<Colour> parse_colour(std::string_view text) {
  if (text == "auto") return Colour::kAuto;
  if (text == "always") return Colour::kAlways;
  if (text == "never") return Colour::kNever;
  return Failure{Errc::kBadOption, "give auto, always or never"};
}

std::optional<Failure> resolve(const Texts& texts, DoctorOptions& o) {
  if (auto failure = read("--hosts", texts.hosts, o.hosts, parse_hosts)) return failure;
  if (auto failure = read("--ssh", texts.ssh, o.ssh, parse_words)) return failure;
  if (auto failure = read("--env", texts.env, o.env, parse_variable_names)) return failure;
  std::uint16_t port = 0;
  if (auto failure = read("--port", texts.port, port, parse_port)) return failure;
  if (port != 0) o.port = port;
  if (auto failure = read("--color", texts.colour, o.colour, parse_colour)) return failure;
  return read("--nproc-per-node", texts.workers, o.workers, parse_worker_count);
}

}  // namespace

Result<DoctorOutcome> parse_doctor(int argc, const char* const* argv) {
  DoctorOptions options;
  Texts texts;
  CLI::App app("", "ddprun doctor");
  declare(app, options, texts);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    return DoctorOutcome(PrintAndExit{app.help()});
  } catch (const CLI::ExtrasError&) {
    const std::string first = app.remaining().front();
    return Failure{Errc::kBadOption, "unknown argument '" + first + "'; see ddprun doctor --help"};
  } catch (const CLI::ParseError& error) {
    return Failure{Errc::kBadOption, std::string(error.what()) + "; see ddprun doctor --help"};
  }
  if (const auto failure = resolve(texts, options)) return *failure;
  return DoctorOutcome(std::move(options));
}

std::vector<std::string> far_end_argv(const DoctorOptions& options) {
  std::vector<std::string> argv = {"ddprun", std::string(kDoctorCommand), "--far-end",
                                   "--nproc-per-node", to_string(options.workers)};
  if (!options.program.empty()) argv.insert(argv.end(), {"--", options.program});
  return argv;
}

namespace {

using Kind = DoctorRequest::Kind;

enum class Part { kName, kHost, kPort, kNonce };

struct Form {
  Kind kind;
  std::string_view word;
  std::vector<Part> parts;
};

const std::vector<Form>& forms() {
  using enum Part;
  static const std::vector<Form> kForms = {
      {Kind::kFacts, "facts", {}},
      {Kind::kClock, "clock", {}},
      {Kind::kListen, "listen", {kNonce, kPort}},
      {Kind::kMeet, "meet", {kHost, kPort, kNonce}},
      {Kind::kReach, "reach", {kName, kHost, kPort, kNonce}},
      {Kind::kSend, "send", {kName, kHost, kPort, kNonce}},
  };
  return kForms;
}

std::vector<std::string> words_of(std::string_view text) {
  constexpr std::size_t kWordsMax = 8;
  std::vector<std::string> words;
  for (std::size_t begin = 0; begin <= text.size() && words.size() <= kWordsMax;) {
    const std::size_t end = std::min(text.find(' ', begin), text.size());
    words.emplace_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return words;
}

bool read_port(const std::string& text, std::uint16_t& port) {
  const char* last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, port);
  return error == std::errc() && end == last && !text.empty();
}

bool read(Part part, const std::string& word, DoctorRequest& request) {
  if (word.empty()) return false;
  switch (part) {
    case Part::kName: request.name = word; return true;
    case Part::kHost: request.host = word; return true;
    case Part::kNonce: request.nonce = word; return true;
    case Part::kPort: break;
  }
  return read_port(word, request.port);
}

std::string text_of(Part part, const DoctorRequest& request) {
  switch (part) {
    case Part::kName: return request.name;
    case Part::kHost: return request.host;
    case Part::kNonce: return request.nonce;
    case Part::kPort: break;
  }
  return std::to_string(request.port);
}

}  // namespace

std::string encode(const DoctorRequest& request) {
  for (const Form& form : forms()) {
    if (form.kind != request.kind) continue;
    std::string text(form.word);
    for (const Part part : form.parts) text += " " + text_of(part, request);
    return text;
  }
  DDPRUN_ASSERT(false);
  return "";
}

std::optional<DoctorRequest> decode_request(std::string_view text) {
  const std::vector<std::string> words = words_of(text);
  for (const Form& form : forms()) {
    if (words.front() != form.word || words.size() != form.parts.size() + 1) continue;
    DoctorRequest request{.kind = form.kind};
    for (std::size_t i = 0; i < form.parts.size(); ++i) {
      if (!read(form.parts[i], words[i + 1], request)) return std::nullopt;
    }
    return request;
  }
  return std::nullopt;
}

std::optional<Result<doctor::Facts>> answer_in(std::string_view line) {
  if (!line.starts_with(kAnswer)) return std::nullopt;
  return doctor::decode_facts(line.substr(kAnswer.size()));
}

}  // namespace ddprun::launcher
