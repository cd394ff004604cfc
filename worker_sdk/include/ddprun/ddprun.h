#pragma once
// The whole framework-neutral SDK.
//
// All movable classes follow one rule: a moved-from object may be destroyed or assigned to; every
// other call throws Error(bad_argument) that names the class. They are ProcessGroup (except
// abort(), which then does nothing), Work, DistributedDataParallel and
// torch::ZeroRedundancyOptimizer. Samplers, scalers, metrics, options and reports are plain values;
// the other classes cannot be moved.

#include "ddprun/atomic_file.h"
#include "ddprun/checkpoint.h"
#include "ddprun/clip_grad_norm.h"
#include "ddprun/comm_hook.h"
#include "ddprun/crash_report.h"
#include "ddprun/cxx20.h"
#include "ddprun/distributed_data_parallel.h"
#include "ddprun/distributed_sampler.h"
#include "ddprun/elastic/global_batches.h"
#include "ddprun/elastic/gradient_sums.h"
#include "ddprun/elastic/job.h"
#include "ddprun/elastic/random_stream.h"
#include "ddprun/elastic/sharded.h"
#include "ddprun/error.h"
#include "ddprun/expect_steps.h"
#include "ddprun/grad_scaler.h"
#include "ddprun/metrics.h"
#include "ddprun/objects.h"
#include "ddprun/process_group.h"
#include "ddprun/seeds.h"
#include "ddprun/sharding.h"
#include "ddprun/spawn.h"
#include "ddprun/store.h"
#include "ddprun/sync_report.h"
#include "ddprun/types.h"
