# The orders of accesses to shared memory: docs/shm.md. The product's own files run on a model of memory, so they are
# compiled once more, with the calls that the compiler makes for ThreadSanitizer; its library stays away.
if(DDPRUN_SANITIZE OR NOT CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  return()
endif()

set(DDPRUN_WATCHED worker_sdk/shm/shm_backend.cc worker_sdk/shm/shm_sync.cc worker_sdk/shm/shm_team.cc
    worker_sdk/transport/reduce.cc worker_sdk/worker/loss_listener.cc agent/health/progress_files.cc)
list(TRANSFORM DDPRUN_WATCHED PREPEND ${PROJECT_SOURCE_DIR}/)
add_library(orders_watched OBJECT
            orders/litmus_test.cc orders/page_orders_test.cc orders/shm_orders_test.cc ${DDPRUN_WATCHED})
target_compile_options(orders_watched PRIVATE -O1 -fsanitize=thread -Wno-tsan)
target_link_libraries(orders_watched PRIVATE ddprun::worker_sdk Catch2::Catch2 ddprun_flags)

ddprun_test(NAME orders_test
            SOURCES orders/compiler_calls.cc orders/explorer.cc orders/fibers.cc orders/schedule.cc
                    orders/weak_memory.cc $<TARGET_OBJECTS:orders_watched>
            LIBRARIES ddprun::worker_sdk LABELS unit COMPUTES)
target_link_options(orders_test PRIVATE -Wl,--wrap=syscall,--wrap=memcpy,--wrap=sched_getaffinity)

# The protocols of more ranks, on the model checker Spin.
ddprun_system_test(spin orders/spin_test.py unit)
