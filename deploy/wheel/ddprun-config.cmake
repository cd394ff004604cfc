# The wheel's: find_package(ddprun) gives ddprun::c_api, the C interface as a shared library. The C++ SDK comes with
# an installation from source.
get_filename_component(ddprun_root "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
if(NOT TARGET ddprun::c_api)
  add_library(ddprun::c_api SHARED IMPORTED)
  set_target_properties(ddprun::c_api PROPERTIES
    IMPORTED_LOCATION "${ddprun_root}/libddprun.so"
    IMPORTED_SONAME libddprun.so
    INTERFACE_INCLUDE_DIRECTORIES "${ddprun_root}/include")
endif()
foreach(component ${ddprun_FIND_COMPONENTS})
  if(NOT component STREQUAL "c_api" AND ddprun_FIND_REQUIRED_${component})
    set(ddprun_FOUND FALSE)
    set(ddprun_NOT_FOUND_MESSAGE
        "ddprun's wheel has the C interface only; component ${component} comes with an installation from source")
  endif()
endforeach()
