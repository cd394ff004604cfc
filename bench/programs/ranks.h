#pragma once
// Ranks of a benchmark: processes of this machine that find each other in a temporary folder.

#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <exception>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "ddprun/ddprun.h"

namespace bench {

// `name` is that of the group's store in `folder`; several groups of the same ranks need several.
inline ddprun::ProcessGroup join(const std::string& folder, const std::string& name,
                                 const std::string& backend, int rank, int ranks) {
  ddprun::InitOptions options;
  options.init_method = "file://" + folder + "/" + name;
  options.backend = backend;
  options.rank = rank;
  options.world_size = ranks;
  return ddprun::ProcessGroup::init(options);
}

using RankMain = std::function<void(const std::string& folder, int rank)>;

[[noreturn]] inline void be_rank(const RankMain& rank_main, const std::string& folder, int rank) {
  int code = 0;
  try {
    rank_main(folder, rank);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
    code = 1;
  }
  std::fflush(stdout);
  ::_exit(code);
}

// Forks `ranks` processes and waits for them; other children of this process are left alone.
// Returns whether rank_main() returned in all of them.
inline bool run_ranks(int ranks, const RankMain& rank_main) {
  std::string folder = std::filesystem::temp_directory_path() / "ddprun_bench_XXXXXX";
  if (!::mkdtemp(folder.data())) return false;
  std::vector<pid_t> children;
  bool well = true;
  std::fflush(stdout);  // A rank must not print again what this process has not printed yet.
  for (int rank = 0; rank < ranks && well; ++rank) {
    const pid_t child = ::fork();
    if (child == 0) be_rank(rank_main, folder, rank);
    well = child > 0;
    if (well) children.push_back(child);
  }
  if (!well) std::perror("fork");
  for (const pid_t child : children) {
    int status = 0;
    well &= ::waitpid(child, &status, 0) == child && status == 0;
  }
  std::filesystem::remove_all(folder);
  return well;
}

}  // namespace bench
