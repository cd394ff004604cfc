# Programs for systems older than this one. DDPRUN_GLIBC=2.28 links them for that glibc: the linker gets
# stubs that have only its symbols (old_glibc/stubs.py), and a few functions of our own for those that
# headers and static libraries of this machine need beyond (old_glibc/stand_ins.c, start.c). All is
# compiled as ever; what calls anything else that is newer does not link.

set(DDPRUN_GLIBC "" CACHE STRING "The oldest glibc that shall run the programs, such as 2.28; empty: this machine's")
if(NOT DDPRUN_GLIBC)
  return()
endif()
if(NOT DDPRUN_STATIC_RUNTIME)
  message(FATAL_ERROR "DDPRUN_GLIBC needs DDPRUN_STATIC_RUNTIME: an older system has an older C++ runtime, too")
endif()

find_package(Python3 REQUIRED COMPONENTS Interpreter)
set(glibc_folder ${PROJECT_BINARY_DIR}/old_glibc)
set(glibc_sources ${CMAKE_CURRENT_LIST_DIR}/old_glibc)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS
             ${glibc_sources}/stubs.py ${glibc_sources}/stand_ins.c ${glibc_sources}/start.c)
set(glibc_flags)
if(CMAKE_SYSROOT)
  set(glibc_flags --sysroot=${CMAKE_SYSROOT})
endif()
execute_process(
  COMMAND ${Python3_EXECUTABLE} ${glibc_sources}/stubs.py --glibc ${DDPRUN_GLIBC} --cc ${CMAKE_C_COMPILER}
          --readelf ${CMAKE_READELF} ${glibc_folder} ${glibc_flags}
  COMMAND_ERROR_IS_FATAL ANY)
# No target: the linker finds it as a part of -lc, behind everything that may need it.
foreach(source stand_ins start)
  execute_process(
    COMMAND ${CMAKE_C_COMPILER} ${glibc_flags} -std=c11 -O2 -g1 -fPIC -Wall -Wextra -ffunction-sections -fdata-sections
            -c ${glibc_sources}/${source}.c -o ${glibc_folder}/${source}.o
    COMMAND_ERROR_IS_FATAL ANY)
endforeach()
execute_process(COMMAND ${CMAKE_AR} rcs ${glibc_folder}/libstand_ins.a ${glibc_folder}/stand_ins.o ${glibc_folder}/start.o
                COMMAND_ERROR_IS_FATAL ANY)
add_link_options(-L${glibc_folder})
message(STATUS "Programs are linked for glibc ${DDPRUN_GLIBC}")
