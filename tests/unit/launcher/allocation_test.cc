#include "launcher/options/allocation.h"

#include <catch2/catch.hpp>

#include "launcher/plan/plan.h"
#include "tests/support/command_line.h"

namespace ddprun::launcher {
namespace {

// As srun of Slurm 22.05 sets them for `srun --ntasks-per-node=1` on four nodes.
Environment slurm(int node_rank) {
  return {{"SLURM_JOB_ID", "4711"},
          {"SLURM_STEP_ID", "2"},
          {"SLURM_STEP_NUM_NODES", "4"},
          {"SLURM_STEP_NODELIST", "gpu[01-03],login"},
          {"SLURM_NODEID", std::to_string(node_rank)},
          {"SLURM_STEP_TASKS_PER_NODE", "1(x4)"},
          {"SLURM_JOB_NUM_NODES", "4"},
          {"DDPRUN_TOKEN", "secret"}};
}

Environment with(Environment environment, const Environment& more) {
  for (const auto& [name, value] : more) environment[name] = value;
  return environment;
}

// How the options end up, on one line.
std::string outcome(const std::string& line, const Environment& environment) {
  Options options = options_of(line);
  const auto around = read_surroundings(options, environment);
  if (!around) return "error: " + around.error().context;
  if (!around->allocation) return around->warning.empty() ? "nobody" : "nobody, " + around->warning;
  const Options o = completed(std::move(options), *around->allocation);
  std::string text = o.scheduler + ": ";
  text += std::to_string(o.nnodes->min) + ":" + std::to_string(o.nnodes->max) + " nodes";
  if (o.node_rank) text += ", rank " + std::to_string(*o.node_rank);
  if (o.rdzv_endpoint) text += ", at " + to_string(*o.rdzv_endpoint);
  if (o.rdzv_conf.is_host) text += *o.rdzv_conf.is_host ? ", hosts" : ", joins";
  if (o.rdzv_id) text += ", id " + *o.rdzv_id;
  return text;
}

TEST_CASE("Allocation: srun says everything", "[allocation]") {
  CHECK(outcome("train", slurm(0)) ==
        "Slurm: 4:4 nodes, rank 0, at gpu01:31178, hosts, id slurm-4711.2");
  CHECK(outcome("train", slurm(3)) ==
        "Slurm: 4:4 nodes, rank 3, at gpu01:31178, joins, id slurm-4711.2");
  const auto requeued = with(slurm(0), {{"SLURM_RESTART_COUNT", "1"}});
  CHECK(outcome("train", requeued).ends_with("id slurm-4711.2-r1"));
  // Another step, another job: another port.
  CHECK(outcome("train", with(slurm(0), {{"SLURM_STEP_ID", "3"}})).find(":31179,") !=
        std::string::npos);
  CHECK(outcome("train", with(slurm(0), {{"SLURM_JOB_ID", "2147483647"}})).find("at gpu01:") !=
        std::string::npos);
}

TEST_CASE("Allocation: the plan that comes of it hosts on node 0 and joins elsewhere",
          "[allocation]") {
  MachineFacts facts;
  facts.host_name = "whatever";
  facts.token_in_environment = true;
  for (const int rank : {0, 3}) {
    const auto around = read_surroundings(options_of("train"), slurm(rank)).value();
    const auto plan = make_plan(completed(options_of("train"), *around.allocation), facts).value();
    CHECK(plan.mode == (rank == 0 ? RendezvousPlan::Mode::kHost : RendezvousPlan::Mode::kJoin));
    CHECK(plan.if_taken == RendezvousPlan::IfTaken::kFail);
    CHECK(to_string(plan.endpoint) == "gpu01:31178");
    CHECK(plan.node_rank == rank);
  }
}

TEST_CASE("Allocation: what the user typed wins over Slurm", "[allocation]") {
  CHECK(outcome("--nnodes 2:3 train", slurm(1)) ==
        "Slurm: 2:3 nodes, rank 1, at gpu01:31178, joins, id slurm-4711.2");
  CHECK(outcome("--nnodes 2:3 train", slurm(3)) ==
        "Slurm: 2:3 nodes, at gpu01:31178, joins, id slurm-4711.2");  // A spare.
  CHECK(outcome("--rdzv-id mine --node-rank 2 train", slurm(1)) ==
        "Slurm: 4:4 nodes, rank 2, at gpu01:31178, joins, id mine");
  CHECK(outcome("--rdzv-endpoint daemon:5 train", slurm(0)) ==
        "Slurm: 4:4 nodes, rank 0, at daemon:5, id slurm-4711.2");
  CHECK(outcome("--master-addr gpu02 train", slurm(0)) ==
        "Slurm: 4:4 nodes, rank 0, id slurm-4711.2");
  for (const char* line : {"--standalone train", "--nnodes 1 train", "--local-nodes 2 train",
                           "--nnodes 4 --rdzv-endpoint gpu01:29500 train",
                           "--nnodes 4 --node-rank 2 --master-addr gpu01 train"}) {
    INFO(line);
    CHECK(outcome(line, slurm(2)) == "nobody");
  }
}

TEST_CASE("Allocation: several ddprun on a node are refused with the cure", "[allocation]") {
  for (const char* tasks : {"2(x4)", "1,2(x3)", "1(x3),8"}) {
    const auto many = with(slurm(0), {{"SLURM_STEP_TASKS_PER_NODE", tasks}});
    INFO(tasks);
    CHECK(outcome("train", many).find("(srun --ntasks-per-node=1)") != std::string::npos);
    CHECK(outcome("--standalone train", many) == "nobody");
  }
}

TEST_CASE("Allocation: without a token it is said what to do", "[allocation]") {
  Environment none = slurm(1);
  none.erase("DDPRUN_TOKEN");
  CHECK(
      outcome("train", none) ==
      "error: Slurm started this run on 4 nodes, which need one token. Before it starts them, run: "
      "export DDPRUN_TOKEN=$(openssl rand -hex 16), or give --token-file FILE on a disk that all "
      "nodes share, or --rdzv-conf auth=none");
  CHECK(outcome("--token-file f train", none).starts_with("Slurm: "));
  CHECK(outcome("--rdzv-conf auth=none train", none).starts_with("Slurm: "));
  CHECK(outcome("train", with(none, {{"DDPRUN_TOKEN_FILE", "f"}})).starts_with("Slurm: "));
}

TEST_CASE("Allocation: one node needs nothing, and a batch script without srun is told",
          "[allocation]") {
  const auto one = with(slurm(0), {{"SLURM_STEP_NUM_NODES", "1"},
                                   {"SLURM_STEP_TASKS_PER_NODE", "1"},
                                   {"SLURM_STEP_NODELIST", "gpu01"}});
  CHECK(outcome("train", one) == "nobody");
  const Environment script = {{"SLURM_JOB_ID", "4711"}, {"SLURM_JOB_NUM_NODES", "4"}};
  CHECK(outcome("train", script).starts_with("nobody, this Slurm job has 4 nodes, and only this"));
  CHECK(outcome("--standalone train", script) == "nobody");
  CHECK(outcome("train", {{"SLURM_JOB_ID", "1"}, {"SLURM_JOB_NUM_NODES", "1"}}) == "nobody");
  CHECK(outcome("train", {}) == "nobody");
}

TEST_CASE("Allocation: variables that are not what they must be are named", "[allocation]") {
  const auto error = [](const Environment& wrong) {
    return outcome("train", with(slurm(0), wrong));
  };
  CHECK(
      error({{"SLURM_NODEID", "4"}}).starts_with("error: SLURM_NODEID '4' of Slurm: give a whole"));
  CHECK(error({{"SLURM_NODEID", ""}}) == "error: Slurm started this, but SLURM_NODEID is not set");
  CHECK(error({{"SLURM_STEP_NUM_NODES", "x"}}).starts_with("error: SLURM_STEP_NUM_NODES 'x'"));
  CHECK(error({{"SLURM_STEP_NODELIST", "a["}}).starts_with("error: SLURM_STEP_NODELIST: '[': "));
  CHECK(error({{"SLURM_STEP_ID", "-1"}}).starts_with("error: SLURM_STEP_ID '-1'"));
}

TEST_CASE("Allocation: Open MPI and MPICH say who and how many, not where", "[allocation]") {
  const Environment open_mpi = {{"OMPI_COMM_WORLD_SIZE", "3"},
                                {"OMPI_COMM_WORLD_RANK", "1"},
                                {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"},
                                {"DDPRUN_TOKEN", "secret"}};
  const Environment hydra = {
      {"PMI_SIZE", "3"}, {"PMI_RANK", "1"}, {"MPI_LOCALNRANKS", "1"}, {"DDPRUN_TOKEN", "secret"}};
  for (const auto& [name, environment] :
       {std::pair("Open MPI", open_mpi), std::pair("MPICH's mpiexec", hydra)}) {
    CHECK(outcome("--rdzv-endpoint head train", environment) ==
          std::string(name) + ": 3:3 nodes, rank 1, at head");
    CHECK(outcome("--master-addr head train", environment) ==
          std::string(name) + ": 3:3 nodes, rank 1");
    CHECK(outcome("train", environment).find("provides no endpoint") != std::string::npos);
  }
  CHECK(outcome("-m train", with(open_mpi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "3"}}))
            .find("mpirun --map-by ppr:1:node") != std::string::npos);
  CHECK(outcome("train", with(hydra, {{"MPI_LOCALNRANKS", "3"}})).find("mpiexec -ppn 1") !=
        std::string::npos);
  // mpirun under Slurm: what is nearer counts.
  CHECK(outcome("--rdzv-endpoint h train", with(slurm(0), hydra)).starts_with("MPICH's"));
  CHECK(outcome("train", with(slurm(0), {{"PMI_SIZE", "4"}, {"PMI_RANK", "0"}}))
            .starts_with("Slurm"));
}

TEST_CASE("Allocation: an address given by hand decides who hosts, whatever its rank",
          "[allocation]") {
  const Environment open_mpi = {{"OMPI_COMM_WORLD_SIZE", "3"},
                                {"OMPI_COMM_WORLD_RANK", "2"},
                                {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"},
                                {"DDPRUN_TOKEN", "secret"}};
  MachineFacts facts;
  facts.host_name = "head";
  facts.token_in_environment = true;
  const auto options = options_of("--rdzv-endpoint head train");
  const auto around = read_surroundings(options, open_mpi).value();
  CHECK(make_plan(completed(options, *around.allocation), facts)->mode ==
        RendezvousPlan::Mode::kHost);
  facts.host_name = "other";
  CHECK(make_plan(completed(options, *around.allocation), facts)->mode ==
        RendezvousPlan::Mode::kJoin);
}

TEST_CASE("Allocation: a pod of an indexed job knows its place", "[allocation]") {
  const Environment pod = {{"JOB_COMPLETION_INDEX", "1"}, {"DDPRUN_TOKEN", "secret"}};
  const std::string line = "--nnodes 4 --rdzv-endpoint train-0.train train";
  CHECK(outcome(line, pod) == "Kubernetes: 4:4 nodes, rank 1, at train-0.train, joins");
  CHECK(outcome(line, with(pod, {{"JOB_COMPLETION_INDEX", "0"}})).ends_with(", hosts"));
  CHECK(outcome(line, with(pod, {{"JOB_COMPLETION_INDEX", "5"}})) ==
        "Kubernetes: 4:4 nodes, at train-0.train, joins");
  CHECK(outcome("--nnodes 4 train", pod).find("give --rdzv-endpoint HOST") != std::string::npos);
  CHECK(outcome("--nnodes 4 --rdzv-endpoint d --rdzv-conf is_host=0 train", pod) == "nobody");
  CHECK(outcome("train", pod) == "nobody");  // Each pod a run of its own.
}

// salloc's interactive shell, and the batch script as some sites' prologues have it.
TEST_CASE("Allocation: a step that is none of tasks is like no step", "[allocation]") {
  for (const char* step : {"4294967290", "4294967291", "4294967292", "4294967294"}) {
    CAPTURE(step);
    const auto interactive = with(slurm(0), {{"SLURM_STEP_ID", step},
                                             {"SLURM_STEP_NUM_NODES", "1"},
                                             {"SLURM_STEP_TASKS_PER_NODE", "1"},
                                             {"SLURM_STEP_NODELIST", "gpu01"}});
    CHECK(outcome("train", interactive).starts_with("nobody, this Slurm job has 4 nodes"));
    CHECK(outcome("--standalone train", interactive) == "nobody");
    CHECK(outcome("train", with(interactive, {{"SLURM_JOB_NUM_NODES", "1"}})) == "nobody");
  }
}

TEST_CASE("Allocation: the derived port has others after it, the same on all nodes",
          "[allocation]") {
  const auto ports = [](const char* job, int rank) {
    const auto environment = with(slurm(rank), {{"SLURM_JOB_ID", job}});
    return completed(options_of("train"),
                     *read_surroundings(options_of("train"), environment).value().allocation);
  };
  const Options host = ports("4711", 0), joiner = ports("4711", 3);
  CHECK(host.derived_ports.size() == 3);
  CHECK(host.derived_ports == joiner.derived_ports);
  for (const std::uint16_t port : host.derived_ports) {
    CHECK(port != *host.rdzv_endpoint->port);
    CHECK((port >= 29'400 && port < 32'600));
  }
  CHECK(ports("4911", 0).rdzv_endpoint == host.rdzv_endpoint);  // 200 jobs later.
  const auto named =
      completed(options_of("--rdzv-endpoint d:5 train"),
                *read_surroundings(options_of("train"), slurm(0)).value().allocation);
  CHECK(named.derived_ports.empty());
}

}  // namespace
}  // namespace ddprun::launcher
