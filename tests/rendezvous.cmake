# Tests of what the daemon and the agents decide; no socket and no process.
ddprun_test(NAME run_test
            SOURCES unit/rendezvous/any_order_test.cc
                    unit/rendezvous/coordinator_test.cc unit/rendezvous/file_log_test.cc unit/rendezvous/gate_test.cc unit/rendezvous/journal_test.cc
                    unit/rendezvous/json_text_test.cc
                    unit/rendezvous/operators_test.cc unit/watch/past_runs_test.cc unit/rendezvous/run_verdict_test.cc
                    unit/rendezvous/memory_copies_test.cc unit/rendezvous/relays_test.cc unit/rendezvous/seats_test.cc unit/rendezvous/status_test.cc unit/rendezvous/verdict_test.cc unit/rendezvous/wire_test.cc
                    scenario/run_scenario_test.cc support/scenario.cc
            LIBRARIES ddprun_rendezvous COMPUTES APART)
ddprun_test(NAME etcd_test
            SOURCES unit/rendezvous/etcd_client_test.cc unit/rendezvous/etcd_messages_test.cc
                    unit/watch/etcd_history_test.cc unit/rendezvous/etcd_log_test.cc
                    unit/rendezvous/leadership_test.cc fuzz/etcd_fuzz.cc fakes/fake_etcd.cc
            LIBRARIES ddprun_rendezvous LABELS unit APART)
ddprun_test(NAME messages_fuzz_test SOURCES unit/rendezvous/messages_fuzz_test.cc fuzz/messages_fuzz.cc
            LIBRARIES ddprun_rendezvous ddprun::worker_sdk LABELS unit)
ddprun_test(NAME supervisor_test
            SOURCES unit/supervisor/supervisor_test.cc unit/supervisor/any_order_test.cc
                    unit/supervisor/supervisor_failed_test.cc
                    unit/supervisor/supervisor_elastic_test.cc
                    unit/supervisor/supervisor_late_test.cc unit/agent/last_words_test.cc
            LIBRARIES ddprun_agent)
ddprun_test(NAME sim_test
            SOURCES sim/run_sim_test.cc sim/sim_cluster.cc sim/sim_daemon.cc sim/sim_elastic.cc
                    sim/sim_faults.cc sim/sim_relays.cc sim/sim_rounds.cc sim/sim_standstill.cc
            LIBRARIES ddprun_agent LABELS sim COMPUTES)
if(DDPRUN_SANITIZE AND TARGET sim_test)  # Thirty times slower, and one thread: fewer seeds do.
  set(seeds 10)
  if(DDPRUN_ALL_TESTS)
    set(seeds 60)
  endif()
  set_property(TEST sim_test APPEND PROPERTY ENVIRONMENT DDPRUN_SIM_SEEDS=${seeds})
endif()
