# Tests of worker_sdk/.

ddprun_test(NAME process_group_test SOURCES unit/process_group_test.cc LIBRARIES ddprun::worker_sdk
            LABELS unit TIMEOUT 900)
ddprun_test(NAME group_failure_test SOURCES unit/group_failure_test.cc
            LIBRARIES ddprun::worker_sdk LABELS unit)
ddprun_test(NAME worker_death_test SOURCES process/worker_death_test.cc
            LIBRARIES ddprun::worker_sdk LABELS process)
ddprun_test(NAME worker_sdk_parts_test
            SOURCES unit/environment_test.cc unit/reduce_test.cc unit/membership_test.cc
                    unit/diagnosis_test.cc unit/store_session_test.cc
            LIBRARIES ddprun::worker_sdk LABELS unit)
ddprun_test(NAME stores_test SOURCES unit/stores_test.cc LIBRARIES ddprun::worker_sdk LABELS unit)
ddprun_test(NAME shm_backend_test SOURCES unit/shm_backend_test.cc LIBRARIES ddprun::worker_sdk
            LABELS unit)
