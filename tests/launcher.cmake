# Tests of launcher/.
ddprun_test(NAME launcher_test
            SOURCES unit/options_test.cc unit/flags_test.cc unit/rdzv_conf_test.cc unit/help_test.cc unit/plan_test.cc
                    unit/paste_line_test.cc unit/suggest_test.cc unit/facts_test.cc unit/ctl_test.cc
                    unit/host_list_test.cc unit/allocation_test.cc fuzz/host_list_fuzz.cc
                    unit/config_file_test.cc fuzz/config_fuzz.cc
                    unit/hosts_test.cc unit/manual_test.cc unit/orders_test.cc unit/remote_node_test.cc fuzz/orders_fuzz.cc
                    unit/misplaced_test.cc unit/nccl_profile_plan_test.cc unit/report_table_test.cc unit/ras_test.cc fuzz/ras_fuzz.cc
            LIBRARIES ddprun_launcher ddprun_ctl
            LABELS unit)
