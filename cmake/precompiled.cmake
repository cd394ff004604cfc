# Headers that are compiled once for many files. Only headers that take most of a file's time pay: with the standard
# library or Asio precompiled for the product, most files take longer than without.

if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  set(CMAKE_DISABLE_PRECOMPILE_HEADERS ON)  # Others want every option to be the same in all files.
endif()

# ddprun_precompile(<target> HEADERS ... LIBRARIES ... [OPTIONS ...]): a target for target_precompile_headers(...
# REUSE_FROM) of programs. Libraries cannot use it: they are compiled with -fPIC, and the compiler then refuses it.
function(ddprun_precompile name)
  cmake_parse_arguments(P "" "" "HEADERS;LIBRARIES;OPTIONS" ${ARGN})
  set(source ${PROJECT_BINARY_DIR}/${name}.cc)
  if(NOT EXISTS ${source})
    file(WRITE ${source} "")
  endif()
  add_library(${name} OBJECT EXCLUDE_FROM_ALL ${source})
  set_target_properties(${name} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
  target_compile_options(${name} PRIVATE -fPIE ${P_OPTIONS})
  target_link_libraries(${name} PRIVATE ${P_LIBRARIES} ddprun_flags)
  target_precompile_headers(${name} PRIVATE ${P_HEADERS})
endfunction()
