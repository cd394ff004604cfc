// What programs write last when they die of the failures that people have most, as PyTorch 1.12 to
// 2.15, CUDA and NCCL 2.7 to 2.30 word them; and what is made of it. Paths and addresses are
// changed.

#include <catch2/catch.hpp>
#include <csignal>
#include <sstream>

#include "agent/health/fault.h"
#include "agent/output/last_words.h"
#include "rendezvous/protocol/wire.h"

namespace ddprun::agent {
namespace {

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

// As the agent does: from all that a worker wrote to what the verdict quotes, then to the kind.
std::string judged(const std::string& text, int exit_code, int signal = 0) {
  WorkerDeath death;
  death.exit_code = exit_code;
  death.signal = signal;
  return rendezvous::fault_name(classify(death, last_words(lines_of(text), ""), false));
}
std::string python(const std::string& text) {
  return judged(
      "step 17\nTraceback (most recent call last):\n"
      "  File \"/job/train.py\", line 31, in <module>\n    main()\n" +
          text,
      1);
}
std::string cpp(const std::string& text) { return judged(text, 0, SIGABRT); }

const std::string kFrames =
    "frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x96 (0x7f4c560b9446 in "
    "/env/lib/python3.11/site-packages/torch/lib/libc10.so)\n"
    "frame #1: c10::detail::torchCheckFail(char const*, char const*, unsigned int, std::string "
    "const&) + 0x64 (0x7f4c560636e4 in /env/lib/python3.11/site-packages/torch/lib/libc10.so)\n"
    "frame #2: c10::cuda::c10_cuda_check_implementation(int, char const*, char const*, int, bool) "
    "+ 0x118 (0x7f4c561a5a18 in /env/lib/python3.11/site-packages/torch/lib/libc10_cuda.so)\n"
    "frame #3: c10d::ProcessGroupNCCL::WorkNCCL::finishedGPUExecutionInternal() const + 0x56\n"
    "frame #4: c10d::ProcessGroupNCCL::WorkNCCL::isCompleted() + 0xa0\n"
    "frame #5: c10d::ProcessGroupNCCL::watchdogHandler() + 0x1da\n"
    "frame #6: c10d::ProcessGroupNCCL::ncclCommWatchdog() + 0x14d\n"
    "frame #7: <unknown function> + 0x145c0 (0x7f4ca2a1b5c0 in libtorch.so)\n"
    "frame #8: <unknown function> + 0x94ac3 (0x7f4ca2da94ac3 in libc.so.6)\n"
    "frame #9: <unknown function> + 0x126850 (0x7f4ca2db26850 in libc.so.6)\n"
    "frame #10: clone + 0x44 (0x7f4ca2db26850 in libc.so.6)\n\n";

TEST_CASE("PyTorch's words: CUDA is out of memory", "[fault]") {
  // 1.12, 1.13 and 2.0, 2.1, 2.2 to 2.14; 2.15 has another address of its manual.
  CHECK(python("RuntimeError: CUDA out of memory. Tried to allocate 128.00 MiB (GPU 0; 11.17 GiB "
               "total capacity; 10.85 GiB already allocated; 24.81 MiB free; 10.86 GiB reserved in "
               "total by PyTorch)") == "gpu_memory");
  CHECK(
      python("torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.69 GiB (GPU "
             "0; 14.56 GiB total capacity; 649.97 MiB already allocated; 1.31 GiB free; 1.01 GiB "
             "reserved in total by PyTorch) If reserved memory is >> allocated memory try setting "
             "max_split_size_mb to avoid fragmentation.  See documentation for Memory Management "
             "and PYTORCH_CUDA_ALLOC_CONF") == "gpu_memory");
  CHECK(
      python("torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 496.00 MiB. GPU "
             "0 has a total capacty of 14.75 GiB of which 235.06 MiB is free. Process 20398 has "
             "14.52 GiB memory in use. Of the allocated memory 14.06 GiB is allocated by PyTorch, "
             "and 330.42 MiB is reserved by PyTorch but unallocated.") == "gpu_memory");
  const std::string now =
      "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 226.00 MiB. GPU 3 "
      "has "
      "a total capacity of 15.70 GiB of which 210.38 MiB is free. Including non-PyTorch memory, "
      "this process has 15.48 GiB memory in use. Of the allocated memory 14.81 GiB is allocated by "
      "PyTorch, and 336.73 MiB is reserved by PyTorch but unallocated. If reserved but unallocated "
      "memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid "
      "fragmentation.  See documentation for Memory Management  "
      "(https://docs.pytorch.org/docs/stable/notes/cuda.html)";
  CHECK(python(now) == "gpu_memory");
  // What follows while the interpreter ends.
  CHECK(python(now + "\n[rank3]:[W1127 01:30:31.100 ProcessGroupNCCL.cpp:1496] Warning: WARNING: "
                     "destroy_process_group() was not called before program exit\n"
                     "wandb: View run at: https://example.org/x\n"
                     " 17%|#7        | 17/100 [00:12<00:59,  1.39it/s]") == "gpu_memory");
  CHECK(python("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate more than 1EB "
               "memory.") == "gpu_memory");
  CHECK(python("RuntimeError: CUDA error: out of memory\nCUDA kernel errors might be "
               "asynchronously reported at some other API call,so the stacktrace below might be "
               "incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1.") ==
        "gpu_memory");
  CHECK(python("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling "
               "`cublasCreate(handle)`") == "gpu_memory");
  CHECK(
      cpp("terminate called after throwing an instance of 'c10::OutOfMemoryError'\n"
          "  what():  CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity "
          "of 79.10 GiB of which 10.12 MiB is free.\nException raised from malloc at "
          "../c10/cuda/CUDACachingAllocator.cpp:1392 (most recent call first):\n" +
          kFrames) == "gpu_memory");
  CHECK(
      python("[rank1]: torch.distributed.DistBackendError: NCCL error in: "
             "../torch/csrc/distributed/c10d/NCCLUtils.hpp:275, unhandled cuda error (run with "
             "NCCL_DEBUG=INFO for details), NCCL version 2.20.5\n[rank1]: ncclUnhandledCudaError: "
             "Call to CUDA function failed.\n[rank1]: Last error:\n[rank1]: Cuda failure 2 'out of "
             "memory'") == "gpu_memory");
}

TEST_CASE("PyTorch's words: a kernel on a GPU failed", "[fault]") {
  const std::string rest =
      "\nCUDA kernel errors might be asynchronously reported at some other API call, so the "
      "stacktrace below might be incorrect.\nFor debugging consider passing "
      "CUDA_LAUNCH_BLOCKING=1\nCompile with `TORCH_USE_CUDA_DSA` to enable device-side "
      "assertions.\n";
  CHECK(python("RuntimeError: CUDA error: device-side assert triggered" + rest) == "gpu_assert");
  CHECK(python("torch.AcceleratorError: CUDA error: device-side assert triggered\nSearch for "
               "`cudaErrorAssert' in https://docs.nvidia.com/cuda/cuda-runtime-api/"
               "group__CUDART__TYPES.html for more information." +
               rest) == "gpu_assert");
  CHECK(python("RuntimeError: CUDA error: an illegal memory access was encountered" + rest) ==
        "gpu_access");
  CHECK(python("RuntimeError: Triton Error [CUDA]: an illegal memory access was encountered") ==
        "gpu_access");
  CHECK(python("RuntimeError: CUDA error: misaligned address" + rest) == "gpu_access");
  CHECK(python("RuntimeError: CUDA error: unspecified launch failure" + rest) == "gpu_access");
  // From the watchdog's thread: its stack is longer than what is quoted.
  const std::string watchdog =
      "[rank2]:[E1127 01:30:31.1 ProcessGroupNCCL.cpp:1895] [PG ID 0 PG GUID 0(default_pg) Rank 2] "
      "Process group watchdog thread terminated with exception: CUDA error: an illegal memory "
      "access "
      "was encountered" +
      rest +
      "\nException raised from c10_cuda_check_implementation at "
      "../c10/cuda/CUDAException.cpp:43 (most recent call first):\n" +
      kFrames +
      "terminate called after throwing an instance of 'c10::DistBackendError'\n"
      "  what():  [PG ID 0 PG GUID 0(default_pg) Rank 2] Process group watchdog thread terminated "
      "with exception: CUDA error: an illegal memory access was encountered" +
      rest +
      "\nException raised from c10_cuda_check_implementation at ../c10/cuda/CUDAException.cpp:43 "
      "(most recent call first):\n" +
      kFrames;
  CHECK(cpp(watchdog) == "gpu_access");
  CHECK(cpp(watchdog + "Fatal Python error: Aborted\n\nThread 0x000079e69b400640 (most recent call "
                       "first):\n  File \"/usr/lib/python3.10/threading.py\", line 324 in wait\n"
                       "Extension modules: numpy.core._multiarray_umath (total: 1)\n") ==
        "gpu_access");
  const std::string quoted = last_words(lines_of(watchdog), "");
  CHECK(quoted.find("  what():  [PG ID 0") != std::string::npos);
  CHECK(quoted.size() <= 4096);
}

TEST_CASE("PyTorch's words: the GPU is broken, or not there", "[fault]") {
  CHECK(python("RuntimeError: CUDA error: uncorrectable ECC error encountered\nCompile with "
               "`TORCH_USE_CUDA_DSA` to enable device-side assertions.\n") == "gpu_broken");
  CHECK(
      cpp("terminate called after throwing an instance of 'c10::AcceleratorError'\n"
          "  what():  CUDA error: uncorrectable ECC error encountered\nCUDA kernel errors might be "
          "asynchronously reported at some other API call, so the stacktrace below might be "
          "incorrect.\n\nException raised from c10_cuda_check_implementation at "
          "/pytorch/c10/cuda/CUDAException.cpp:42 (most recent call first):\n" +
          kFrames) == "gpu_broken");
  CHECK(python("torch.AcceleratorError: CUDA error: uncorrectable NVLink error detected during the "
               "execution") == "gpu_broken");
  CHECK(python("RuntimeError: CUDA error: invalid device ordinal\nCUDA kernel errors might be "
               "asynchronously reported at some other API call,so the stacktrace below might be "
               "incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1.") == "no_gpu");
  CHECK(python("RuntimeError: No CUDA GPUs are available") == "no_gpu");
  CHECK(python("RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable") ==
        "no_gpu");
  CHECK(python("RuntimeError: CUDA error: no kernel image is available for execution on the "
               "device") == "no_gpu");
  CHECK(python("RuntimeError: Found no NVIDIA driver on your system. Please check that you have an "
               "NVIDIA GPU") == "no_gpu");
  CHECK(python("AssertionError: Torch not compiled with CUDA enabled") == "no_gpu");
}

TEST_CASE("PyTorch's words: errors of NCCL's own, and those of who lost a peer", "[fault]") {
  const std::string error =
      "torch.distributed.DistBackendError: NCCL error in: "
      "../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1691, ";
  CHECK(python(error + "invalid usage (run with NCCL_DEBUG=WARN for details), NCCL version "
                       "2.19.3\nncclInvalidUsage: This usually reflects invalid usage of NCCL "
                       "library.\nLast error:\nDuplicate GPU detected : rank 1 and rank 0 both on "
                       "CUDA device 3b000") == "nccl");
  CHECK(python(error +
               "invalid usage, NCCL version 2.30.7\nncclInvalidUsage: This usually reflects "
               "invalid usage of NCCL library.\nLast error:\nMismatched NCCL version "
               "detected : rank 0 version 22105 rank 8 version 22304") == "nccl_version");
  CHECK(python(error +
               "unhandled system error (run with NCCL_DEBUG=INFO for details), NCCL version "
               "2.18.1\nncclSystemError: System call (e.g. socket, malloc) or external "
               "library call failed or device error. \nLast error:\nsocketStartConnect: "
               "Connect to 10.0.0.2<40001> failed : No route to host") == "nccl");
  CHECK(python("RuntimeError: NCCL error in: ../torch/lib/c10d/ProcessGroupNCCL.cpp:911, unhandled "
               "cuda error, NCCL version 2.7.8\nncclUnhandledCudaError: Call to CUDA function "
               "failed.") == "nccl");
  CHECK(python(error + "unhandled cuda error, NCCL version 2.21.5\nncclUnhandledCudaError: Call to "
                       "CUDA function failed.\nLast error:\nCuda failure 719 'unspecified launch "
                       "failure'") == "gpu_access");
  // These give way to the rank that failed of itself.
  CHECK(python("[rank3]: " + error +
               "remote process exited or there was a network error, NCCL "
               "version 2.21.5\n[rank3]: ncclRemoteError: A call failed possibly due to a network "
               "error or a remote process exiting prematurely.\n[rank3]: Last error:\n[rank3]: "
               "socketProgressOpt: Call to recv from 10.0.0.2<33759> failed : Connection reset by "
               "peer") == "peer_lost");
  CHECK(python(error + "internal error, NCCL version 2.14.3\nncclInternalError: Internal check "
                       "failed.\nLast error:\nNet : Connection closed by remote peer "
                       "node7<50260>") == "peer_lost");
  CHECK(cpp("terminate called after throwing an instance of 'std::runtime_error'\n  what():  NCCL "
            "error: remote process exited or there was a network error, NCCL version 2.14.3\n"
            "ncclRemoteError: A call failed possibly due to a network error or a remote process "
            "exiting prematurely.\nLast error:\nNET/IB : Got completion from peer "
            "10.0.0.2<39138> with error 12, opcode 0, len 0, vendor err 129") == "peer_lost");
  CHECK(
      cpp("terminate called after throwing an instance of 'c10::DistBackendError'\n  what():  [PG "
          "ID 0 PG GUID 0(default_pg) Rank 1] Process group watchdog thread terminated with "
          "exception: [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3, "
          "OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=60000) ran for 60041 milliseconds "
          "before timing out.\nException raised from checkTimeout at "
          "../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:632 (most recent call first):\n" +
          kFrames) == "timed_out");
}

TEST_CASE("PyTorch's words: ports, files, quotas", "[fault]") {
  CHECK(
      python("RuntimeError: The server socket has failed to listen on any local network address. "
             "The server socket has failed to bind to [::]:29500 (errno: 98 - Address already in "
             "use). The server socket has failed to bind to ?UNKNOWN? (errno: 98 - Address already "
             "in use).") == "address_in_use");
  CHECK(python("torch.distributed.DistNetworkError: The server socket has failed to listen on any "
               "local network address. port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, "
               "message: address already in use") == "address_in_use");
  CHECK(python("OSError: [Errno 98] Address already in use") == "address_in_use");
  CHECK(cpp("terminate called after throwing an instance of 'boost::system::system_error'\n  "
            "what():  bind: Address already in use [system:98]") == "address_in_use");
  CHECK(python("FileNotFoundError: [Errno 2] No such file or directory: '/data/train.bin'") ==
        "no_file");
  CHECK(judged("python3: can't open file '/job/train.py': [Errno 2] No such file or directory",
               2) == "no_file");
  CHECK(
      cpp("terminate called after throwing an instance of 'std::filesystem::filesystem_error'\n  "
          "what():  filesystem error: cannot open: No such file or directory [/data/train.bin]") ==
      "no_file");
  CHECK(python("[rank1]: ModuleNotFoundError: No module named 'flash_attn'") == "import_error");
  CHECK(python("OSError: [Errno 122] Disk quota exceeded: '/home/me/checkpoint.pt'") == "quota");
  CHECK(python("    fp.close()\nOSError: [Errno 122] Disk quota exceeded") == "quota");
}

TEST_CASE("PyTorch's words: what was logged and survived does not count", "[fault]") {
  const std::string logged =
      "Traceback (most recent call last):\n  File \"/job/train.py\", line 9, in step\n"
      "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total "
      "capacity of 79.10 GiB of which 1.06 GiB is free.\n";
  CHECK(judged(logged + "halving the batch\nloss 2.3\n", 1) == "exception");
  CHECK(judged(logged + "halving the batch\nloss 2.3\n", 4) == "exit");
  CHECK(judged(logged + "halving the batch\n", 0, SIGABRT) == "crash");
  CHECK(judged(logged + "halving the batch\n", 0, SIGSEGV) == "crash");
  CHECK(judged(logged, 0, SIGKILL) == "signal");
  CHECK(judged(logged + "halving the batch\nTraceback (most recent call last):\nKeyError: 'x'\n",
               1) == "exception");
  CHECK(judged("WARNING CUDA out of memory, halving the batch\nsaved\n", 1) == "exit");
  CHECK(judged("[Errno 98] Address already in use: trying 29501\nloss 2.3\n", 1) == "exit");
  CHECK(judged("FileNotFoundError: no cache, building it\nloss 2.3\n", 1) == "exception");
  CHECK(judged("OSError: [Errno 122] Disk quota exceeded\nno logs then\n", 1) == "exception");
}

TEST_CASE("PyTorch's words: who reports an error of several lines is about to end", "[fault]") {
  const std::string traceback = "[rank1]: Traceback (most recent call last):";
  CHECK(ends_in_exception({traceback, "[rank1]:   File \"x\", line 1", "[rank1]: ValueError: x"}));
  CHECK(ends_in_exception({traceback, "RuntimeError: CUDA error: device-side assert triggered",
                           "CUDA kernel errors might be asynchronously reported",
                           "For debugging consider passing CUDA_LAUNCH_BLOCKING=1"}));
  CHECK(
      ends_in_exception({traceback, "[rank1]: torch.distributed.DistBackendError: NCCL error in: x",
                         "[rank1]: ncclInvalidUsage: This usually reflects invalid usage.",
                         "[rank1]: Last error:", "[rank1]: Duplicate GPU detected"}));
  CHECK_FALSE(ends_in_exception({"Traceback (most recent call last):",
                                 "RuntimeError: CUDA error: device-side assert triggered",
                                 "going on with the next batch"}));
}

}  // namespace
}  // namespace ddprun::agent
