# Warnings, sanitizers, ccache and mold: everything about how, not what, is compiled.

add_library(ddprun_flags INTERFACE)
target_include_directories(ddprun_flags INTERFACE $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>)
target_compile_options(ddprun_flags INTERFACE -Wall -Wextra -Wshadow)
# So that a linker can leave out of a program what nothing in it calls (ddprun_runtime).
target_compile_options(ddprun_flags INTERFACE -ffunction-sections -fdata-sections)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # g++ 12 warns wrongly about optional<> at -O1 and above with sanitizers.
  target_compile_options(ddprun_flags INTERFACE -Wno-maybe-uninitialized)
  # And at -O3, or for ARM at -O2, about text that is appended to text.
  target_compile_options(ddprun_flags INTERFACE
                         "$<$<OR:$<CONFIG:Release>,$<BOOL:${CMAKE_CROSSCOMPILING}>>:-Wno-restrict;-Wno-stringop-overflow;-Wno-array-bounds>")
endif()

if(DDPRUN_SANITIZE MATCHES "thread" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # ThreadSanitizer does not see the fences in Asio's headers, each file of which warns. Of ours none relies on one.
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-Wno-tsan>)
endif()
if(DDPRUN_SANITIZE)
  add_compile_options(-fsanitize=${DDPRUN_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  if(DDPRUN_SANITIZE MATCHES "address")
    # A third of the compiler's time goes into these; a null pointer that is used, AddressSanitizer reports as well.
    add_compile_options(-fno-sanitize=null,nonnull-attribute,returns-nonnull-attribute,object-size,vptr)
  endif()
  add_link_options(-fsanitize=${DDPRUN_SANITIZE})
endif()

# A fuzzer steers by the instrumentation of what it calls.
if(DDPRUN_FUZZ)
  add_compile_options(-g -O1 -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all)
  add_link_options(-fsanitize=address,undefined)
endif()

find_program(DDPRUN_CCACHE ccache)
if(DDPRUN_CCACHE)
  # By the list of headers that the compiler writes, no file is preprocessed just to be looked up.
  # Without the sloppiness, files with precompiled headers are not cached.
  set(DDPRUN_LAUNCHER env CCACHE_DEPEND=1 CCACHE_SLOPPINESS=pch_defines,time_macros ${DDPRUN_CCACHE})
  set(CMAKE_C_COMPILER_LAUNCHER ${DDPRUN_LAUNCHER})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${DDPRUN_LAUNCHER})
endif()
# Where nothing is built yet, most of a compiler's time goes into headers that many files include.
option(DDPRUN_UNITY "Compile the files of a component together, some at a time: half the time for a whole build" OFF)
if(DDPRUN_UNITY)
  set(CMAKE_UNITY_BUILD ON)
  set(CMAKE_UNITY_BUILD_BATCH_SIZE 12)
  # Names of one file hide those of another, and g++ takes a file's anonymous namespace for a header's.
  target_compile_options(ddprun_flags INTERFACE -Wno-shadow
                         $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>)
endif()

find_program(DDPRUN_MOLD mold)
if(DDPRUN_MOLD AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND NOT CMAKE_CROSSCOMPILING)
  add_link_options(-fuse-ld=mold)
endif()

# For programs that are started often and link nothing of PyTorch's.
add_library(ddprun_runtime INTERFACE)
if(DDPRUN_STATIC_RUNTIME)
  target_link_options(ddprun_runtime INTERFACE -static-libstdc++ -static-libgcc
                      -Wl,--as-needed,--gc-sections)
endif()
