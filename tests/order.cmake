# In which order and how many at once. ctest runs the longest first where it knows them: in a fresh tree from here.
# deploy/test.sh gives two places a processor: most tests wait more than they compute, those below do not.

function(ddprun_long_tests)
  foreach(entry ${ARGN})
    string(REPLACE ":" ";" entry ${entry})
    list(GET entry 0 name)
    list(GET entry 1 seconds)
    list(GET entry 2 places)
    if(TEST ${name})
      set_tests_properties(${name} PROPERTIES COST ${seconds} PROCESSORS ${places})
    endif()
  endforeach()
endfunction()

# Name, about how many seconds on two processors, places.
ddprun_long_tests(
  system_train:150:3 system_train_options:70:3 system_event_file:12:3 collectives_test:140:4 random_kills:60:4 system_endurance:60:2 system_faults:58:2
  torch_adapter_test:50:3 shm_backend_test:50:4 process_group_test:45:3 system_etcd:42:1 system_slurm:41:1 system_slurm_templates:240:1 container:150:1 pods:70:2
  agent_process_test:40:2 nccl_failure_test:39:2 gpu_script:38:2 launch_interop:38:2 worker_death_test:37:2
  sim_test:80:2 run_test:36:2 system_namespaces:35:1 system_bad_input:33:1 system_supervision:28:1 system_reseat:28:2 system_members:15:2
  elastic_job_test:100:2 sharded_job_test:100:2 nccl_elastic_test:12:2 system_same_bits:16:3 torch_elastic:60:3 torch_elastic_gloo:60:3
  python_elastic_job:35:2 orders_test:8:2 spin:8:1
  agent_unit_test:27:2 group_failure_test:27:2 system_kill:26:1 system_hosts:24:1 system_signals:18:1)
