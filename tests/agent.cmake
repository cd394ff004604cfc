# Tests of agent/.
ddprun_test(NAME agent_unit_test
            SOURCES unit/binding_test.cc unit/cgroup_test.cc unit/command_test.cc unit/console_queue_test.cc unit/duration_text_test.cc
                    unit/family_test.cc unit/fault_test.cc unit/gpus_test.cc unit/guardian_policy_test.cc
                    unit/line_fold_test.cc unit/line_splitter_test.cc unit/log_file_test.cc
                    unit/log_files_test.cc unit/oom_watch_test.cc unit/placement_test.cc
                    unit/proc_file_test.cc unit/progress_test.cc unit/stall_watch_test.cc unit/start_failure_test.cc
                    unit/sync_ledger_test.cc
                    unit/tail_ring_test.cc unit/terminal_text_test.cc unit/worker_environment_test.cc
                    unit/words_fuzz_test.cc fuzz/words_fuzz.cc
            LIBRARIES ddprun_agent ddprun::worker_sdk
            LABELS unit)

target_compile_definitions(agent_unit_test PRIVATE FAKE_NVML="$<TARGET_FILE:fake_nvml>")

add_library(fake_nvml SHARED process/fake_nvml.cc)
set_target_properties(fake_nvml PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
add_dependencies(agent_unit_test fake_nvml)

# Real workers that get stuck, for system/stall_test.py.
add_executable(stall_worker process/stall_worker.cc)
target_link_libraries(stall_worker PRIVATE ddprun::worker_sdk ddprun_flags)
set_target_properties(stall_worker PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)

# Real gradients, for system/operations_test.py.
add_executable(sync_worker process/sync_worker.cc)
target_link_libraries(sync_worker PRIVATE ddprun::worker_sdk ddprun_flags)
set_target_properties(sync_worker PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)

# Real processes: a worker that behaves badly on request, and the guardian and agents without rendezvous.
add_executable(agent_test_worker process/test_worker.cc)
add_executable(agent_test_launcher process/test_launcher.cc)
target_link_libraries(agent_test_launcher PRIVATE ddprun_agent)
set_target_properties(agent_test_worker agent_test_launcher
                      PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
add_library(ddprun_test_processes STATIC process/processes.cc)
target_link_libraries(ddprun_test_processes PUBLIC ddprun_agent)
target_compile_definitions(ddprun_test_processes PUBLIC
                           AGENT_TEST_WORKER="$<TARGET_FILE:agent_test_worker>"
                           AGENT_TEST_LAUNCHER="$<TARGET_FILE:agent_test_launcher>")
add_dependencies(ddprun_test_processes agent_test_worker agent_test_launcher)
ddprun_test(NAME agent_process_test
            SOURCES process/guardian_test.cc process/output_test.cc process/process_host_test.cc process/spawn_test.cc
            LIBRARIES ddprun_test_processes
            LABELS process)
