#pragma once
// ddprun for libtorch: DistributedDataParallel driven by autograd, collectives of tensors,
// DistributedSampler for data loaders, checkpoints of modules and optimizers, SyncBatchNorm,
// GradScaler, clip_grad_norm, ZeroRedundancyOptimizer and elastic jobs. Header-only: the program
// compiles it against its own libtorch (1.13 or 2.x), and the SDK's library does not depend on
// libtorch. CMake target ddprun::torch.
//
//   auto group = ddprun::ProcessGroup::init();
//   Net model;
//   ddprun::torch::DistributedDataParallel ddp(group, model);
//   torch::optim::SGD optimizer(ddp.parameters(), 0.01);
//   ... loss = criterion(ddp(x), y); ddp.zero_grad(); loss.backward(); optimizer.step();
//
// On the backend nccl models and inputs must be on the rank's GPU, device_of(group); on other
// backends in host memory. Tensors elsewhere are rejected. Work goes into libtorch's current
// stream.

#include "ddprun/cxx20.h"
#include "ddprun/torch/checkpoint.h"
#include "ddprun/torch/collectives.h"
#include "ddprun/torch/distributed_data_parallel.h"
#include "ddprun/torch/distributed_sampler.h"
#include "ddprun/torch/elastic_job.h"
#include "ddprun/torch/gradients.h"
#include "ddprun/torch/sharded_adamw.h"
#include "ddprun/torch/sync_batch_norm.h"
#include "ddprun/torch/tensor.h"
#include "ddprun/torch/zero_redundancy_optimizer.h"
