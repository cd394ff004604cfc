# The real binaries on this machine and in network namespaces; each file is one test and says itself
# what it skips. Needs nothing but Python's standard library.
find_program(DDPRUN_PYTHON python3 PATHS /usr/bin NO_DEFAULT_PATH)
function(ddprun_system_test NAME FILE LABEL)
  if(NOT DDPRUN_PYTHON OR NAME IN_LIST DDPRUN_LEFT_OUT OR (DDPRUN_SANITIZE AND NAME MATCHES "^(python|torch)_"))
    return()
  endif()
  if(DDPRUN_SANITIZE AND NOT DDPRUN_ALL_TESTS AND NOT NAME IN_LIST DDPRUN_SANITIZED_SYSTEM_TESTS)
    return()
  endif()
  add_test(NAME ${NAME} COMMAND ${DDPRUN_PYTHON} -B ${CMAKE_CURRENT_LIST_DIR}/${FILE} ${ARGN})
  set_tests_properties(${NAME} PROPERTIES TIMEOUT ${DDPRUN_TEST_TIMEOUT} SKIP_RETURN_CODE 77 LABELS "${LABEL}"
                                          ENVIRONMENT "${DDPRUN_TEST_ENVIRONMENT}")
endfunction()

foreach(subject launch pipeline stdin surroundings placement bad_input operations train same_bits c10d_port slurm slurm_templates mpirun hosts dry_run completion logs
                collectives nccl ras security ports)
  ddprun_system_test(system_${subject} system/${subject}_test.py system)
endforeach()
foreach(subject bad_input c_api checkpoint data elastic_job ends imports interrupts launch library operations preload preload_keep replay sdk watch)
  ddprun_system_test(python_${subject} python/${subject}_test.py system)
endforeach()
# Once for each PyTorch at hand.
foreach(subject checkpoint collectives errors training sampler elastic elastic_gloo replay sharded watch libraries habits nccl)
  ddprun_system_test(torch_${subject} python/torch_${subject}_test.py system)
endforeach()
foreach(subject ledger namespaces failure kill kill_combinations supervision stall signals elastic reseat memory members discovery poison replay etcd journal standstill versions)
  ddprun_system_test(system_${subject} failures/${subject}_test.py system)
endforeach()
# Some of them once more, with the system calls of Linux 4.18 alone.
foreach(subject kill signals reseat elastic failure)
  ddprun_system_test(old_kernel_${subject} failures/${subject}_test.py system)
  if(TEST old_kernel_${subject})
    set_tests_properties(old_kernel_${subject} PROPERTIES ENVIRONMENT "${DDPRUN_TEST_ENVIRONMENT};DDPRUN_TEST_OLD_KERNEL=1")
  endif()
endforeach()
ddprun_system_test(system_train_options examples/train_options_test.py system)
ddprun_system_test(system_event_file examples/event_file_test.py system)
ddprun_system_test(system_doctor doctor/doctor_test.py system)
# The doctor takes a machine that answers nothing for five seconds for ill, as a fork bomb makes it.
foreach(test system_doctor system_supervision)
  if(TEST ${test})
    set_tests_properties(${test} PROPERTIES RESOURCE_LOCK processors)
  endif()
endforeach()
ddprun_system_test(system_watch watch/watch_test.py system)
ddprun_system_test(system_past watch/past_test.py system)
ddprun_system_test(system_browser watch/browser_test.py system)
ddprun_system_test(system_monitoring watch/monitoring_test.py system)
# Each kind of fault once; docs/testing.md has the result of many repetitions.
ddprun_system_test(system_faults failures/fault_campaign.py system)
# A few of the kills that docs/testing.md reports on.
ddprun_system_test(system_elastic_campaign failures/elastic_campaign.py system --kills 12 --seed 3)
# A few of the bits that docs/testing.md has flipped.
ddprun_system_test(system_audit_campaign failures/audit_campaign.py system --cases 4 --seed 1)
# The same of pre-emptions.
ddprun_system_test(system_memory_campaign failures/memory_campaign.py system --kills 12 --seed 3)
ddprun_system_test(system_preempt_campaign failures/preempt_campaign.py system --each 1 --seed 5)
# What elastic runs are judged by.
ddprun_system_test(sample_count failures/sample_count_test.py unit)
ddprun_system_test(docs system/docs_test.py system)
ddprun_system_test(manual deploy/manual_test.py system)
ddprun_system_test(bench_scripts deploy/bench_test.py system)
ddprun_system_test(index_page deploy/index_page_test.py unit)
ddprun_system_test(old_glibc deploy/old_glibc_test.py system)
ddprun_system_test(system_random_ends ../bench/random_ends.py system --build ${PROJECT_BINARY_DIR} --count 10)
ddprun_system_test(kubernetes deploy/kubernetes_test.py system)
ddprun_system_test(kubernetes_schema deploy/kubernetes_schema_test.py system)
ddprun_system_test(container deploy/container_test.py system)
ddprun_system_test(pods deploy/pods_test.py system)
ddprun_system_test(job_controller deploy/job_controller_test.py unit)
ddprun_system_test(launch_interop interop/launch_interop.py "system;interop")
ddprun_system_test(torchrun_interop interop/torchrun_interop.py "system;interop")

# The script for machines with a GPU, on the fakes, so that it is known to run.
if(DDPRUN_BUILD_BENCH AND NOT DDPRUN_SANITIZE)
  add_test(NAME gpu_script
           COMMAND ${CMAKE_CURRENT_LIST_DIR}/gpu/run.sh --fakes ${PROJECT_BINARY_DIR})
  set_tests_properties(gpu_script PROPERTIES TIMEOUT ${DDPRUN_TEST_TIMEOUT} SKIP_RETURN_CODE 77 LABELS system
                                             ENVIRONMENT "${DDPRUN_TEST_ENVIRONMENT}")
endif()

# The daemon killed every second or two for a little while; bench/endurance.py says for how long it
# should really be.
if(DDPRUN_PYTHON AND DDPRUN_BUILD_BENCH AND (DDPRUN_ALL_TESTS OR NOT DDPRUN_SANITIZE))
  add_test(NAME system_endurance
           COMMAND ${DDPRUN_PYTHON} -B ${PROJECT_SOURCE_DIR}/bench/endurance.py
                   --build ${PROJECT_BINARY_DIR} --seconds 15 --kill-every 1.5 --change-every 3
                   --nodes 4 --per-node 2)
  set_tests_properties(system_endurance PROPERTIES TIMEOUT ${DDPRUN_TEST_TIMEOUT} LABELS system)
endif()
