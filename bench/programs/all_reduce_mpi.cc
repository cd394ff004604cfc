// MPI's part of all_reduce.py, which compiles it with each MPI's own compiler: MPI_Allreduce of f32
// in place, timed as all_reduce.cc does.
//
//   all_reduce_mpi SECONDS_PER_SIZE      prints "bytes microseconds" on rank 0

#include <mpi.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  const double limit = argc > 1 ? std::atof(argv[1]) : 1;
  std::vector<float> array(25 << 20);
  for (const int bytes : {4 << 10, 64 << 10, 1 << 20, 25 << 20, 100 << 20}) {
    std::vector<double> times;
    const double begin = MPI_Wtime();
    for (int run = -2, enough = 0; run < 300 && !enough; ++run) {
      MPI_Barrier(MPI_COMM_WORLD);
      MPI_Barrier(MPI_COMM_WORLD);
      double took = -MPI_Wtime();
      MPI_Allreduce(MPI_IN_PLACE, array.data(), bytes / 4, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
      took += MPI_Wtime();
      MPI_Allreduce(MPI_IN_PLACE, &took, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
      if (run >= 0) times.push_back(took);
      enough = run >= 7 && MPI_Wtime() - begin > limit;
      MPI_Bcast(&enough, 1, MPI_INT, 0, MPI_COMM_WORLD);
    }
    std::nth_element(times.begin(), times.begin() + static_cast<long>(times.size() / 2),
                     times.end());
    if (rank == 0) std::printf("%d\t%.3f\n", bytes, times[times.size() / 2] * 1e6);
  }
  MPI_Finalize();
}
