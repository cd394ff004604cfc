# Gloo for the backend between hosts: the target ddprun_gloo. It is the system's library, or what
# ddprun needs of a folder with Gloo's source: deploy/wheel.sh names one, because a wheel cannot
# count on a system's library.

set(DDPRUN_GLOO_SOURCE "" CACHE PATH
    "Folder of Gloo's source, to be linked in instead of the system's libgloo")

# Gloo's TCP transport as a static library. Its symbols are hidden in the library that links it: a
# process may also have the Gloo of a libtorch. Collectives, stores, TLS and other transports are
# left out, because ddprun has its own.
function(ddprun_add_gloo_source folder)
  if(NOT EXISTS ${folder}/gloo/config.h.in)
    message(FATAL_ERROR "DDPRUN_GLOO_SOURCE: ${folder} has no gloo/config.h.in, so it is not Gloo's "
                        "source. deploy/wheel.sh downloads it into build/gloo")
  endif()
  set(GLOO_VERSION_MAJOR 0)
  set(GLOO_VERSION_MINOR 5)
  set(GLOO_VERSION_PATCH 0)
  set(GLOO_HAVE_TRANSPORT_TCP 1)
  set(generated ${PROJECT_BINARY_DIR}/gloo)
  configure_file(${folder}/gloo/config.h.in ${generated}/gloo/config.h)
  set(sources
    common/linux.cc common/logging.cc context.cc types.cc rendezvous/context.cc rendezvous/store.cc
    transport/address.cc transport/buffer.cc transport/context.cc transport/device.cc
    transport/pair.cc transport/unbound_buffer.cc
    transport/tcp/address.cc transport/tcp/buffer.cc transport/tcp/context.cc
    transport/tcp/device.cc transport/tcp/loop.cc transport/tcp/pair.cc
    transport/tcp/unbound_buffer.cc)
  list(TRANSFORM sources PREPEND ${folder}/gloo/)
  add_library(ddprun_gloo_source STATIC ${sources})
  target_include_directories(ddprun_gloo_source SYSTEM PUBLIC ${generated} ${folder})
  # Its sources relied on other headers to include <cstdint>.
  target_compile_options(ddprun_gloo_source PRIVATE "SHELL:-include cstdint" -fno-gnu-unique)
  set_target_properties(ddprun_gloo_source PROPERTIES
    CXX_STANDARD 17 CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
  target_link_libraries(ddprun_gloo_source PRIVATE Threads::Threads)
endfunction()

add_library(ddprun_gloo INTERFACE)
if(DDPRUN_GLOO_SOURCE)
  ddprun_add_gloo_source(${DDPRUN_GLOO_SOURCE})
  target_link_libraries(ddprun_gloo INTERFACE ddprun_gloo_source)
else()
  find_path(GLOO_INCLUDE_DIR gloo/context.h)
  find_library(GLOO_LIBRARY gloo)
  if(NOT GLOO_INCLUDE_DIR OR NOT GLOO_LIBRARY)
    message(FATAL_ERROR "libgloo not found. On Debian: apt-get install libgloo-dev")
  endif()
  target_include_directories(ddprun_gloo SYSTEM INTERFACE ${GLOO_INCLUDE_DIR})
  if(NOT EXISTS ${GLOO_INCLUDE_DIR}/gloo/common/memory.h)
    target_include_directories(ddprun_gloo SYSTEM INTERFACE
                               $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/cmake/libgloo>)
  endif()
  target_link_libraries(ddprun_gloo INTERFACE ${GLOO_LIBRARY})
  # worker_sdk/gloo/gloo_mesh.h derives from these pairs. Those of 2024 and later accept otherwise.
  include(CheckCXXSourceCompiles)
  set(CMAKE_REQUIRED_INCLUDES ${GLOO_INCLUDE_DIR} ${PROJECT_SOURCE_DIR}/cmake/libgloo)
  check_cxx_source_compiles("
    #include <gloo/transport/tcp/pair.h>
    struct Own : gloo::transport::tcp::Pair {
      using Pair::Pair;
      void handleEvents(int) override { if (state_ == LISTENING) handleListening(); }
    };
    int main() {}" DDPRUN_KNOWS_GLOO)
  unset(CMAKE_REQUIRED_INCLUDES)
  if(NOT DDPRUN_KNOWS_GLOO)
    message(FATAL_ERROR "the Gloo in ${GLOO_INCLUDE_DIR} is not of the versions that ddprun knows (2022 to mid "
                        "2023). Name a folder with Gloo's source of such a version by -DDDPRUN_GLOO_SOURCE=FOLDER; "
                        "deploy/wheel.sh downloads one into build/gloo")
  endif()
endif()
