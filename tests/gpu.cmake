# Tests of the backend nccl. Without a GPU they run on the fakes of tests/fakes.

# Of the SDK only what they compute with: under a sanitizer its archive came along whole, and its
# thread_local objects do not fit into what the loader keeps free for libraries loaded later.
add_library(fake_cudart SHARED fakes/fake_cuda.cc fakes/fake_driver.cc)
add_library(fake_nccl SHARED fakes/fake_nccl.cc fakes/fake_nccl_memory.cc fakes/fake_nccl_shrink.cc
            fakes/fake_profiler.cc ${PROJECT_SOURCE_DIR}/worker_sdk/transport/reduce.cc)
target_link_libraries(fake_cudart PRIVATE ddprun_flags Threads::Threads)
target_link_libraries(fake_nccl PRIVATE fake_cudart ddprun_flags Threads::Threads)
foreach(fake fake_cudart fake_nccl)
  target_include_directories(${fake} PRIVATE ${PROJECT_SOURCE_DIR}/worker_sdk/include)
endforeach()
# ThreadSanitizer takes the loader's bookkeeping for what is thread_local in loaded libraries for races.
target_compile_options(fake_cudart PRIVATE -ftls-model=initial-exec)
target_compile_options(fake_nccl PRIVATE -ftls-model=initial-exec)
# Where the real ones are loaded, too, by a libtorch for CUDA: theirs are not to be called among ours.
target_link_options(fake_cudart PRIVATE -Wl,-Bsymbolic-functions)
target_link_options(fake_nccl PRIVATE -Wl,-Bsymbolic-functions)
set_target_properties(fake_cudart fake_nccl PROPERTIES
                      LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)

file(WRITE ${PROJECT_BINARY_DIR}/tests/fake_kernels "fake\n")  # An image for fake_driver.cc.

# gpu_test(NAME SOURCES...): a test that may load the fakes.
function(gpu_test name)
  ddprun_test(NAME ${name} SOURCES ${ARGN} LIBRARIES ddprun::worker_sdk LABELS unit APART)
  if(TARGET ${name})
    target_compile_definitions(${name} PRIVATE DDPRUN_FAKES="$<TARGET_FILE_DIR:fake_nccl>")
    add_dependencies(${name} fake_nccl)
  endif()
endfunction()

gpu_test(gpu_runtime_test unit/gpu/gpu_runtime_test.cc unit/gpu/nccl_preflight_test.cc
         fuzz/agent/gpu_facts_fuzz.cc)
ddprun_test(NAME nccl_profile_test
            SOURCES unit/gpu/nccl_profile_test.cc ${PROJECT_SOURCE_DIR}/worker_sdk/nccl_profiler/nccl_profile.cc
            LIBRARIES ddprun_flags nlohmann_json::nlohmann_json LABELS unit)
# With the agent's side of the progress page.
gpu_test(nccl_failure_test unit/gpu/nccl_failure_test.cc unit/gpu/nccl_siblings_test.cc
         unit/gpu/nccl_blocking_test.cc
         ${PROJECT_SOURCE_DIR}/agent/health/progress_files.cc)
if(TARGET nccl_failure_test)
  target_link_libraries(nccl_failure_test PRIVATE ddprun_common)
endif()
gpu_test(gpu_kernels_test unit/gpu/gpu_kernels_test.cc unit/gpu/gpu_power_sgd_test.cc)
gpu_test(nccl_ddp_test unit/gpu/foreign_stream_test.cc unit/gpu/nccl_capture_test.cc unit/gpu/nccl_ddp_test.cc
         unit/gpu/nccl_hooks_test.cc unit/gpu/nccl_timer_test.cc)
if(TARGET nccl_ddp_test)  # It puts kernels of its own into streams.
  target_link_libraries(nccl_ddp_test PRIVATE fake_cudart nlohmann_json::nlohmann_json)
