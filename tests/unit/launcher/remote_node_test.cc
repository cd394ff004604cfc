#include "launcher/hosts/remote_node.h"

#include <catch2/catch.hpp>

#include "launcher/hosts/remote_node.h"

namespace ddprun::launcher {
namespace {

using State = RemoteNode::State;

std::string why_of(int code, const std::string& message) {
  RemoteNode node("m1", "/opt/ddprun", "x86_64");
  if (!message.empty()) node.on_stderr_line(message);
  node.on_end(code);
  CHECK(node.never_ran());
  CHECK_FALSE(node.was_lost());
  return node.why();
}

TEST_CASE("Remote node: from ssh's start to its exit code", "[hosts]") {
  RemoteNode node("m1", "/opt/ddprun", "x86_64");
  CHECK_FALSE(node.on_stdout_line("Welcome to m1!"));  // A shell that greets.
  CHECK_FALSE(node.on_stderr_line("some warning"));
  CHECK(node.state() == State::kConnecting);
  CHECK_FALSE(node.on_stdout_line(kReadyLine));
  CHECK(node.state() == State::kReady);
  node.ordered("n");
  CHECK(node.on_stdout_line("[default0]: step 1"));
  CHECK(node.on_stderr_line("ddprun: rank 0 exited with 7"));
  CHECK(node.on_stdout_line(ended_line("other", 3)));  // A worker that tries.
  CHECK_FALSE(node.on_stdout_line(ended_line("n", 7)));
  node.on_end(7);
  CHECK(node.exit_code() == 7);
  CHECK_FALSE(node.never_ran());
  CHECK_FALSE(node.was_lost());
}

TEST_CASE("Remote node: a worker's 255 is not ssh's", "[hosts]") {
  for (const bool reported : {true, false}) {
    RemoteNode node("m1", "/opt/ddprun", "x86_64");
    node.on_stdout_line(kReadyLine);
    node.ordered("n");
    if (reported) node.on_stdout_line(ended_line("n", 255));
    node.on_end(255);
    CHECK(node.was_lost() == !reported);
    CHECK(node.exit_code().has_value() == reported);
    if (!reported) CHECK(node.why().starts_with("the connection to m1 broke"));
  }
}

TEST_CASE("Remote node: each way for ssh to fail is a sentence", "[hosts]") {
  // As OpenSSH 9.2 prints them.
  CHECK(why_of(255, "ssh: Could not resolve hostname m1: Name or service not known")
            .starts_with("m1 is not known: no such host name (ssh: Could not"));
  CHECK(why_of(255, "ssh: connect to host m1 port 22: Connection refused")
            .starts_with("m1 does not answer ssh (connection refused)"));
  CHECK(why_of(255, "ssh: connect to host m1 port 22: No route to host")
            .starts_with("m1 cannot be reached: there is no route"));
  CHECK(why_of(255, "ssh: connect to host m1 port 22: Connection timed out")
            .starts_with("m1 cannot be reached: no answer"));
  CHECK(why_of(255, "root@m1: Permission denied (publickey).").starts_with("m1 refuses our key"));
  CHECK(
      why_of(255, "Host key verification failed.").starts_with("m1's host key is not known here"));
  CHECK(why_of(255, "@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @")
            .starts_with("m1's host key has changed"));
  CHECK(why_of(255, "kex_exchange_identification: Connection closed by remote host")
            .starts_with("m1 closed the connection"));
  CHECK(why_of(255, "strange things") == "ssh to m1 failed: strange things");
  CHECK(why_of(137, "") == "ddprun did not start on m1 (code 137)");
}

TEST_CASE("Remote node: a host without ddprun, or with one that is older", "[hosts]") {
  CHECK(why_of(127, "/bin/sh: 1: exec: ddprun: not found") ==
        "ddprun is not installed on m1: neither /opt/ddprun nor in the PATH that ssh gives there");
  CHECK(why_of(2, "ddprun: error: unknown option --control-stdin") ==
        "ddprun did not start on m1 (code 2): ddprun: error: unknown option --control-stdin");
  // As nologin prints it, on standard output.
  RemoteNode closed("m1", "/opt/ddprun", "x86_64");
  closed.on_stdout_line("Welcome to m1!");
  closed.on_stdout_line("This account is currently not available.");
  closed.on_end(1);
  CHECK(closed.why() ==
        "ddprun did not start on m1 (code 1): This account is currently not available.");
  RemoteNode node("m1", "/opt/ddprun", "x86_64");
  node.on_stdout_line("Welcome to m1!");
  node.on_stdout_line(kReadyLine);
  node.on_end(3);
  CHECK(node.never_ran());
  CHECK(node.why() == "ddprun on m1 ended before it was given anything to do");
}

TEST_CASE("Remote node: what ssh says is shown on one line and not endlessly", "[hosts]") {
  CHECK(why_of(255, "a\033[2J\tb") == "ssh to m1 failed: a?[2J b");
  CHECK(why_of(255, "a\xc2\x9b[2Jb") == "ssh to m1 failed: a?[2Jb");
  RemoteNode node("m1", "/opt/ddprun", "x86_64");
  for (int i = 0; i < 1'000; ++i) node.on_stderr_line(std::string(5'000, 'x'));
  node.on_end(255);
  CHECK(node.why().size() < 3'000);
}

TEST_CASE("Remote node: a host without ddprun gets one that its machine can run", "[hosts]") {
  using Wants = RemoteNode::Wants;
  RemoteNode node("m1", "/opt/ddprun", "x86_64");
  CHECK_FALSE(node.on_stdout_line(kSendLine));  // Before it was offered one.
  CHECK(node.take_wants() == Wants::kNothing);
  CHECK_FALSE(node.on_stdout_line(std::string(kWantsLine) + "x86_64"));
  CHECK(node.take_wants() == Wants::kOffer);
  CHECK(node.take_wants() == Wants::kNothing);
  CHECK(node.is_copying());
  CHECK_FALSE(node.on_stdout_line(kSendLine));
  CHECK(node.take_wants() == Wants::kCopy);
  CHECK_FALSE(node.on_stdout_line(kReadyLine));
  CHECK_FALSE(node.is_copying());
  CHECK(node.state() == State::kReady);

  RemoteNode full("m1", "/opt/ddprun", "x86_64");
  full.on_stdout_line(std::string(kWantsLine) + "x86_64");
  full.on_stderr_line("tar: No space left on device");
  full.on_end(126);
  CHECK(full.why() ==
        "this ddprun could not be copied to m1 (code 126): tar: No space left on device");

  RemoteNode other("m1", "/opt/ddprun", "x86_64");
  other.on_stdout_line(std::string(kWantsLine) + "aarch64");
  CHECK(other.take_wants() == Wants::kNothing);
  CHECK(other.is_other_machine());
  other.on_end(127);
  CHECK(other.why() ==
        "ddprun is not installed on m1, and this one cannot be copied there: m1 is of the kind "
        "aarch64, this machine of the kind x86_64");
}

}  // namespace
}  // namespace ddprun::launcher
