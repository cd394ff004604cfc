#include "launcher/options/slurm_options.h"

#include <catch2/catch.hpp>
#include <random>

#include "launcher/slurm/submission.h"

namespace ddprun::launcher {
namespace {

Result<SlurmOutcome> outcome(const std::vector<std::string>& words) {
  std::vector<const char*> argv = {"slurm"};
  for (const std::string& word : words) argv.push_back(word.c_str());
  return parse_slurm(static_cast<int>(argv.size()), argv.data(), {});
}

SlurmOptions parsed(const std::vector<std::string>& words) {
  return std::get<SlurmOptions>(outcome(words).value());
}

std::string refusal(const std::vector<std::string>& words) {
  const auto read = outcome(words);
  return read ? "accepted" : read.error().context;
}

std::string text(const std::vector<std::string>& words) {
  std::string all;
  for (const std::string& word : words) all += (all.empty() ? "" : " ") + word;
  return all;
}

// The lines that are not the template's.
std::string filled_lines(const std::string& script) {
  std::string lines;
  for (std::size_t at = 0; (at = script.find("# Filled in by", at)) != std::string::npos;) {
    const std::size_t begin = script.find('\n', at) + 1, end = script.find("\n\n", at);
    const std::size_t stop = std::min(end, script.find("\nset -euo", at));
    lines += script.substr(begin, stop - begin) + "\n";
    at = stop;
  }
  return lines;
}

TEST_CASE("ddprun slurm: options before -- are sbatch's, but for its own", "[slurm]") {
  const SlurmOptions options =
      parsed({"--partition", "spot", "--nodes=4", "-t", "2:00", "--", "-m", "train", "--nodes=9"});
  CHECK(text(options.sbatch) == "--partition spot -t 2:00");
  CHECK(options.nodes == NodeRange{4, 4});
  CHECK(text(options.argv) == "-m train --nodes=9");
  CHECK_FALSE(options.is_elastic());
  for (const std::vector<std::string>& spelled :
       {std::vector<std::string>{"-N2:3"}, {"-N", "2:3"}, {"--nodes", "2:3"}, {"--nodes=2:3"}}) {
    auto words = spelled;
    words.insert(words.end(), {"--", "x"});
    CHECK(parsed(words).nodes == NodeRange{2, 3});
  }
  CHECK(parsed({"--nodes=2-4", "--", "x"}).nodes_text == "2-4");
  CHECK_FALSE(parsed({"--nodes=2-4", "--", "x"}).nodes);
  CHECK(parsed({"--join", "7"}).is_elastic());
  CHECK(std::get<PrintAndExit>(outcome({"--help"}).value()).text.find("--join") !=
        std::string::npos);
}

TEST_CASE("ddprun slurm: what cannot be meant is refused before Slurm starts it", "[slurm]") {
  CHECK(refusal({"--nodes", "2", "train.py"}).starts_with("-- is missing between the options"));
  CHECK(refusal({"--nodes", "2", "--"}) == "PROGRAM is missing behind --");
  CHECK(refusal({"--nodes", "0:2", "--", "x"}).starts_with("--nodes '0:2': "));
  CHECK(refusal({"--nodes"}) == "--nodes needs a value");
  CHECK(refusal({"--dry-run=1", "--", "x"}) == "--dry-run=1: --dry-run has no value");
  CHECK(refusal({"--", "--max-restart", "x", "y"}).find("--max-restarts 'x'") != std::string::npos);
  CHECK(refusal({"--ntasks-per-node=8", "--", "x"}).find("give --nproc-per-node behind --") !=
        std::string::npos);
  CHECK(refusal({"--comment=a\ntouch b", "--", "x"}).find("the end of a line") !=
        std::string::npos);
  CHECK(refusal({"-n8", "--", "x"}).find("give --nproc-per-node behind --") != std::string::npos);
  CHECK(refusal({"--wait", "--", "x"}).find("--dry-run") != std::string::npos);
  CHECK(refusal({"--array=0-3", "--nodes=1:2", "--", "x"}).find("a run of its own") !=
        std::string::npos);
  CHECK(refusal({"--array=0-3", "--", "x"}) == "accepted");
  CHECK(refusal({"--", "--hosts", "a,b", "x"}).find("Slurm starts them") != std::string::npos);
  CHECK(refusal({"--nodes=1:2", "--", "--nnodes", "1:3", "x"}).find("another range") !=
        std::string::npos);
  CHECK(refusal({"--nodes=1:2", "--", "--nnodes", "1:2", "x"}) == "accepted");
  CHECK(refusal({"--join=x"}) == "--join 'x': give the number of a job");
  CHECK(refusal({"--join=7", "--nodes=1:2"}).find("needs one number") != std::string::npos);
  CHECK(refusal({"--join=7", "--nodes=1001"}).find("more than 1000 jobs") != std::string::npos);
  CHECK(refusal({"--nodes=1:1002", "--", "x"}).find("more than 1000 jobs") != std::string::npos);
}

TEST_CASE("ddprun slurm: the script follows from the options", "[slurm]") {
  CHECK(script_for(parsed({"--", "x"})) == SlurmScript::kOneNode);
  CHECK(script_for(parsed({"--gpus=2", "--", "x"})) == SlurmScript::kOneNode);
  CHECK(script_for(parsed({"--exclusive", "--", "x"})) == SlurmScript::kNodes);
  CHECK(script_for(parsed({"--nodes=1", "--", "x"})) == SlurmScript::kNodes);
  CHECK(script_for(parsed({"--nodes=2-4", "--", "x"})) == SlurmScript::kNodes);
  CHECK(script_for(parsed({"--nodes=2", "--requeue", "--", "x"})) == SlurmScript::kSpot);
  CHECK(script_for(parsed({"--nodes=2:4", "--requeue", "--", "x"})) == SlurmScript::kElastic);
  CHECK(script_for(parsed({"--join=7"})) == SlurmScript::kElastic);
}

TEST_CASE("ddprun slurm: scripts are those of deploy/slurm, with a few lines filled in",
          "[slurm]") {
  const Submission one = first_job(parsed({"--gpus=2", "--", "train.py", "a b", "it's"}), "/d/p");
  CHECK(text(one.sbatch) == "sbatch --parsable --gpus=2");
  CHECK(filled_lines(one.script) ==
        "#SBATCH --gpus=2\n"
        "DDPRUN=${DDPRUN:-/d/p}\n"
        "set -- train.py 'a b' 'it'\\''s'\n");
  const Submission four = first_job(parsed({"--nodes", "4", "--", "x"}), "/d/p");
  CHECK(text(four.sbatch) == "sbatch --parsable --nodes=4");
  const Submission spot = first_job(parsed({"--requeue", "--", "x"}), "/d/p");
  CHECK(text(spot.sbatch) == "sbatch --parsable --requeue --nodes=1");
  for (const SlurmScript which : {SlurmScript::kOneNode, SlurmScript::kNodes, SlurmScript::kSpot,
                                  SlurmScript::kElastic, SlurmScript::kDaemon}) {
    CHECK(text_of(which).starts_with("#!/bin/bash\n"));
    CHECK(text_of(which).find("\nset -euo pipefail\n") != std::string_view::npos);
  }
}

TEST_CASE("ddprun slurm: a range of nodes is one job, and jobs of one node that join it",
          "[slurm]") {
  const SlurmOptions options = parsed({"-p", "all", "--nodes=2:5", "--", "train.py"});
  const Submission first = first_job(options, "/d/p");
  CHECK(text(first.sbatch) == "sbatch --parsable -p all --nodes=2");
  CHECK(filled_lines(first.script) ==
        "#SBATCH -p all --nodes=2\nDDPRUN=${DDPRUN:-/d/p}\nset -- --nnodes 2:5 train.py\n");
  CHECK(joining_jobs(options) == 3);
  const Submission more = joining_job(options, "/d/p", "47");
  CHECK(text(more.sbatch) == "sbatch --parsable -p all --nodes=1 --dependency=after:47");
  CHECK(filled_lines(more.script) ==
        "#SBATCH -p all --nodes=1 --dependency=after:47\nDDPRUN=${DDPRUN:-/d/p}\nJOIN=47\n");
  CHECK(hints(options, "47", {"47", "48", "49"}).find("scancel 47 48 49") != std::string::npos);
}

TEST_CASE(
    "ddprun slurm: --daemon-on this-host is a script in the background, and a run with a name",
    "[slurm]") {
  const SlurmOptions options =
      parsed({"--daemon-on=this-host", "--partition=spot", "--nodes=2:3", "--", "train.py"});
  CHECK(options.has_daemon_here());
  const std::string script = daemon_script("/d/p", "login1-c0ffee");
  CHECK(filled_lines(script) == "DDPRUN=${DDPRUN:-/d/p}\nrun_name=login1-c0ffee\n");
  // It runs already: no job waits for another one.
  const Submission first = first_job(options, "/d/p", "login1-c0ffee");
  CHECK(text(first.sbatch) == "sbatch --parsable --partition=spot --nodes=2");
  CHECK(filled_lines(first.script).ends_with("JOIN=login1-c0ffee\n"));
  const Submission more = joining_job(options, "/d/p", "login1-c0ffee");
  CHECK(text(more.sbatch) == "sbatch --parsable --partition=spot --nodes=1");
  const std::string printed = dry_run_text(options, "/d/p", "login1-c0ffee");
  CHECK(printed.find("setsid --fork bash FILE") != std::string::npos);
  CHECK(printed.find("\nrun_name=login1-c0ffee\n") != std::string::npos);
  CHECK(printed.find("ddprun slurm --join login1-c0ffee --nodes 3 -- --nnodes 2:3 train.py\n") !=
        std::string::npos);
  CHECK(parsed({"--join", "log-in_1-c0ffee"}).join == "log-in_1-c0ffee");
  for (const char* name : {"login1", "login1-c0ffe", "login1-c0ffeX", "-c0ffee", "../x-c0ffee"}) {
    CHECK(refusal({"--join", name}).find("give the number of a job") != std::string::npos);
  }
}

TEST_CASE("ddprun slurm: --daemon-on is a job of its own, which all others join", "[slurm]") {
  const SlurmOptions options =
      parsed({"-A", "lab", "--gpus-per-node=8", "--partition=spot", "-t1:0", "--daemon-on",
              "service", "--nodes=2:3", "--", "train.py"});
  const Submission daemon = daemon_job(options, "/d/p");
  CHECK(text(daemon.sbatch) == "sbatch --parsable --partition=service -A lab -t1:0");
  CHECK(daemon.script.find("ddprun-rendezvous") != std::string::npos);
  const Submission first = first_job(options, "/d/p", "46");
  CHECK(text(first.sbatch) ==
        "sbatch --parsable -A lab --gpus-per-node=8 --partition=spot -t1:0 --nodes=2 "
        "--dependency=after:46");
  CHECK(filled_lines(first.script).ends_with("set -- --nnodes 2:3 train.py\nJOIN=46\n"));
  CHECK(script_for(parsed({"--daemon-on=x", "--nodes=2", "--", "y"})) == SlurmScript::kElastic);
  CHECK(joining_jobs(parsed({"--daemon-on=x", "--nodes=2", "--", "y"})) == 0);
  const std::string said = hints(options, "46", {"46", "47", "48"});
  CHECK(said.find("--join 46\n") != std::string::npos);
  CHECK(said.find("--signal=USR1 48 ") != std::string::npos);
  CHECK(dry_run_text(options, "/d/p").find("--join JOB --nodes 3 -- --nnodes 2:3 train.py\n") !=
        std::string::npos);
  CHECK(refusal({"--daemon-on=x", "--", "y"}).find("needs --nodes N") != std::string::npos);
  CHECK(refusal({"--daemon-on=x", "--join=7"}).find("for a new run") != std::string::npos);
  CHECK(refusal({"--daemon-on=a b", "--nodes=2", "--", "y"}).find("one partition") !=
        std::string::npos);
  CHECK(refusal({"--daemon-on=x", "--nodes=2", "--array=0-1", "--", "y"}).find("a run of its") !=
        std::string::npos);
}

TEST_CASE("ddprun slurm: --join adds jobs of one node", "[slurm]") {
  CHECK(joining_jobs(parsed({"--join=7"})) == 1);
  const SlurmOptions options = parsed({"--join=7", "--nodes=2", "--dependency=singleton"});
  CHECK(joining_jobs(options) == 2);
  const Submission more = joining_job(options, "/d/p", "7");
  CHECK(text(more.sbatch) == "sbatch --parsable --dependency=singleton --nodes=1");
  CHECK(filled_lines(more.script).ends_with("JOIN=7\n"));
  const Submission own = joining_job(parsed({"--join=7", "--", "y"}), "/d/p", "7");
  CHECK(filled_lines(own.script).find("set -- y\nJOIN=7\n") != std::string::npos);
}

TEST_CASE("ddprun slurm: --dry-run prints a script that sbatch takes as it is", "[slurm]") {
  const std::string script = dry_run_text(parsed({"--nodes=1:3", "--", "x"}), "/d/p");
  CHECK(script.starts_with("#!/bin/bash\n# Printed by ddprun slurm --dry-run: sbatch submits"));
  CHECK(script.find("ddprun slurm --join JOB --nodes 2\n") != std::string::npos);
  CHECK(script.find("\n#SBATCH --nodes=1\n") != std::string::npos);
  CHECK(dry_run_text(parsed({"--join=7", "--nodes=2"}), "/d/p").find("# 2 times.") !=
        std::string::npos);
}

TEST_CASE("ddprun slurm: sbatch's answers", "[slurm]") {
  CHECK(job_number("4711\n") == "4711");
  CHECK(job_number("4711;cluster\n") == "4711");
  CHECK(job_number("4711") == "4711");
  for (const char* none : {"", "\n", "x", "47x\n", "12345678901\n", "-1\n"}) {
    CHECK(job_number(none) == std::nullopt);
  }
  CHECK(plain_refusal("sbatch: error: invalid partition specified: nope\n"
                      "sbatch: error: Batch job submission failed: Invalid partition name "
                      "specified\n") ==
        "invalid partition specified: nope; Invalid partition name specified: `sinfo -s` lists "
        "the partitions");
  CHECK(plain_refusal("sbatch: unrecognized option '--nproc'\nTry \"sbatch --help\" for more "
                      "information\n") ==
        "unrecognized option '--nproc': ddprun's own options go behind --");
  CHECK(plain_refusal("sbatch: error: something new\n") == "something new");
  CHECK(plain_refusal("") == "it printed no reason");
  CHECK(plain_refusal(std::string(100'000, 'x')).size() == 300);
}

TEST_CASE("ddprun slurm: any answer of sbatch is read or refused", "[slurm][fuzz]") {
  std::mt19937 random(9);
  const std::string letters = "0123456789;\n sbatch: error\0\xff";
  for (int round = 0; round < 5'000; ++round) {
    std::string answer = round % 2 ? "4711\n" : "sbatch: error: Invalid qos\n";
    for (unsigned n = random() % 9; n > 0; --n) {
      answer.insert(random() % (answer.size() + 1), 1, letters[random() % letters.size()]);
    }
    const auto number = job_number(answer);
    if (number) CHECK(number->find_first_not_of("0123456789") == std::string::npos);
    CHECK(plain_refusal(answer).size() < 2'000);
  }
}

}  // namespace
}  // namespace ddprun::launcher