endif()
gpu_test(nccl_memory_test unit/gpu/nccl_memory_test.cc)
gpu_test(nccl_shrink_test unit/gpu/nccl_shrink_test.cc unit/worker_sdk/shrink_test.cc)
gpu_test(nccl_profiler_test unit/gpu/nccl_profiler_test.cc)
if(TARGET nccl_profiler_test)
  target_link_libraries(nccl_profiler_test PRIVATE nlohmann_json::nlohmann_json)
  target_compile_definitions(nccl_profiler_test PRIVATE DDPRUN_PROFILER="$<TARGET_FILE:ddprun-nccl-profiler>")
  add_dependencies(nccl_profiler_test ddprun-nccl-profiler)
endif()
gpu_test(nccl_death_test process/worker_sdk/nccl_death_test.cc)
gpu_test(nccl_elastic_test process/worker_sdk/nccl_elastic_test.cc unit/gpu/nccl_round_test.cc
         support/elastic_host.cc)
if(TARGET nccl_elastic_test)
  target_link_libraries(nccl_elastic_test PRIVATE nlohmann_json::nlohmann_json)
  add_dependencies(nccl_elastic_test elastic_worker)
endif()
foreach(worker nccl_worker nccl_gradients nccl_collectives)  # For system/nccl_test.py and gpu/run.sh.
  add_executable(${worker} process/worker_sdk/${worker}.cc)
  target_link_libraries(${worker} PRIVATE ddprun::worker_sdk ddprun_flags)
  set_target_properties(${worker} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  add_dependencies(${worker} fake_nccl)
endforeach()
if(TARGET torch_adapter_test)
  target_compile_definitions(torch_adapter_test PRIVATE DDPRUN_FAKES="$<TARGET_FILE_DIR:fake_nccl>")
  add_dependencies(torch_adapter_test fake_nccl)
endif()
# The tests of the other backends once more.
gpu_test(nccl_group_test unit/worker_sdk/collectives_test.cc unit/ddp/power_sgd_test.cc unit/worker_sdk/process_group_test.cc)

# Our declarations against NVIDIA's headers, where there are any. Nothing of theirs is linked.
find_path(DDPRUN_CUDA_INCLUDE_DIR cuda_runtime_api.h
          HINTS /usr/local/cuda/include ENV CUDA_HOME PATH_SUFFIXES include)
find_path(DDPRUN_NCCL_INCLUDE_DIR nccl.h
          HINTS ${DDPRUN_CUDA_INCLUDE_DIR} ENV NCCL_HOME PATH_SUFFIXES include)
if(DDPRUN_CUDA_INCLUDE_DIR AND DDPRUN_NCCL_INCLUDE_DIR AND NOT DDPRUN_SANITIZE)
  ddprun_test(NAME gpu_abi_test SOURCES unit/gpu/gpu_abi_test.cc LIBRARIES ddprun::worker_sdk
              LABELS unit)
  target_include_directories(gpu_abi_test SYSTEM PRIVATE ${DDPRUN_CUDA_INCLUDE_DIR}
                             ${DDPRUN_NCCL_INCLUDE_DIR})
endif()

# NVIDIA's own word on which cards the library has code for.
find_program(DDPRUN_CUOBJDUMP cuobjdump HINTS ENV CUDA_HOME PATHS /usr/local/cuda PATH_SUFFIXES bin)
if(NOT DDPRUN_SANITIZE)
  add_test(NAME gpu_code_test
           COMMAND bash ${CMAKE_CURRENT_SOURCE_DIR}/deploy/gpu_code_test.sh $<TARGET_FILE:ddprun>
                   "${DDPRUN_KERNEL_IMAGE}" "${DDPRUN_CUOBJDUMP}")
  set_tests_properties(gpu_code_test PROPERTIES TIMEOUT ${DDPRUN_TEST_TIMEOUT} LABELS unit
                                                SKIP_RETURN_CODE 77)
endif()
