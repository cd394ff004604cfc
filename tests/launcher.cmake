# Tests of launcher/.
ddprun_test(NAME launcher_test
            SOURCES unit/options_test.cc unit/rdzv_conf_test.cc unit/help_test.cc unit/plan_test.cc
                    unit/paste_line_test.cc unit/suggest_test.cc unit/facts_test.cc unit/ctl_test.cc
                    unit/report_table_test.cc
            LIBRARIES ddprun_launcher ddprun_ctl
            LABELS unit)
