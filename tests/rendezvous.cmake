# Tests of what the daemon and the agents decide; no socket and no process.
ddprun_test(NAME run_test
            SOURCES unit/coordinator_test.cc unit/file_log_test.cc unit/gate_test.cc unit/journal_test.cc
                    unit/json_text_test.cc
                    unit/operators_test.cc unit/run_verdict_test.cc
                    unit/seats_test.cc unit/status_test.cc unit/verdict_test.cc unit/wire_test.cc
                    scenario/run_scenario_test.cc support/scenario.cc
            LIBRARIES ddprun_rendezvous)
ddprun_test(NAME etcd_test
            SOURCES unit/etcd_client_test.cc unit/etcd_messages_test.cc unit/etcd_log_test.cc unit/leadership_test.cc
                    fuzz/etcd_fuzz.cc support/fake_etcd.cc
            LIBRARIES ddprun_rendezvous LABELS unit)
ddprun_test(NAME messages_fuzz_test SOURCES unit/messages_fuzz_test.cc fuzz/messages_fuzz.cc
            LIBRARIES ddprun_rendezvous ddprun::worker_sdk LABELS unit)
ddprun_test(NAME supervisor_test SOURCES unit/supervisor_test.cc unit/last_words_test.cc
            LIBRARIES ddprun_agent)
ddprun_test(NAME sim_test
            SOURCES sim/run_sim_test.cc sim/sim_cluster.cc sim/sim_daemon.cc sim/sim_faults.cc sim/sim_standstill.cc
            LIBRARIES ddprun_agent LABELS sim)
if(DDPRUN_SANITIZE AND TARGET sim_test)  # Thirty times slower, and one thread: fewer seeds do.
  set_property(TEST sim_test APPEND PROPERTY ENVIRONMENT DDPRUN_SIM_SEEDS=60)
endif()
