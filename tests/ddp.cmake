# Tests of gradient averaging, the sampler, the libtorch adapter and train.

ddprun_test(NAME sampler_test SOURCES unit/ddp/sampler_test.cc LIBRARIES ddprun::worker_sdk LABELS unit)
ddprun_test(NAME buckets_test SOURCES unit/ddp/buckets_test.cc LIBRARIES ddprun::worker_sdk LABELS unit)
ddprun_test(NAME reducer_test SOURCES unit/ddp/reducer_test.cc unit/ddp/reducer_fuzz_test.cc
                                      fuzz/reducer_fuzz.cc
            LIBRARIES ddprun::worker_sdk LABELS unit)
ddprun_test(NAME ddp_test SOURCES unit/ddp/ddp_test.cc unit/ddp/ddp_modes_test.cc unit/ddp/ddp_hooks_test.cc
                                  unit/ddp/ddp_recovery_test.cc unit/ddp/power_sgd_test.cc
            LIBRARIES ddprun::worker_sdk LABELS unit)
ddprun_test(NAME sync_timer_test SOURCES unit/ddp/sync_timer_test.cc unit/ddp/sync_report_test.cc
                                         unit/ddp/foreign_steps_test.cc
            LIBRARIES ddprun::worker_sdk nlohmann_json::nlohmann_json LABELS unit)
if(TARGET ddprun_train_parts)
  ddprun_test(NAME train_parts_test SOURCES unit/ddp/train_parts_test.cc
              LIBRARIES ddprun_train_parts nlohmann_json::nlohmann_json ZLIB::ZLIB LABELS unit)
endif()
# libtorch as packaged is not instrumented: ThreadSanitizer does not see how its threads agree.
if(TARGET ddprun::torch AND NOT DDPRUN_SANITIZE MATCHES "thread")
  ddprun_test(NAME torch_adapter_test SOURCES process/torch/torch_adapter_test.cc process/torch/torch_modes_test.cc
                                           process/torch/torch_changes_test.cc process/torch/torch_checkpoint_test.cc process/torch/torch_data_test.cc process/torch/torch_collectives_test.cc
                                           process/torch/torch_training_test.cc process/torch/torch_types_test.cc
              LIBRARIES ddprun::torch LABELS process COMPUTES APART)
  ddprun_torch_program(torch_adapter_test)
  # Its ranks are forked, which libtorch stands only before it has threads.
  ddprun_test(NAME torch_elastic_test SOURCES process/torch/torch_elastic_test.cc
              LIBRARIES ddprun::torch LABELS process COMPUTES)
  ddprun_torch_program(torch_elastic_test)
endif()
# The C++ lines of documentation pages, as the programs that they are.
function(ddprun_snippets_of_page result name page number)
  set(snippets ${CMAKE_CURRENT_BINARY_DIR}/${name}.cc)
  add_custom_command(OUTPUT ${snippets}
    COMMAND python3 -B ${CMAKE_CURRENT_SOURCE_DIR}/process/torch/extract_snippets.py ${page} ${snippets} ${number}
    DEPENDS ${page} process/torch/extract_snippets.py)
  set(${result} ${snippets} PARENT_SCOPE)
endfunction()
if(NOT DDPRUN_SANITIZE)
  ddprun_snippets_of_page(snippets started_by_hand ${PROJECT_SOURCE_DIR}/docs/from-data-parallel.md 1)
  add_executable(started_by_hand ${snippets})
  target_link_libraries(started_by_hand PRIVATE ddprun::worker_sdk ddprun_flags)
  set_target_properties(started_by_hand PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
endif()
if(TARGET ddprun::torch AND NOT DDPRUN_SANITIZE)
  function(ddprun_program_of_page name page number)
    ddprun_snippets_of_page(snippets ${name} ${page} ${number})
    add_executable(${name} ${snippets})
    ddprun_torch_program(${name})
  endfunction()
  ddprun_program_of_page(from_pytorch ${PROJECT_SOURCE_DIR}/docs/from-pytorch.md 1)
  ddprun_program_of_page(from_elastic ${PROJECT_SOURCE_DIR}/docs/from-elastic.md 1)
  ddprun_program_of_page(readme_program ${PROJECT_SOURCE_DIR}/README.md 1)
  ddprun_program_of_page(readme_elastic ${PROJECT_SOURCE_DIR}/README.md 2)
  ddprun_program_of_page(memory_program ${PROJECT_SOURCE_DIR}/docs/memory.md 1)
  add_test(NAME memory_program COMMAND ${PROJECT_BINARY_DIR}/bin/ddprun --memory-folder 16M --max-restarts 9
           --nproc-per-node 2 $<TARGET_FILE:memory_program>)
  set_tests_properties(memory_program PROPERTIES TIMEOUT ${DDPRUN_TEST_TIMEOUT} LABELS process
                       ENVIRONMENT "${DDPRUN_TEST_ENVIRONMENT};OMP_NUM_THREADS=1")
  foreach(program readme_program readme_elastic)
    add_test(NAME ${program} COMMAND ${PROJECT_BINARY_DIR}/bin/ddprun --nproc-per-node 2 $<TARGET_FILE:${program}>)
  endforeach()
  set_tests_properties(readme_program readme_elastic PROPERTIES TIMEOUT ${DDPRUN_TEST_TIMEOUT} LABELS process
                       ENVIRONMENT "${DDPRUN_TEST_ENVIRONMENT};OMP_NUM_THREADS=1")
  foreach(workers 1 2)
    add_test(NAME from_pytorch_${workers}
             COMMAND ${PROJECT_BINARY_DIR}/bin/ddprun --nproc-per-node ${workers}
                     $<TARGET_FILE:from_pytorch>
             WORKING_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR})
    set_tests_properties(from_pytorch_${workers} PROPERTIES TIMEOUT ${DDPRUN_TEST_TIMEOUT} LABELS process
      RESOURCE_LOCK from_pytorch_files
      ENVIRONMENT "${DDPRUN_TEST_ENVIRONMENT};OMP_NUM_THREADS=1" PASS_REGULAR_EXPRESSION
      "epoch 1 loss .*gradients took")
    add_test(NAME from_elastic_${workers}
             COMMAND ${PROJECT_BINARY_DIR}/bin/ddprun --nproc-per-node ${workers}
                     $<TARGET_FILE:from_elastic>)
    set_tests_properties(from_elastic_${workers} PROPERTIES TIMEOUT ${DDPRUN_TEST_TIMEOUT} LABELS process
      ENVIRONMENT "${DDPRUN_TEST_ENVIRONMENT};OMP_NUM_THREADS=1")
  endforeach()
endif()
