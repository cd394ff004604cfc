# The real binaries on this machine and in network namespaces; each file is one test and says itself
# what it skips. Needs nothing but Python's standard library.
find_program(DDPRUN_PYTHON python3 PATHS /usr/bin NO_DEFAULT_PATH)
function(ddprun_system_test NAME FILE LABEL)
  if(NOT DDPRUN_PYTHON)
    return()
  endif()
  add_test(NAME ${NAME} COMMAND ${DDPRUN_PYTHON} -B ${CMAKE_CURRENT_LIST_DIR}/${FILE})
  set_tests_properties(${NAME} PROPERTIES TIMEOUT 900 SKIP_RETURN_CODE 77 LABELS "${LABEL}"
                                          ENVIRONMENT "${DDPRUN_TEST_ENVIRONMENT}")
endfunction()

foreach(subject launch namespaces failure kill bad_input signals elastic operations train etcd journal)
  ddprun_system_test(system_${subject} system/${subject}_test.py system)
endforeach()
ddprun_system_test(launch_interop interop/launch_interop.py "system;interop")
