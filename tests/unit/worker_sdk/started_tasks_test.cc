#include "worker_sdk/join/environment.h"

#include <catch2/catch.hpp>
#include <random>

#include "ddprun/error.h"
#include "worker_sdk/join/environment.h"

namespace ddprun::worker_sdk {
namespace {

// What srun sets for task 5 of 7 on four nodes.
const Variables kSlurm = {{"SLURM_JOB_ID", "77"},
                          {"SLURM_STEP_ID", "1"},
                          {"SLURM_PROCID", "5"},
                          {"SLURM_LOCALID", "1"},
                          {"SLURM_NODEID", "2"},
                          {"SLURM_NTASKS", "7"},
                          {"SLURM_STEP_NUM_TASKS", "7"},
                          {"SLURM_STEP_NUM_NODES", "4"},
                          {"SLURM_STEP_NODELIST", "gpu[07-09,12]"},
                          {"SLURM_STEP_TASKS_PER_NODE", "2(x3),1"}};
const Variables kOpenMpi = {
    {"OMPI_COMM_WORLD_RANK", "3"},       {"OMPI_COMM_WORLD_SIZE", "4"},
    {"OMPI_COMM_WORLD_LOCAL_RANK", "3"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
    {"PMIX_NAMESPACE", "1585053697"},    {"PMIX_RANK", "3"}};
const Variables kHydra = {
    {"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}};
const Variables kFlux = {
    {"FLUX_TASK_RANK", "1"},  {"FLUX_JOB_SIZE", "2"},       {"FLUX_TASK_LOCAL_ID", "1"},
    {"FLUX_JOB_NNODES", "1"}, {"FLUX_JOB_ID", "f2WsWBcYB"}, {"PMI_RANK", "1"},
    {"PMI_SIZE", "2"}};

Variables with(Variables variables, const Variables& more) {
  for (const auto& [name, value] : more) variables[name] = value;
  return variables;
}

std::string place(const Plan& plan) {
  const Identity& who = plan.identity;
  const Rendezvous& at = plan.rendezvous;
  if (at.kind == Rendezvous::Kind::kAlone) return "alone";
  const std::string local = plan.local_rank_known ? std::to_string(who.local_rank) + "/" +
                                                        std::to_string(who.local_world_size)
                                                  : "?";
  return std::to_string(who.rank) + "/" + std::to_string(who.world_size) + " local " + local +
         " node " + std::to_string(who.group_rank) + " at " + at.host + ":" +
         std::to_string(at.port) + (at.hosted_by_rank_0 ? "" : " of the agent") +
         (at.is_searched ? " of " + at.job : "");
}

// Where the rank meets the others, or "kind: text" of the refusal.
std::string read(const Variables& variables, const InitOptions& options = {}) {
  try {
    return place(read_environment(variables, options));
  } catch (const Error& error) {
    return error.code().message() + ": " + error.text();
  }
}

TEST_CASE("Started tasks: ranks of srun meet at the first host of the step", "[environment]") {
  CHECK(read(kSlurm) == "5/7 local 1/2 node 2 at gpu07:0 of slurm-77.1");
  CHECK(read(with(kSlurm, {{"SLURM_RESTART_COUNT", "2"}})) ==
        "5/7 local 1/2 node 2 at gpu07:0 of slurm-77.1-r2");
  CHECK(read(with(kSlurm, {{"SLURM_STEP_NUM_NODES", "1"}, {"SLURM_STEP_NODELIST", "gpu07"}})) ==
        "5/7 local 1/2 node 2 at localhost:0 of slurm-77.1");
  // SLURM_NTASKS may be the job's.
  CHECK(read(with(kSlurm, {{"SLURM_NTASKS", "70"}})).starts_with("5/7"));
  CHECK(read(with(kSlurm, {{"SLURM_STEP_NUM_TASKS", ""}})).starts_with("5/7"));
  const Plan plan = read_environment(kSlurm, {});
  CHECK(plan.identity.run_id == "slurm-77.1");
  CHECK(plan.rendezvous.place == 77 * 16 + 1);
}

TEST_CASE("Started tasks: a batch script, a shell and a step of one task are alone",
          "[environment]") {
  const Variables batch = with(kSlurm, {{"SLURM_PROCID", "0"}, {"SLURM_STEP_ID", ""}});
  CHECK(read(batch) == "alone");
  CHECK(read(with(batch, {{"SLURM_STEP_ID", "4294967291"}})) == "alone");
  CHECK(read(with(batch, {{"SLURM_STEP_ID", "4294967290"}})) == "alone");
  // srun --pty bash in a job of seven tasks.
  CHECK(read(with(kSlurm, {{"SLURM_PROCID", "0"}, {"SLURM_STEP_NUM_TASKS", "1"}})) == "alone");
  CHECK(read({{"OMPI_COMM_WORLD_SIZE", "1"}}) == "alone");
  CHECK(read({{"SLURM_JOB_ID", "77"}, {"SLURM_NTASKS", "4"}}) == "alone");
}

TEST_CASE("Started tasks: RANK and WORLD_SIZE of a launcher win", "[environment]") {
  const Variables launched = {{"RANK", "1"},
                              {"WORLD_SIZE", "2"},
                              {"MASTER_ADDR", "a"},
                              {"MASTER_PORT", "29500"},
                              {"TORCHELASTIC_USE_AGENT_STORE", "True"}};
  for (const Variables& around : {kSlurm, kOpenMpi, kHydra, kFlux}) {
    CHECK(read(with(around, launched)) == "1/2 local ? node 0 at a:29500 of the agent");
    CHECK(read(with(around, {{"RANK", "0"}, {"WORLD_SIZE", "1"}})) == "alone");
  }
  InitOptions options;
  options.init_method = "tcp://b:1";
  options.rank = 2, options.world_size = 3;
  CHECK(read(kSlurm, options) == "2/3 local ? node 0 at b:1");
}

TEST_CASE("Started tasks: a method of the program's gets the rank of the starter",
          "[environment]") {
  InitOptions options;
  options.init_method = "tcp://b:1";
  CHECK(read(kSlurm, options) == "5/7 local 1/2 node 2 at b:1");
}

TEST_CASE("Started tasks: ranks of mpirun, mpiexec and flux run on one host meet there",
          "[environment]") {
  CHECK(read(kOpenMpi) == "3/4 local 3/4 node 0 at localhost:0 of mpirun 1585053697");
  CHECK(read(kHydra) == "1/2 local 1/2 node 0 at localhost:0 of ");
  CHECK(read(kFlux) == "1/2 local 1/2 node 0 at localhost:0 of flux run f2WsWBcYB");
  const Variables pals = {{"PMI_RANK", "1"},
                          {"PMI_SIZE", "2"},
                          {"PMI_LOCAL_RANK", "1"},
                          {"PMI_LOCAL_SIZE", "2"},
                          {"PALS_APID", "9"}};
  CHECK(read(pals) == "1/2 local 1/2 node 0 at localhost:0 of mpiexec 9");
}

TEST_CASE("Started tasks: the nearest starter counts", "[environment]") {
  CHECK(read(with(kSlurm, kOpenMpi)).starts_with("3/4"));
  CHECK(read(with(kSlurm, kHydra)).starts_with("1/2"));
  CHECK(read(with(kSlurm, kFlux)).starts_with("1/2"));
  // srun --mpi=pmi2 and --mpi=pmix.
  CHECK(read(with(kSlurm, {{"PMI_RANK", "5"}, {"PMI_SIZE", "7"}})).starts_with("5/7"));
  CHECK(read(with(kSlurm, {{"PMIX_RANK", "5"}})).starts_with("5/7"));
}

TEST_CASE("Started tasks: several hosts without a name for the first are refused",
          "[environment]") {
  const std::string refusal =
      "bad environment: mpirun started this program as rank 3 of 4, but does not name the host of "
      "rank 0: set MASTER_ADDR to it; or start one ddprun per node, which starts the workers "
      "itself";
  const Variables open_mpi = with(kOpenMpi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}});
  CHECK(read(open_mpi) == refusal);
  CHECK(read(with(open_mpi, {{"MASTER_ADDR", "a"}})) ==
        "3/4 local 3/2 node 0 at a:0 of mpirun 1585053697");
  CHECK(read(with(open_mpi, {{"MASTER_ADDR", "a"}, {"MASTER_PORT", "9"}})) ==
        "3/4 local 3/2 node 0 at a:9");
  const Variables hydra = with(kHydra, {{"MPI_LOCALNRANKS", "1"}, {"MASTER_ADDR", "a"}});
  CHECK(read(hydra).find("gave the job no name: set MASTER_PORT, too") != std::string::npos);
  CHECK(read(with(hydra, {{"MASTER_PORT", "9"}})).ends_with("at a:9"));
  CHECK(read(with(kFlux, {{"FLUX_JOB_NNODES", "2"}})).find("set MASTER_ADDR") != std::string::npos);
  CHECK(read({{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}}).find("set MASTER_ADDR") != std::string::npos);
  // A file gives rank 0 another host than the first.
  const Variables arbitrary = with(kSlurm, {{"SLURM_PROCID", "0"}});
  CHECK(read(arbitrary).find("set MASTER_ADDR") != std::string::npos);
}

TEST_CASE("Started tasks: an incomplete environment is refused with its remedy", "[environment]") {
  CHECK(read({{"PMIX_RANK", "0"}}).find("PMIX_RANK is set, but no variable with the number of") !=
        std::string::npos);
  CHECK(read({{"OMPI_COMM_WORLD_SIZE", "2"}})
            .find("OMPI_COMM_WORLD_RANK is not set; to run each task as a job of its own, set "
                  "RANK=0 and WORLD_SIZE=1") != std::string::npos);
  CHECK(read(with(kSlurm, {{"SLURM_PROCID", "7"}}))
            .find("SLURM_PROCID=7 is not below SLURM_STEP_NUM_TASKS=7") != std::string::npos);
  CHECK(read(with(kSlurm, {{"SLURM_STEP_NODELIST", "gpu[1"}}))
            .find("SLURM_STEP_NODELIST: '[1': a bracket is not closed") != std::string::npos);
  CHECK(read(with(kSlurm, {{"SLURM_PROCID", "x"}})).find("SLURM_PROCID=x is not a number") !=
        std::string::npos);
}

TEST_CASE("Started tasks: damaged variables are refused or read, never more", "[environment]") {
  std::mt19937 random(3);
  const std::string letters = "0123456789[](x),-= \n";
  for (const Variables& whole : {kSlurm, kOpenMpi, kHydra, kFlux}) {
    for (int round = 0; round < 2'000; ++round) {
      Variables variables = whole;
      auto victim = variables.begin();
      std::advance(victim, random() % variables.size());
      std::string& text = victim->second;
      for (unsigned n = random() % 6; n > 0; --n) {
        text.insert(random() % (text.size() + 1), 1, letters[random() % letters.size()]);
      }
      if (random() % 8 == 0) text.clear();
      const std::string found = read(variables);
      if (found.starts_with("bad environment") || found == "alone") continue;
      const Plan plan = read_environment(variables, {});
      REQUIRE(plan.identity.rank >= 0);
      REQUIRE(plan.identity.rank < plan.identity.world_size);
      REQUIRE(!plan.rendezvous.host.empty());
    }
  }
}

}  // namespace
}  // namespace ddprun::worker_sdk
