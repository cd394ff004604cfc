# Tests of launcher/.
ddprun_test(NAME launcher_test
            SOURCES unit/launcher/options_test.cc unit/launcher/flags_test.cc unit/launcher/option_table_test.cc unit/launcher/rdzv_conf_test.cc unit/launcher/help_test.cc unit/launcher/plan_test.cc
                    unit/launcher/paste_line_test.cc unit/launcher/suggest_test.cc unit/launcher/facts_test.cc unit/launcher/ctl_test.cc
                    unit/common/host_list_test.cc unit/common/slurm_step_test.cc unit/launcher/host_watch_test.cc fuzz/launcher/host_lines_fuzz.cc unit/launcher/allocation_test.cc unit/launcher/slurm_test.cc fuzz/common/host_list_fuzz.cc
                    unit/launcher/config_file_test.cc fuzz/config_fuzz.cc
                    unit/launcher/hosts_test.cc unit/launcher/manual_test.cc unit/launcher/orders_test.cc unit/launcher/remote_node_test.cc unit/launcher/replay_options_test.cc unit/common/child_process_test.cc fuzz/orders_fuzz.cc
                    unit/launcher/guardian_policy_test.cc unit/launcher/misplaced_test.cc unit/launcher/nccl_profile_plan_test.cc unit/launcher/own_python_test.cc unit/launcher/python_watch_test.cc unit/common/wrapped_text_test.cc unit/launcher/report_table_test.cc unit/launcher/ras_test.cc fuzz/ras_fuzz.cc
            LIBRARIES ddprun_launcher ddprun_doctor ddprun_ctl ddprun_guard
            LABELS unit)

# What doctor and --preflight judge; tests/doctor/doctor_test.py has what they measure.
ddprun_test(NAME doctor_test
            SOURCES unit/launcher/doctor/checks_test.cc unit/launcher/doctor/compare_test.cc unit/launcher/doctor/facts_test.cc
                    unit/launcher/doctor/screen_test.cc fuzz/launcher/facts_fuzz.cc
            LIBRARIES ddprun_doctor
            LABELS unit APART)
# A NVML of GPUs that are ill on request.
add_library(fake_sick_nvml SHARED fakes/fake_sick_nvml.cc)
set_target_properties(fake_sick_nvml PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)

# `ddprunctl whatif`: its model beside formulas, and beside the real Run.
ddprun_test(NAME whatif_test
            SOURCES unit/launcher/what_if_test.cc unit/launcher/what_if_run_test.cc fuzz/launcher/account_fuzz.cc
            LIBRARIES ddprun_ctl
            LABELS unit COMPUTES)

# What ddprunctl shows of runs, while they go on and afterwards.
ddprun_test(NAME watch_test
            SOURCES unit/common/columns_test.cc unit/common/folder_size_test.cc unit/common/record_folder_test.cc unit/common/user_file_test.cc unit/watch/agents_test.cc unit/watch/health_test.cc unit/watch/golden_test.cc unit/watch/history_test.cc unit/watch/keys_test.cc
                    unit/watch/top_screen_test.cc fuzz/launcher/history_fuzz.cc
            LIBRARIES ddprun_ctl
            LABELS unit)
