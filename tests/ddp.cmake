# Tests of gradient averaging, the sampler, the libtorch adapter and train.

ddprun_test(NAME sampler_test SOURCES unit/sampler_test.cc LIBRARIES ddprun::worker_sdk LABELS unit)
ddprun_test(NAME buckets_test SOURCES unit/buckets_test.cc LIBRARIES ddprun::worker_sdk LABELS unit)
ddprun_test(NAME reducer_test SOURCES unit/reducer_test.cc LIBRARIES ddprun::worker_sdk LABELS unit)
ddprun_test(NAME ddp_test SOURCES unit/ddp_test.cc unit/ddp_modes_test.cc unit/ddp_hooks_test.cc
                                  unit/power_sgd_test.cc
            LIBRARIES ddprun::worker_sdk LABELS unit)
ddprun_test(NAME sync_timer_test SOURCES unit/sync_timer_test.cc unit/sync_report_test.cc
            LIBRARIES ddprun::worker_sdk nlohmann_json::nlohmann_json LABELS unit)
if(TARGET ddprun_train_parts)
  ddprun_test(NAME train_parts_test SOURCES unit/train_parts_test.cc
              LIBRARIES ddprun_train_parts nlohmann_json::nlohmann_json ZLIB::ZLIB LABELS unit)
endif()
# libtorch as packaged is not instrumented: ThreadSanitizer does not see how its threads agree.
if(TARGET ddprun::torch AND NOT DDPRUN_SANITIZE MATCHES "thread")
  ddprun_test(NAME torch_adapter_test SOURCES process/torch_adapter_test.cc process/torch_modes_test.cc
              LIBRARIES ddprun::torch LABELS process)
  target_compile_options(torch_adapter_test PRIVATE $<$<CONFIG:RelWithDebInfo>:-g1>)
endif()
