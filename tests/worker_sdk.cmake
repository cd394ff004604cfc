# Tests of worker_sdk/.

ddprun_test(NAME process_group_test SOURCES unit/worker_sdk/process_group_test.cc LIBRARIES ddprun::worker_sdk
            LABELS unit COMPUTES)
ddprun_test(NAME collectives_test SOURCES unit/worker_sdk/collectives_test.cc LIBRARIES ddprun::worker_sdk
            LABELS unit COMPUTES)
ddprun_test(NAME split_test SOURCES unit/worker_sdk/split_test.cc LIBRARIES ddprun::worker_sdk LABELS unit)
ddprun_test(NAME gloo_threads_test SOURCES unit/worker_sdk/gloo_threads_test.cc
            LIBRARIES ddprun::worker_sdk LABELS unit)
ddprun_test(NAME shrink_test SOURCES unit/worker_sdk/shrink_test.cc LIBRARIES ddprun::worker_sdk LABELS unit)
ddprun_test(NAME group_failure_test SOURCES unit/worker_sdk/group_failure_test.cc
            LIBRARIES ddprun::worker_sdk LABELS unit)
ddprun_test(NAME worker_death_test SOURCES process/worker_sdk/worker_death_test.cc
            LIBRARIES ddprun::worker_sdk LABELS process)
ddprun_test(NAME loss_notice_test
            SOURCES process/worker_sdk/loss_notice_test.cc ${PROJECT_SOURCE_DIR}/agent/health/progress_files.cc
            LIBRARIES ddprun::worker_sdk LABELS process)
ddprun_test(NAME spawn_ranks_test SOURCES process/worker_sdk/spawn_ranks_test.cc
            LIBRARIES ddprun::worker_sdk LABELS process)
ddprun_test(NAME crash_report_test SOURCES process/worker_sdk/crash_report_test.cc
            LIBRARIES ddprun::worker_sdk LABELS process)
foreach(program random_kills collectives_worker)
  add_executable(${program} process/worker_sdk/${program}.cc)
  target_link_libraries(${program} PRIVATE ddprun::worker_sdk ddprun_flags)
endforeach()
set(DDPRUN_KILLS 30)
if(DDPRUN_SANITIZE)
  set(DDPRUN_KILLS 10)  # Each takes several seconds.
endif()
add_test(NAME random_kills COMMAND random_kills ${DDPRUN_KILLS})
set_tests_properties(random_kills PROPERTIES TIMEOUT ${DDPRUN_TEST_TIMEOUT} LABELS process
                                             ENVIRONMENT "${DDPRUN_TEST_ENVIRONMENT}")
# The C interface, as a C compiler sees it, in jobs of its own.
foreach(program c_api_test c_calls_test c_parts_test c_training_test c_job_test)
  add_executable(${program} process/c/${program}.c)
  target_include_directories(${program} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${program} PRIVATE ddprun::worker_sdk ddprun_flags)
  set_target_properties(${program} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests
                                              C_STANDARD 99)
endforeach()
function(ddprun_c_test name program)  # The rest: arguments of ddprun before the program.
  add_test(NAME ${name} COMMAND ${PROJECT_BINARY_DIR}/bin/ddprun ${ARGN} $<TARGET_FILE:${program}>)
  set_tests_properties(${name} PROPERTIES TIMEOUT ${DDPRUN_TEST_TIMEOUT} LABELS process
                       ENVIRONMENT "${DDPRUN_TEST_ENVIRONMENT}")
endfunction()
foreach(workers 1 3)
  ddprun_c_test(c_api_${workers} c_api_test --nproc-per-node ${workers})
  ddprun_c_test(c_calls_${workers} c_calls_test --nproc-per-node ${workers})
  ddprun_c_test(c_parts_${workers} c_parts_test --nproc-per-node ${workers})
  ddprun_c_test(c_training_${workers} c_training_test --nproc-per-node ${workers})
endforeach()
ddprun_c_test(c_calls_2x2 c_calls_test --local-nodes 2 --nproc-per-node 2)
ddprun_c_test(c_job_3 c_job_test --nproc-per-node 3 --max-restarts 3)
ddprun_test(NAME store_host_test SOURCES process/worker_sdk/store_host_test.cc LIBRARIES ddprun::worker_sdk
            LABELS process)
ddprun_test(NAME group_life_test SOURCES process/worker_sdk/group_life_test.cc unit/worker_sdk/moved_from_test.cc
            LIBRARIES ddprun::worker_sdk LABELS process)
ddprun_test(NAME limits_test SOURCES process/worker_sdk/limits_test.cc LIBRARIES ddprun::worker_sdk
            LABELS process)
ddprun_test(NAME joining_test SOURCES process/worker_sdk/joining_test.cc LIBRARIES ddprun::worker_sdk
            LABELS process)
ddprun_test(NAME worker_sdk_parts_test
            SOURCES unit/worker_sdk/environment_test.cc unit/worker_sdk/started_tasks_test.cc unit/common/port_range_test.cc unit/worker_sdk/reduce_test.cc unit/worker_sdk/membership_test.cc
                    unit/worker_sdk/diagnosis_test.cc
            LIBRARIES ddprun::worker_sdk LABELS unit)
ddprun_test(NAME objects_test SOURCES unit/worker_sdk/objects_test.cc unit/ddp/sharding_test.cc
            LIBRARIES ddprun::worker_sdk LABELS unit)
