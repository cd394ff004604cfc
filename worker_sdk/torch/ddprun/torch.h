#pragma once
// ddprun for libtorch: DistributedDataParallel driven by autograd, SyncBatchNorm, GradScaler,
// clip_grad_norm and ZeroRedundancyOptimizer. Header-only, so that it is compiled against the
// user's libtorch (1.13 or 2.x), and the SDK's library needs none. CMake target ddprun::torch.
//
//   auto group = ddprun::ProcessGroup::init();
//   Net model;
//   ddprun::torch::DistributedDataParallel ddp(group, model);
//   torch::optim::SGD optimizer(model->parameters(), 0.01);
//   ... loss = criterion(ddp.forward(x), y); ddp.zero_grad(); loss.backward(); optimizer.step();
//
// On the backend nccl models and inputs live on the GPU of the rank, device_of(group), else in the
// memory of the host; what lives elsewhere is refused. Work goes into libtorch's current stream.

#include "ddprun/cxx20.h"
#include "ddprun/torch/device.h"
#include "ddprun/torch/distributed_data_parallel.h"
#include "ddprun/torch/gradients.h"
#include "ddprun/torch/parameters.h"
#include "ddprun/torch/sync_batch_norm.h"
#include "ddprun/torch/zero_redundancy_optimizer.h"
