#include "agent/workers/fork_messages.h"

#include <catch2/catch.hpp>
#include <string>

namespace ddprun::agent {
namespace {

using namespace std::string_literals;
using Kind = ForkReply::Kind;
using Words = std::vector<std::string>;

TEST_CASE("a request has the number, the agent, the command and the environment") {
  const Words argv = {"/usr/bin/python3", "-u", "train.py"};
  const Words environment = {"RANK=0", "A=b=c", "E="};
  CHECK(encode({7, 4711, argv, environment}).value() ==
        "fork\0007\0004711\0003\0/usr/bin/python3\0-u\0train.py\0RANK=0\0A=b=c\0E=\0"s);
}

TEST_CASE("a request that does not fit into a packet is a failure that gives its size") {
  const Words argv = {"python3"}, environment = {"A=" + std::string(kForkRequestMax, 'x')};
  const auto packet = encode({1, 2, argv, environment});
  REQUIRE(packet.has_error());
  const std::size_t size = std::string("fork 1 2 1 python3 A=  ").size() - 1 + kForkRequestMax;
  CHECK_THAT(packet.error().context, Catch::Contains(std::to_string(size) + " bytes"));
}

TEST_CASE("each kind of reply is read") {
  CHECK(decode_fork_reply("ready\0"
                          "120 modules\0"s)
            .value() == ForkReply{.kind = Kind::kReady, .text = "120 modules"});
  CHECK(decode_fork_reply("refused\0torch starts a thread\0"s).value() ==
        ForkReply{.kind = Kind::kRefused, .text = "torch starts a thread"});
  CHECK(decode_fork_reply("refused\0\0"s).value() == ForkReply{});
  CHECK(decode_fork_reply("forked\00012\0004711\0"s).value() ==
        ForkReply{.kind = Kind::kForked, .number = 12, .pid = 4711});
  CHECK(decode_fork_reply("cold\00012\0too large\0"s).value() ==
        ForkReply{.kind = Kind::kCold, .number = 12, .text = "too large"});
  CHECK(decode_fork_reply("resumed\000120 modules\0"s).value() ==
        ForkReply{.kind = Kind::kResumed, .text = "120 modules"});
  CHECK(decode_fork_reply("unfit\0x.py has changed\0"s).value() ==
        ForkReply{.kind = Kind::kUnfit, .text = "x.py has changed"});
  CHECK(decode_fork_reply("saved\000120\0"s).value() ==
        ForkReply{.kind = Kind::kSaved, .text = "120"});
  CHECK(decode_fork_reply("absent\0nunpy\0"s).value() ==
        ForkReply{.kind = Kind::kAbsent, .text = "nunpy"});
  CHECK(decode_fork_reply("failed\0the fork server has failed\0"s).value() ==
        ForkReply{.kind = Kind::kFailed, .text = "the fork server has failed"});
}

TEST_CASE("what is no reply is refused") {
  const std::string bad[] = {""s,
                             "\0"s,
                             "ready"s,
                             "ready\0"s,
                             "ready\0a\0b\0"s,
                             "forked\0001\0"s,
                             "forked\0001\0002x\0"s,
                             "forked\0\00022\0"s,
                             "forked\0001\0-5\0"s,
                             "forked\0001\0000\0"s,
                             "forked\0001\0001\0"s,
                             "forked\0001\00099999999999\0"s,
                             "forked\000-1\00022\0"s,
                             "spoon\0001\00022\0"s,
                             "cold\0001\0why"s,
                             "refused\0"s + std::string(kForkReplyMax, 'x') + "\0"s};
  for (const std::string& packet : bad) {
    INFO(packet);
    const auto reply = decode_fork_reply(packet);
    REQUIRE(reply.has_error());
    CHECK(reply.error().code == Errc::kBadMessage);
  }
}

TEST_CASE("a reason reaches the terminal as one short line") {
  const std::string why = "a\nb\x1b[31m" + std::string(2000, 'x');
  const auto reply = decode_fork_reply("cold\0001\0"s + why + "\0"s);
  const std::string& text = reply.value().text;
  CHECK(text.find('\n') == std::string::npos);
  CHECK(text.find('\x1b') == std::string::npos);
  CHECK(text.size() < 500);
}

TEST_CASE("variables of ranks may differ between a fork server and its workers") {
  const Words server = {"A=1", "OMP_NUM_THREADS=1"};
  const Words worker = {"A=1",
                        "DDPRUN_PROGRESS=/x",
                        "GROUP_RANK=1",
                        "LOCAL_RANK=3",
                        "MASTER_ADDR=a",
                        "NCCL_HOSTID=b",
                        "RANK=5",
                        "OMP_NUM_THREADS=1",
                        "TORCHELASTIC_RUN_ID=c",
                        "WORLD_SIZE=8",
                        "TORCHELASTIC_ERROR_FILE=d",
                        "MASTER_PORT=1"};
  CHECK(environment_difference(server, worker).empty());
}

TEST_CASE("a variable that libraries read when they are loaded must be equal") {
  const Words server = {"A=1", "B=2", "C=3"};
  const auto named = [&](const Words& worker) { return environment_difference(server, worker); };
  CHECK(named({"A=1", "B=2", "C=3"}).empty());
  CHECK(named({"C=3", "B=2", "A=1"}).empty());
  CHECK(named({"A=1", "B=3", "C=3"}) == "B is another one for this rank");
  CHECK(named({"A=1", "C=3"}) == "B is another one for this rank");
  CHECK(named({"A=1", "B=2"}) == "C is another one for this rank");
  CHECK(named({"A=1", "AA=1", "B=2", "C=3"}) == "AA is another one for this rank");
  CHECK(named({"A=1", "B=2", "C=3", "D=4"}) == "D is another one for this rank");
  CHECK(named({"CUDA_VISIBLE_DEVICES=1", "A=1", "B=2", "C=3"}) ==
        "CUDA_VISIBLE_DEVICES is another one for this rank");
}

TEST_CASE("the fork server gets the names of the ranks' variables") {
  const std::string list = variables_of_ranks();
  CHECK(("," + list + ",").find(",RANK,") != std::string::npos);
  CHECK(("," + list + ",").find(",TORCHELASTIC_*,") != std::string::npos);
  CHECK(is_of_rank("TORCHELASTIC_RESTART_COUNT"));
  CHECK_FALSE(is_of_rank("RANKS"));
  CHECK_FALSE(is_of_rank("NCCL_DEBUG"));
}

TEST_CASE("a kept fork server is for one program, folder and environment, whatever the arguments") {
  const Words argv = {"/usr/bin/python3", "-u", "train.py", "--lr", "1"};
  const Words environment = {"A=1", "RANK=0", "SHLVL=1", "B=2"};
  const auto key = [&](const Words& command, const Words& variables, const char* modules = "auto",
                       const char* folder = "/work") {
    return kept_key(command, variables, modules, folder);
  };
  const std::string first = key(argv, environment);
  CHECK(key({"/usr/bin/python3", "-u", "train.py"}, environment) == first);
  CHECK(key(argv, {"B=2", "A=1", "RANK=3", "SHLVL=2", "SSH_TTY=/dev/pts/1"}) == first);
  CHECK(key({"/usr/bin/python3", "-u", "other.py", "--lr", "1"}, environment) != first);
  CHECK(key({"/opt/bin/python3", "-u", "train.py"}, environment) != first);
  CHECK(key({"/usr/bin/python3", "-u", "-m", "train.py"}, environment) != first);
  CHECK(key(argv, {"A=1", "B=3"}) != first);
  CHECK(key(argv, {"A=1", "B=2", "C="}) != first);
  CHECK(key(argv, {"A=1B", "=2"}) != first);
  CHECK(key(argv, environment, "torch") != first);
  CHECK(key(argv, environment, "auto", "/other") != first);
  const Words module = {"/usr/bin/python3", "-u", "-m", "a"},
              other = {"/usr/bin/python3", "-u", "-m", "b"};
  CHECK(key(module, environment) != key(other, environment));
  const Words path = {"/usr/bin/python3", "-u", "-c", "code", "a.py", "1"};
  CHECK(key(path, environment) ==
        key({"/usr/bin/python3", "-u", "-c", "code", "a.py"}, environment));
  CHECK(key(path, environment) !=
        key({"/usr/bin/python3", "-u", "-c", "code", "b.py", "1"}, environment));
}

TEST_CASE("only Python's own command has a fork server") {
  CHECK(is_python_command({"/usr/bin/python3", "-u", "train.py"}));
  CHECK(is_python_command({"/opt/venv/bin/python3.12", "-u", "-m", "my.module", "-x"}));
  CHECK(is_python_command({"/usr/bin/python3", "-u", "-c", "code", "train.py"}));
  CHECK_FALSE(is_python_command({"/usr/bin/python3", "-u"}));
  CHECK_FALSE(is_python_command({"/usr/bin/python3", "-u", "-m"}));
  CHECK_FALSE(is_python_command({"/usr/bin/python3", "-u", "-X", "dev"}));
  CHECK_FALSE(is_python_command({"/usr/bin/python3", "train.py", "x"}));
  CHECK_FALSE(is_python_command({"/usr/bin/env", "-u", "train.py"}));
  CHECK_FALSE(is_python_command({"./train"}));
}

}  // namespace
}  // namespace ddprun::agent
