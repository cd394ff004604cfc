#pragma once
// The whole framework-neutral SDK.

#include "ddprun/comm_hook.h"
#include "ddprun/crash_report.h"
#include "ddprun/distributed_data_parallel.h"
#include "ddprun/distributed_sampler.h"
#include "ddprun/error.h"
#include "ddprun/process_group.h"
#include "ddprun/store.h"
#include "ddprun/sync_report.h"
#include "ddprun/types.h"
