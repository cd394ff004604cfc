#include "launcher/hosts/remote_node.h"

#include <catch2/catch.hpp>
#include <csignal>
#include <random>

#include "tests/fuzz/orders_fuzz.h"
#include "tests/support/damage.h"

namespace ddprun::launcher {
namespace {

const Orders kOrders{.nonce = "n0nce",
                     .token = "secret",
                     .working_folder = "/home/a b",
                     .argv = {"ddprun", "--role", "", "--", "train", "\xff\n"},
                     .environment = {"A=1", "B="}};

TEST_CASE("Orders: any argument and any value comes through as it was", "[hosts]") {
  CHECK(decode_orders(encode(kOrders)).value() == kOrders);
  Orders least{.nonce = "", .token = "", .working_folder = "", .argv = {"x"}, .environment = {}};
  CHECK(decode_orders(encode(least)).value() == least);
}

TEST_CASE("Orders: what is cut, longer, empty or of another version is refused", "[hosts]") {
  const std::string whole = encode(kOrders);
  for (std::size_t length = 0; length < whole.size(); ++length) {
    INFO(length);
    CHECK_FALSE(decode_orders(std::string_view(whole).substr(0, length)).has_value());
  }
  CHECK_FALSE(decode_orders(whole + "x").has_value());
  CHECK_FALSE(decode_orders(whole + '\0').has_value());
  CHECK(decode_orders("orders 1").error().context.find("of another version") != std::string::npos);
  Orders none = kOrders;
  none.argv.clear();
  CHECK_FALSE(decode_orders(encode(none)).has_value());
  CHECK_FALSE(decode_orders(std::string("orders 2\0n\0t\0/\0"
                                        "999999999\0",
                                        26))
                  .has_value());
}

TEST_CASE("Orders: signals that may be forwarded, and no others", "[hosts]") {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2}) {
    CHECK(decode_signal(encode_signal(signal)) == signal);
  }
  CHECK_FALSE(decode_signal("signal SIGKILL"));
  CHECK_FALSE(decode_signal("signal 9"));
  CHECK_FALSE(decode_signal(kKillNow));    // What an older node takes it for.
  CHECK_FALSE(decode_signal(kWithdrawn));  // The same.
  CHECK_FALSE(decode_signal(""));
}

TEST_CASE("Orders: the last line has the exit code, for whoever knows the nonce", "[hosts]") {
  CHECK(exit_code_in(ended_line("abc", 7), "abc") == 7);
  CHECK(exit_code_in(ended_line("abc", 255), "abc") == 255);
  CHECK_FALSE(exit_code_in(ended_line("abc", 7), "abd"));
  CHECK_FALSE(exit_code_in(ended_line("", 7), ""));
  CHECK_FALSE(exit_code_in("ddprun-control abc ended 256", "abc"));
  CHECK_FALSE(exit_code_in("ddprun-control abc ended 7 ", "abc"));
}

TEST_CASE("Orders: damaged ones break no promise", "[fuzz]") {
  std::mt19937 random(3);
  const std::string whole = encode(kOrders);
  for (int round = 0; round < 20'000; ++round) {
    const std::string bytes = test::damaged(whole, random);
    fuzz::fuzz_orders(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
  }
  SUCCEED("nothing aborted");
}

}  // namespace
}  // namespace ddprun::launcher
