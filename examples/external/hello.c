/* The same by the C interface. */

#include <ddprun/c_api.h>
#include <stdio.h>

int main(void) {
  const ddprun_init_options options = {.size = sizeof options, .rank = -1};
  ddprun_group* group = NULL;
  float loss = 1.5f;
  const ddprun_buffer buffer = DDPRUN_BUFFER(&loss, 1, DDPRUN_F32);
  if (ddprun_group_init(&options, &group) != DDPRUN_OK ||
      ddprun_all_reduce(group, &buffer, DDPRUN_AVG, 0) != DDPRUN_OK) {
    fprintf(stderr, "%s\n", ddprun_last_error());
    return 1;
  }
  printf("rank %d of %d, backend %s, loss %.1f\n", ddprun_rank(group), ddprun_world_size(group),
         ddprun_backend(group), (double)loss);
  ddprun_group_destroy(group);
  return 0;
}