ddprun_test(NAME gradients_test SOURCES unit/ddp/gradients_test.cc LIBRARIES ddprun::worker_sdk
            LABELS unit)
ddprun_test(NAME checkpoint_test SOURCES unit/worker_sdk/checkpoint_test.cc fuzz/manifest_fuzz.cc
            LIBRARIES ddprun::worker_sdk nlohmann_json::nlohmann_json LABELS unit COMPUTES)
ddprun_test(NAME elastic_test SOURCES unit/elastic/audit_test.cc unit/elastic/exact_sum_test.cc unit/elastic/global_batches_test.cc
                    unit/elastic/gradient_sums_test.cc unit/elastic/gradient_sums_place_test.cc unit/elastic/piece_test.cc
                    unit/elastic/random_stream_test.cc unit/elastic/save_interval_test.cc unit/elastic/shard_division_test.cc unit/elastic/shard_plan_test.cc unit/elastic/sharded_state_test.cc
                    unit/elastic/standing_test.cc
            LIBRARIES ddprun::worker_sdk LABELS unit APART)
ddprun_test(NAME bits_test SOURCES unit/worker_sdk/bits_test.cc LIBRARIES ddprun::worker_sdk LABELS unit)
ddprun_test(NAME job_test
            SOURCES unit/elastic/job_test.cc unit/elastic/job_audit_test.cc unit/elastic/job_bundle_test.cc unit/common/bundle_test.cc fuzz/common/bundle_fuzz.cc
                    unit/elastic/job_memory_test.cc unit/worker_sdk/agent_link_test.cc
                    unit/worker_sdk/gloo_mesh_test.cc unit/worker_sdk/gloo_peers_test.cc unit/worker_sdk/gloo_relay_test.cc
            LIBRARIES ddprun::worker_sdk ddprun_gloo nlohmann_json::nlohmann_json LABELS unit)
ddprun_test(NAME stores_test SOURCES unit/worker_sdk/stores_test.cc LIBRARIES ddprun::worker_sdk LABELS unit)
ddprun_test(NAME shm_backend_test SOURCES unit/worker_sdk/shm_backend_test.cc LIBRARIES ddprun::worker_sdk
            LABELS unit COMPUTES)

if(NOT DDPRUN_SANITIZE)
  add_test(NAME installed_sdk_test
           COMMAND ${CMAKE_COMMAND} -DBUILD=${PROJECT_BINARY_DIR} -DSOURCE=${PROJECT_SOURCE_DIR}/examples
                   -P ${CMAKE_CURRENT_SOURCE_DIR}/system/installed_sdk_test.cmake)
  set_tests_properties(installed_sdk_test PROPERTIES TIMEOUT ${DDPRUN_TEST_TIMEOUT} LABELS system)

  add_test(NAME system_abi COMMAND python3 -B ${CMAKE_CURRENT_SOURCE_DIR}/deploy/abi_test.py)
  set_tests_properties(system_abi PROPERTIES TIMEOUT ${DDPRUN_TEST_TIMEOUT} LABELS system SKIP_RETURN_CODE 77
                       ENVIRONMENT "${DDPRUN_TEST_ENVIRONMENT}")
  add_test(NAME system_linking
           COMMAND python3 -B ${CMAKE_CURRENT_SOURCE_DIR}/system/linking_test.py)
  set_tests_properties(system_linking PROPERTIES TIMEOUT ${DDPRUN_TEST_TIMEOUT} LABELS system
                       ENVIRONMENT "${DDPRUN_TEST_ENVIRONMENT}")
endif()

# What tests/failures/fault_campaign.py starts: workers that fail in every way there is.
add_executable(fault_worker process/agent/fault_worker.cc)
target_link_libraries(fault_worker PRIVATE ddprun::worker_sdk ddprun_flags)
add_library(fault_library SHARED process/agent/fault_library.cc)
add_executable(fault_needs_library process/agent/fault_needs_library.cc)
target_link_libraries(fault_needs_library PRIVATE fault_library)
set_target_properties(fault_needs_library PROPERTIES SKIP_BUILD_RPATH ON)
set_target_properties(fault_worker fault_needs_library fault_library
                      PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests
                                 LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)

# Workers that stay while ranks come and go, and who plays their agent.
add_executable(elastic_worker process/worker_sdk/elastic_worker.cc)
target_link_libraries(elastic_worker PRIVATE ddprun::worker_sdk ddprun_flags)
set_target_properties(elastic_worker PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
ddprun_test(NAME elastic_job_test
            SOURCES process/worker_sdk/elastic_job_test.cc support/elastic_host.cc
            LIBRARIES ddprun::worker_sdk nlohmann_json::nlohmann_json LABELS process)
ddprun_test(NAME sharded_job_test
            SOURCES process/worker_sdk/sharded_job_test.cc support/elastic_host.cc
            LIBRARIES ddprun::worker_sdk nlohmann_json::nlohmann_json LABELS process)
add_dependencies(elastic_job_test elastic_worker)
add_dependencies(sharded_job_test elastic_worker)
# What failures/memory_campaign.py and failures/elastic_campaign.py start.
add_executable(memory_worker process/worker_sdk/memory_worker.cc)
target_link_libraries(memory_worker PRIVATE ddprun::worker_sdk ddprun_flags)
set_target_properties(memory_worker PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
add_executable(campaign_worker process/worker_sdk/campaign_worker.cc)
target_link_libraries(campaign_worker PRIVATE ddprun::worker_sdk ddprun_flags)
set_target_properties(campaign_worker PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
