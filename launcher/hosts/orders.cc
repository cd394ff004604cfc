#include "launcher/hosts/orders.h"

#include <csignal>
#include <utility>

#include "launcher/options/option_values.h"

namespace ddprun::launcher {
namespace {

constexpr std::string_view kMagic = "orders 2";
constexpr int kStringsMax = 100'000;

constexpr std::pair<std::string_view, int> kSignals[] = {
    {"SIGINT", SIGINT},   {"SIGTERM", SIGTERM}, {"SIGHUP", SIGHUP},
    {"SIGQUIT", SIGQUIT}, {"SIGUSR1", SIGUSR1}, {"SIGUSR2", SIGUSR2},
};

// Strings end with a zero byte, which neither arguments nor variables can hold.
void put(std::string& body, std::string_view text) {
  body += text;
  body += '\0';
}

void put(std::string& body, const std::vector<std::string>& list) {
  put(body, std::to_string(list.size()));
  for (const std::string& text : list) put(body, text);
}

class Strings {
 public:
  explicit Strings(std::string_view body) : body_(body) {}

  std::string text() {
    const std::size_t end = body_.find('\0');
    if (end == std::string_view::npos) return ok_ = false, "";
    std::string taken(body_.substr(0, end));
    body_.remove_prefix(end + 1);
    return taken;
  }
  std::vector<std::string> list() {
    const Result<int> count = parse_integer(text(), 0, kStringsMax);
    std::vector<std::string> taken;
    if (!count) return ok_ = false, taken;
    for (int i = 0; i < *count && ok_; ++i) taken.push_back(text());
    return taken;
  }
  bool all_taken() const { return ok_ && body_.empty(); }

 private:
  std::string_view body_;
  bool ok_ = true;
};

}  // namespace

std::string encode(const Orders& orders) {
  std::string body;
  put(body, kMagic);
  put(body, orders.nonce);
  put(body, orders.token);
  put(body, orders.working_folder);
  put(body, orders.argv);
  put(body, orders.environment);
  return body;
}

Result<Orders> decode_orders(std::string_view body) {
  Strings strings(body);
  if (strings.text() != kMagic) {
    return Failure{Errc::kBadMessage, "the launching ddprun is of another version"};
  }
  Orders orders;
  orders.nonce = strings.text();
  orders.token = strings.text();
  orders.working_folder = strings.text();
  orders.argv = strings.list();
  orders.environment = strings.list();
  if (strings.all_taken() && !orders.argv.empty()) return orders;
  return Failure{Errc::kBadMessage, "the launching ddprun's orders are damaged"};
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
