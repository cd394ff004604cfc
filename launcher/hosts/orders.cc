#include "launcher/hosts/orders.h"

#include <csignal>
#include <utility>

#include "common/archive/packed.h"
#include "launcher/options/option_values.h"

namespace ddprun::launcher {
namespace {

constexpr std::string_view kMagic = "orders 2";
constexpr std::size_t kStringsMax = 100'000;

constexpr std::pair<std::string_view, int> kSignals[] = {
    {"SIGINT", SIGINT},   {"SIGTERM", SIGTERM}, {"SIGHUP", SIGHUP},
    {"SIGQUIT", SIGQUIT}, {"SIGUSR1", SIGUSR1}, {"SIGUSR2", SIGUSR2},
};

// Neither arguments nor variables can hold a zero byte.
using Form = archive::Ended<'\0'>;

}  // namespace

template <class A>
void fields(A& a, archive::Is<Orders> auto& m) {
  a.constant("version", kMagic), a("nonce", m.nonce), a("token", m.token);
  a("working_folder", m.working_folder);
  a.list("argv", m.argv, kStringsMax), a.list("environment", m.environment, kStringsMax);
  if (A::kReads && m.argv.empty()) throw archive::BadField{"argv"};
}

std::string encode(const Orders& orders) { return archive::packed<Form>(orders); }

Result<Orders> decode_orders(std::string_view body) {
  return archive::unpacked<Form, Orders>(
      body, "the orders of the launching ddprun, which may be of another version");
}

std::string encode_signal(int signal) {
  for (const auto& [name, number] : kSignals) {
    if (number == signal) return "signal " + std::string(name);
  }
  return "signal SIGTERM";
}

std::optional<int> decode_signal(std::string_view body) {
  for (const auto& [name, number] : kSignals) {
    if (body == "signal " + std::string(name)) return number;
  }
  return std::nullopt;
}

std::string ended_line(const std::string& nonce, int exit_code) {
  return "ddprun-control " + nonce + " ended " + std::to_string(exit_code);
}

std::optional<int> exit_code_in(std::string_view line, const std::string& nonce) {
  const std::string start = "ddprun-control " + nonce + " ended ";
  if (nonce.empty() || !line.starts_with(start)) return std::nullopt;
  const Result<int> code = parse_integer(line.substr(start.size()), 0, 255);
  return code ? std::optional(*code) : std::nullopt;
}

}  // namespace ddprun::launcher
