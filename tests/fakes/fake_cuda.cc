// A CUDA runtime for machines without a GPU: device memory is the host's, a stream is a thread with
// a queue. Tests load it by DDPRUN_CUDART_LIB. FAKE_CUDA sets what it is, such as
// "devices=2,driver=13000,status=100,memset_ms=20".

#include "tests/fakes/fake_cuda.h"

#include <pthread.h>

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <deque>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "tests/fakes/fake_capture.h"

using ddprun::test::FakeCapture;
using ddprun::test::FakeCaptures;
using ddprun::test::injected;
using ddprun::test::is_devices;
using ddprun::worker_sdk::CudaEvent;
using ddprun::worker_sdk::CudaStream;
using ddprun::worker_sdk::kCudaCaptureRelaxed;
using ddprun::worker_sdk::kCudaNotCaptured;
using ddprun::worker_sdk::kCudaNotReady;
using ddprun::worker_sdk::kCudaSuccess;

namespace {

using Clock = std::chrono::steady_clock;
constexpr int kInvalidValue = 1;
constexpr int kInvalidDevice = 101;
constexpr int kCaptureUnsupported = 900;
constexpr int kCaptureIsolation = 905;
constexpr int kCapturedEvent = 907;
constexpr unsigned long kKnownEvent = 0xe7e27;

class Stream {
 public:
  // Its thread ends after stop(), or with the process. A stack of a size of its own, because a
  // stream of a GPU needs no thread: test::NoThreads is for those of the SDK.
  Stream() {
    pthread_attr_t own;
    ::pthread_attr_init(&own);
    ::pthread_attr_setstacksize(&own, std::size_t{8} << 20);
    ::pthread_attr_setdetachstate(&own, PTHREAD_CREATE_DETACHED);
    pthread_t thread{};
    const auto begin = [](void* stream) -> void* {
      static_cast<Stream*>(stream)->run();
      return nullptr;
    };
    if (::pthread_create(&thread, &own, begin, this) != 0) std::abort();
    ::pthread_attr_destroy(&own);
  }
  void put(std::function<void()> work) {
    const std::lock_guard lock(mutex_);
    if (capture_ && !capture_->ended) return capture_->put(this, std::move(work));
    queue_.push_back(std::move(work));
    changed_.notify_one();
  }
  std::shared_ptr<FakeCapture> capture() {
    const std::lock_guard lock(mutex_);
    if (capture_ && capture_->ended) capture_.reset();
    return capture_;
  }
  void set_capture(std::shared_ptr<FakeCapture> capture) {
    const std::lock_guard lock(mutex_);
    capture_ = std::move(capture);
  }
  void stop() { put(nullptr); }

 private:
  void run() {
    for (;;) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return !queue_.empty(); });
      const auto work = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      if (!work) break;
      work();
    }
    delete this;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;
  std::shared_ptr<FakeCapture> capture_;
};

// One record of an event in a stream: a waiter waits for the latest record at its time, whatever
// stream the event is recorded in later.
struct Record {
  std::mutex mutex;
  std::condition_variable changed;
  bool passed = false;
  Clock::time_point when{};

  void pass() {
    const std::lock_guard lock(mutex);
    passed = true;
    when = Clock::now();
    changed.notify_all();
  }
  void await() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return passed; });
  }
  bool has_passed() {
    const std::lock_guard lock(mutex);
    return passed;
  }
};

struct EventState {
  std::mutex mutex;
  std::shared_ptr<Record> latest;        // Null: it was never recorded.
  std::shared_ptr<FakeCapture> capture;  // It was last recorded in, with the stream and how much
  const void* stream = nullptr;          // that had got.
  std::size_t last = 0;
};

struct Event {
  unsigned long mark = kKnownEvent;
  std::shared_ptr<EventState> state = std::make_shared<EventState>();
};

struct Process {
  std::mutex mutex;
  std::map<Stream*, int> streams;                // All that there are, and their devices.
  std::map<int, Stream*> default_streams;        // By device.
  std::set<int> used;                            // Devices.
  std::map<const char*, std::size_t> allocated;  // Of the devices' memory.
  FakeCaptures captures;
};

Process& process() {
  static Process* one = new Process;  // Streams' threads may outlive main().
  return *one;
}

thread_local int current_device = 0;
thread_local int capture_mode = 0;
thread_local int last_error = 0;  // As cudaGetLastError has it.
std::atomic<int> broken_device{0};

bool forbidden(const char* call) {
  return process().captures.forbid(call, capture_mode == kCudaCaptureRelaxed);
}

Stream& stream_of(CudaStream handle) {
  if (handle) return *reinterpret_cast<Stream*>(handle);
  const std::lock_guard lock(process().mutex);
  Stream*& stream = process().default_streams[current_device];
  if (!stream) {
    stream = new Stream;
    process().streams[stream] = current_device;
  }
  return *stream;
}

