# Installs the SDK into an empty folder and builds examples/external against it.
#   cmake -DBUILD=<build folder> -DSOURCE=<examples> -P installed_sdk_test.cmake

set(work ${BUILD}/tests/installed_sdk)
file(REMOVE_RECURSE ${work})

function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "${ARGN}: ${result}\n${output}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

run(${CMAKE_COMMAND} -DCMAKE_INSTALL_PREFIX=${work}/prefix
    -P ${BUILD}/worker_sdk/cmake_install.cmake)
file(GLOB_RECURSE pc ${work}/prefix/ddprun.pc)
get_filename_component(pc_folder ${pc} DIRECTORY)
run(${CMAKE_COMMAND} -E env PKG_CONFIG_PATH=${pc_folder}
    ${CMAKE_COMMAND} -S ${SOURCE}/external -B ${work}/build -DCMAKE_PREFIX_PATH=${work}/prefix)
run(${CMAKE_COMMAND} --build ${work}/build)
foreach(program hello hello_by_pkg_config hello_in_c)
  run(${CMAKE_COMMAND} -E env --unset=RANK --unset=WORLD_SIZE ${work}/build/${program})
  if(NOT output STREQUAL "rank 0 of 1, backend self, loss 1.5\n")
    message(FATAL_ERROR "${program} said: ${output}")
  endif()
endforeach()
