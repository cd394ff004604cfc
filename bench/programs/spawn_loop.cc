// The floor of launching: N times posix_spawn, then N times wait. Usage: bench_spawn_loop N PROGRAM

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: %s N PROGRAM\n", argv[0]);
    return 2;
  }
  const int workers = std::atoi(argv[1]);
  char* arguments[] = {argv[2], nullptr};
  for (int i = 0; i < workers; ++i) {
    pid_t pid = 0;
    if (::posix_spawn(&pid, argv[2], nullptr, nullptr, arguments, ::environ) != 0) return 1;
  }
  for (int i = 0; i < workers; ++i) {
    int status = 0;
    if (::wait(&status) < 0 || status != 0) return 1;
  }
}