Event* event_of(CudaEvent handle) {
  auto* event = reinterpret_cast<Event*>(handle);
  if (!event || event->mark != kKnownEvent) std::abort();  // Destroyed before, or never made.
  return event;
}

// A stream that waits for a captured event is captured, too; and joined, if it waits as the origin.
int join_capture(Stream& waiting, const EventState& event) {
  if (event.capture->ended) return kCapturedEvent;
  if (!waiting.capture()) waiting.set_capture(event.capture);
  event.capture->joined(&waiting, event.stream, event.last);
  return kCudaSuccess;
}

int number(const char* key, int otherwise) {
  const std::string text = injected("FAKE_CUDA", key);
  return text.empty() ? otherwise : std::atoi(text.c_str());
}

void run_and_wait(CudaStream stream, const std::function<void()>& work) {
  Record done;
  stream_of(stream).put([&] {
    work();
    done.pass();
  });
  done.await();
  const std::lock_guard lock(done.mutex);  // The other thread has left pass().
}

}  // namespace

namespace ddprun::test {

void enqueue(CudaStream stream, std::function<void()> work) {
  stream_of(stream).put(std::move(work));
}

int current_device() { return ::current_device; }

bool was_used(int device) {
  const std::lock_guard lock(process().mutex);
  return process().used.contains(device);
}

void break_devices(int status) { broken_device.store(status); }
void leave_error(int status) { last_error = status; }
int left_error() { return last_error; }

void begin_capture(CudaStream stream) {
  auto capture = std::make_shared<FakeCapture>(&stream_of(stream));
  process().captures.add(capture);
  stream_of(stream).set_capture(capture);
}

Graph end_capture(CudaStream stream) {
  const auto capture = stream_of(stream).capture();
  process().captures.remove(capture);
  capture->ended = true;
  stream_of(stream).set_capture(nullptr);
  Graph graph;
  graph.work = capture->take(graph.complaints);
  return graph;
}

bool is_captured(CudaStream stream) { return stream_of(stream).capture() != nullptr; }

bool is_devices(const void* address) {
  const std::lock_guard lock(process().mutex);
  auto above = process().allocated.upper_bound(static_cast<const char*>(address));
  if (above == process().allocated.begin()) return false;
  --above;
  return static_cast<const char*>(address) < above->first + above->second;
}

}  // namespace ddprun::test

extern "C" {

int cudaDriverGetVersion(int* version) {
  *version = number("driver", 13000);
  return kCudaSuccess;
}

int cudaRuntimeGetVersion(int* version) {
  *version = number("runtime", 13000);
  return kCudaSuccess;
}

int cudaGetDeviceCount(int* count) {
  *count = number("devices", 8);
  return number("status", kCudaSuccess);
}

int cudaSetDevice(int device) {
  if (device < 0 || device >= number("devices", 8)) return kInvalidDevice;
  current_device = device;
  const std::lock_guard lock(process().mutex);
  process().used.insert(device);
  return kCudaSuccess;
}

int cudaGetDevice(int* device) {
  *device = current_device;
  return kCudaSuccess;
}

int cudaDeviceSynchronize() {
  std::vector<std::shared_ptr<Record>> ends;
  {
    const std::lock_guard lock(process().mutex);
    for (const auto& [stream, device] : process().streams) {
      if (device != current_device) continue;
      ends.push_back(std::make_shared<Record>());
      stream->put([end = ends.back()] { end->pass(); });
    }
  }
  for (const auto& end : ends) end->await();
  return kCudaSuccess;
}

int cudaDeviceGetPCIBusId(char* text, int size, int device) {
  std::snprintf(text, static_cast<std::size_t>(size), "0000:%02x:00.0", device + 1);
  return kCudaSuccess;
}

const char* cudaGetErrorString(int status) {
  if (status == kInvalidDevice) return "invalid device ordinal";
  return status == 700 ? "an illegal memory access was encountered"
                       : "an error of the fake runtime";
}

int cudaGetLastError() { return std::exchange(last_error, kCudaSuccess); }
int cudaPeekAtLastError() { return last_error; }

int cudaMalloc(void** address, std::size_t bytes) {
  if (forbidden("cudaMalloc")) return kCaptureUnsupported;
  const std::size_t rounded = (bytes + 511) / 256 * 256;
  *address = std::aligned_alloc(256, rounded);
  const std::lock_guard lock(process().mutex);
  process().allocated[static_cast<char*>(*address)] = rounded;
  return kCudaSuccess;
}

int cudaFree(void* address) {
  if (forbidden("cudaFree")) return kCaptureUnsupported;
  {
    const std::lock_guard lock(process().mutex);
    if (address && process().allocated.erase(static_cast<char*>(address)) == 0) {
      return kInvalidValue;
    }
  }
  std::free(address);
  return kCudaSuccess;
}

// Between a device's arrays later, with the host's now: as the real one does with pageable memory.
int cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, int, CudaStream stream) {
  if (bytes == 0) return kCudaSuccess;
  if (std::to_string(bytes) == injected("FAKE_CUDA", "refuse_copy")) {
    return kInvalidValue;
  }
  const auto copy = [=] { std::memmove(to, from, bytes); };
  if (is_devices(to) && is_devices(from)) {
    stream_of(stream).put(copy);
  } else if (const auto capture = stream_of(stream).capture()) {
    capture->complain("cudaMemcpyAsync of the host's memory");
    return kCaptureUnsupported;
  } else {
    run_and_wait(stream, copy);
  }
  return kCudaSuccess;
}

