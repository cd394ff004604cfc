#include <catch2/catch.hpp>

#include "common/text/words.h"
#include "launcher/plan/plan.h"
#include "tests/support/command_line.h"

namespace ddprun::launcher {
namespace {

std::string pasted(const Options& options, MachineFacts facts = {}) {
  facts.host_name = "node0";
  facts.own_addresses = {"10.0.0.1"};
  return paste_line(make_plan(options, facts).value(), options, "c0ffee");
}

TEST_CASE("Paste line: the whole command for the other machine, the token not in argv", "[plan]") {
  CHECK(pasted(options_of("--nnodes 2 --nproc-per-node 8 train --epochs 3")) ==
        "DDPRUN_TOKEN=c0ffee ddprun --nnodes 2 --nproc-per-node 8 "
        "--rdzv-endpoint 10.0.0.1:29400 train --epochs 3");
}

TEST_CASE("Paste line: what is true of this node only is left out", "[plan]") {
  CHECK(pasted(options_of("--nnodes 3 --node-rank 0 --master-addr 10.0.0.1 --master-port 7 "
                          "--local-addr 10.0.0.1 --rdzv-conf is_host=1,join_timeout=5 -m -v "
                          "--rdzv-backend static x")) ==
        "DDPRUN_TOKEN=c0ffee ddprun --nnodes 3 --rdzv-conf join_timeout=5 --module --verbose "
        "--rdzv-endpoint 10.0.0.1:7 x");
  CHECK(pasted(options_of("--nnodes 3 --local-nodes 2 --rdzv-conf is_host=1 x")) ==
        "DDPRUN_TOKEN=c0ffee ddprun --nnodes 3 --rdzv-endpoint 10.0.0.1:29400 x");
  CHECK(pasted(options_of("--nnodes 2 --rdzv-endpoint node0 --master-port 7 x")) ==
        "DDPRUN_TOKEN=c0ffee ddprun --nnodes 2 --rdzv-endpoint node0:29400 --master-port 7 x");
}

TEST_CASE("Paste line: defaults from the environment are spelled out", "[plan]") {
  CHECK(pasted(options_of("x", {{"PET_NNODES", "2"}, {"PET_MODULE", "1"}})) ==
        "DDPRUN_TOKEN=c0ffee ddprun --nnodes 2 --module --rdzv-endpoint 10.0.0.1:29400 x");
}

TEST_CASE("Paste line: a token that the user brought is never shown", "[plan]") {
  const Options options = options_of("--nnodes 2 x");
  MachineFacts facts;
  facts.token_in_environment = true;
  CHECK(pasted(options, facts) == "ddprun --nnodes 2 --rdzv-endpoint 10.0.0.1:29400 x");
  CHECK(pasted(options_of("--nnodes 2 --token-file f x")) ==
        "ddprun --nnodes 2 --rdzv-endpoint 10.0.0.1:29400 --token-file f x");
  CHECK(pasted(options_of("--nnodes 2 --rdzv-conf auth=none x")) ==
        "ddprun --nnodes 2 --rdzv-conf auth=none --rdzv-endpoint 10.0.0.1:29400 x");
}

TEST_CASE("Paste line: a shell reads the same words back", "[plan]") {
  CHECK(shell_quote("plain-1.0/x=y") == "plain-1.0/x=y");
  CHECK(shell_quote("") == "''");
  CHECK(shell_quote("two words") == "'two words'");
  CHECK(shell_quote("it's") == "'it'\\''s'");
  CHECK(shell_quote("$HOME;`x`") == "'$HOME;`x`'");
  CHECK(shell_quote("~") == "'~'");
  CHECK(shell_quote("[::1]:5") == "'[::1]:5'");
  const auto outcome = parse_words({"--nnodes", "2", "my prog", "a b", "", "--x=[1, 2]"});
  CHECK(pasted(std::get<Options>(outcome.value())) ==
        "DDPRUN_TOKEN=c0ffee ddprun --nnodes 2 --rdzv-endpoint 10.0.0.1:29400 'my prog' 'a b' '' "
        "'--x=[1, 2]'");
}

}  // namespace
}  // namespace ddprun::launcher
