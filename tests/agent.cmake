# Tests of agent/.
ddprun_test(NAME agent_unit_test
            SOURCES unit/agent/binding_test.cc unit/agent/cgroup_test.cc unit/agent/change_cost_test.cc unit/agent/chaos_test.cc unit/agent/command_test.cc unit/output/console_queue_test.cc unit/common/duration_text_test.cc
                    unit/agent/family_test.cc unit/agent/fault_test.cc unit/agent/flight_record_test.cc unit/agent/fork_messages_test.cc unit/agent/gpu_evidence_test.cc unit/agent/gpus_test.cc
                    unit/agent/kept_images_test.cc fuzz/agent/kept_fuzz.cc unit/agent/learned_names_test.cc fuzz/agent/learned_fuzz.cc
                    unit/output/line_fold_test.cc unit/output/line_splitter_test.cc unit/output/log_file_test.cc
                    unit/output/log_files_test.cc unit/agent/oom_watch_test.cc unit/agent/placement_test.cc
                    unit/agent/proc_file_test.cc unit/agent/progress_test.cc unit/agent/pytorch_words_test.cc unit/agent/signal_use_test.cc unit/agent/stall_watch_test.cc unit/agent/start_failure_test.cc unit/agent/reach_test.cc unit/agent/store_way_test.cc
                    unit/agent/sync_ledger_test.cc unit/common/sync_counts_test.cc
                    unit/output/tail_ring_test.cc unit/common/terminal_text_test.cc unit/agent/window_test.cc unit/agent/worker_environment_test.cc unit/agent/worker_links_test.cc
                    unit/agent/words_fuzz_test.cc fuzz/agent/words_fuzz.cc fuzz/agent/flight_fuzz.cc
                    unit/common/worker_link_test.cc fuzz/agent/worker_link_fuzz.cc
                    unit/agent/memory_test.cc fuzz/agent/memory_wire_fuzz.cc
            LIBRARIES ddprun_agent ddprun::worker_sdk
            LABELS unit)

target_compile_definitions(agent_unit_test PRIVATE FAKE_NVML="$<TARGET_FILE:fake_nvml>"
                                                   FAKE_SICK_NVML_LIB="$<TARGET_FILE:fake_sick_nvml>"
                                                   FAKE_MIG_NVML="$<TARGET_FILE:fake_mig_nvml>")

add_library(fake_nvml SHARED process/agent/fake_nvml.cc)
set_target_properties(fake_nvml PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
# One whose cards are in MIG mode.
add_library(fake_mig_nvml SHARED fakes/fake_mig_nvml.cc)
set_target_properties(fake_mig_nvml PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
add_dependencies(agent_unit_test fake_nvml fake_sick_nvml fake_mig_nvml)

# Real workers that get stuck, for failures/stall_test.py.
add_executable(stall_worker process/agent/stall_worker.cc)
target_link_libraries(stall_worker PRIVATE ddprun::worker_sdk ddprun_flags)
set_target_properties(stall_worker PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)

# Real gradients, for system/operations_test.py.
add_executable(sync_worker process/worker_sdk/sync_worker.cc)
target_link_libraries(sync_worker PRIVATE ddprun::worker_sdk ddprun_flags)
set_target_properties(sync_worker PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)

# Real processes: a worker that behaves badly on request, and the guardian and agents without rendezvous.
add_executable(agent_test_worker process/agent/test_worker.cc)
add_executable(agent_test_launcher process/agent/test_launcher.cc)
target_link_libraries(agent_test_launcher PRIVATE ddprun_guard)
set_target_properties(agent_test_worker agent_test_launcher
                      PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
add_library(ddprun_test_processes STATIC process/agent/processes.cc)
target_link_libraries(ddprun_test_processes PUBLIC ddprun_guard)
target_compile_definitions(ddprun_test_processes PUBLIC
                           AGENT_TEST_WORKER="$<TARGET_FILE:agent_test_worker>"
                           AGENT_TEST_LAUNCHER="$<TARGET_FILE:agent_test_launcher>")
add_dependencies(ddprun_test_processes agent_test_worker agent_test_launcher)
ddprun_test(NAME agent_process_test
            SOURCES process/launcher/guardian_test.cc process/agent/output_test.cc process/agent/parent_watch_test.cc process/agent/process_host_test.cc process/agent/spawn_test.cc
            LIBRARIES ddprun_test_processes
            LABELS process APART)

# The ledger, from the worker's page to the account; and a worker whose time is planted.
ddprun_test(NAME ledger_test
            SOURCES unit/ledger/place_ledger_test.cc unit/ledger/node_ledger_test.cc unit/ledger/run_ledger_test.cc
                    unit/ledger/starts_test.cc unit/ledger/time_texts_test.cc unit/ledger/status_text_test.cc unit/ledger/verdict_picture_test.cc unit/ledger/pages_test.cc fuzz/ledger_fuzz.cc
            LIBRARIES ddprun_agent ddprun_launcher LABELS unit)
add_executable(planted_worker process/worker_sdk/planted_worker.cc)
target_link_libraries(planted_worker PRIVATE ddprun::worker_sdk ddprun_flags)
set_target_properties(planted_worker PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
