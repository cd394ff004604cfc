// Two ranks add 1 and 2; rank 0 prints the sum. Started by ddprun, or as two_ranks file:///PATH with RANK and WORLD_SIZE.
#include <ddprun/c_api.h>
#include <stdio.h>

int main(int count, char** words) {
  ddprun_init_options options = {.size = sizeof(options), .rank = -1};
  if (count > 1) options.init_method = words[1];
  ddprun_group* group = NULL;
  if (ddprun_group_init(&options, &group) != DDPRUN_OK) {
    fprintf(stderr, "%s\n", ddprun_last_error());
    return 1;
  }
  float value = (float)(ddprun_rank(group) + 1);
  const ddprun_buffer buffer = DDPRUN_BUFFER(&value, 1, DDPRUN_F32);
  const ddprun_status status = ddprun_all_reduce(group, &buffer, DDPRUN_SUM, 0);
  if (status != DDPRUN_OK) fprintf(stderr, "%s\n", ddprun_last_error());
  if (status == DDPRUN_OK && ddprun_rank(group) == 0) printf("sum %.0f\n", value);
  ddprun_group_destroy(group);
  return status == DDPRUN_OK ? 0 : 1;
}
