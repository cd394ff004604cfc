# Tests of the store and of the control link.
ddprun_test(NAME store_test
            SOURCES unit/store/store_test.cc unit/store/store_wire_test.cc unit/store/store_model_test.cc
                    unit/store/store_table_test.cc unit/store/store_fuzz_test.cc fuzz/store_fuzz.cc
            LIBRARIES ddprun_rendezvous COMPUTES)
ddprun_test(NAME frames_test SOURCES unit/common/data_network_test.cc unit/common/frames_test.cc unit/common/host_text_test.cc unit/common/secrets_test.cc
                                fuzz/frames_fuzz.cc
            LIBRARIES ddprun_common)

if(DDPRUN_FUZZ)
  add_subdirectory(fuzz)
endif()

ddprun_test(NAME store_server_test SOURCES unit/store/store_server_test.cc unit/store/ready_sockets_test.cc
                                              unit/store/store_clients_test.cc
                                              unit/common/peer_user_test.cc
            LIBRARIES ddprun_rendezvous APART)
ddprun_test(NAME link_test SOURCES unit/rendezvous/link_test.cc unit/rendezvous/listener_test.cc unit/rendezvous/tls_psk_test.cc
                                       unit/rendezvous/turnstile_test.cc unit/rendezvous/server_test.cc unit/rendezvous/server_shell_test.cc
                                       unit/rendezvous/relay_thread_test.cc
            LIBRARIES ddprun_rendezvous)

ddprun_test(NAME operations_unit_test
            SOURCES unit/rendezvous/http_server_test.cc unit/rendezvous/service_notifier_test.cc unit/common/log_test.cc
            LIBRARIES ddprun_rendezvous
            LABELS unit)

# PyTorch's own clients against our servers, the agent's and rank 0's, skipped where there is no
# PyTorch; and one table of cases for ours and PyTorch's own.
add_executable(store_serve support/store_serve.cc)
target_link_libraries(store_serve PRIVATE ddprun_rendezvous)
add_executable(store_host_serve support/store_host_serve.cc)
target_link_libraries(store_host_serve PRIVATE ddprun::worker_sdk ddprun_flags)
set_target_properties(store_serve store_host_serve PROPERTIES
                      RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
find_program(DDPRUN_PYTHON python3 PATHS /usr/bin NO_DEFAULT_PATH)
if(DDPRUN_PYTHON)
  add_test(NAME store_interop
           COMMAND ${DDPRUN_PYTHON} -B ${CMAKE_CURRENT_LIST_DIR}/interop/store_interop.py
                   $<TARGET_FILE:store_serve> $<TARGET_FILE:store_host_serve>)
  add_test(NAME store_conformance
           COMMAND ${DDPRUN_PYTHON} -B ${CMAKE_CURRENT_LIST_DIR}/interop/store_conformance.py
                   $<TARGET_FILE:store_serve> $<TARGET_FILE:store_host_serve>)
  set_tests_properties(store_conformance PROPERTIES TIMEOUT ${DDPRUN_TEST_TIMEOUT} LABELS interop)
  set_tests_properties(store_interop PROPERTIES TIMEOUT ${DDPRUN_TEST_TIMEOUT} SKIP_RETURN_CODE 77 LABELS interop)
endif()