int cudaMemsetAsync(void* to, int value, std::size_t bytes, CudaStream stream) {
  const std::chrono::milliseconds longer(number("memset_ms", 0));
  stream_of(stream).put([=] {
    std::promise<void>().get_future().wait_for(longer);
    std::memset(to, value, bytes);
  });
  return kCudaSuccess;
}

int cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return kCudaSuccess;
}

int cudaStreamCreateWithPriority(CudaStream* stream, unsigned, int) {
  auto* made = new Stream;
  *stream = reinterpret_cast<CudaStream>(made);
  const std::lock_guard lock(process().mutex);
  process().streams[made] = current_device;
  return kCudaSuccess;
}

int cudaStreamDestroy(CudaStream stream) {
  {
    const std::lock_guard lock(process().mutex);
    process().streams.erase(reinterpret_cast<Stream*>(stream));
  }
  stream_of(stream).stop();  // What is queued is still done.
  return kCudaSuccess;
}

int cudaStreamIsCapturing(CudaStream stream, int* status) {
  *status = stream_of(stream).capture() ? 1 : kCudaNotCaptured;
  return kCudaSuccess;
}

int cudaThreadExchangeStreamCaptureMode(int* mode) {
  std::swap(*mode, capture_mode);
  return kCudaSuccess;
}

int cudaStreamWaitEvent(CudaStream stream, CudaEvent event, unsigned) {
  const auto state = event_of(event)->state;
  const std::lock_guard lock(state->mutex);
  Stream& waiting = stream_of(stream);
  if (state->capture) return join_capture(waiting, *state);
  if (const auto capture = waiting.capture()) {
    capture->complain("a wait for what is not captured");
    return kCaptureIsolation;
  }
  if (state->latest) waiting.put([record = state->latest] { record->await(); });
  return kCudaSuccess;
}

int cudaEventCreateWithFlags(CudaEvent* event, unsigned) {
  *event = reinterpret_cast<CudaEvent>(new Event);
  return kCudaSuccess;
}

int cudaEventDestroy(CudaEvent event) {
  event_of(event)->mark = 0;
  delete reinterpret_cast<Event*>(event);
  return kCudaSuccess;
}

int cudaEventRecord(CudaEvent event, CudaStream stream) {
  if (const int broken = broken_device.load()) return last_error = broken;
  const auto state = event_of(event)->state;
  const std::lock_guard lock(state->mutex);
  state->capture = stream_of(stream).capture();
  if (state->capture) {
    state->stream = &stream_of(stream);
    state->last = state->capture->last_of(state->stream);
    return kCudaSuccess;
  }
  state->latest = std::make_shared<Record>();
  stream_of(stream).put([record = state->latest] { record->pass(); });
  return kCudaSuccess;
}

int cudaEventQuery(CudaEvent event) {
  const auto state = event_of(event)->state;
  const std::lock_guard lock(state->mutex);
  if (state->capture) {
    state->capture->complain("cudaEventQuery of a captured event");
    return kCapturedEvent;
  }
  if (forbidden("cudaEventQuery")) return kCaptureUnsupported;
  if (const int broken = broken_device.load()) return last_error = broken;
  if (!state->latest || state->latest->has_passed()) return kCudaSuccess;
  return last_error = kCudaNotReady;
}

int cudaEventElapsedTime(float* milliseconds, CudaEvent start, CudaEvent end) {
  if (cudaEventQuery(start) != kCudaSuccess || cudaEventQuery(end) != kCudaSuccess) {
    return kCudaNotReady;
  }
  const auto time = [](CudaEvent event) {
    const auto state = event_of(event)->state;
    const std::lock_guard lock(state->mutex);
    if (!state->latest) return Clock::time_point{};
    const std::lock_guard inner(state->latest->mutex);
    return state->latest->when;
  };
  *milliseconds = std::chrono::duration<float, std::milli>(time(end) - time(start)).count();
  return kCudaSuccess;
}
}
