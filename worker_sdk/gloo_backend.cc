#include "worker_sdk/gloo_backend.h"

#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/rendezvous/context.h>
#include <gloo/transport/tcp/device.h>

#include "worker_sdk/gloo_store.h"
#include "worker_sdk/reduce.h"
#include "worker_sdk/retry.h"
#include "worker_sdk/sigpipe_guard.h"

namespace ddprun::worker_sdk {
namespace {

using std::chrono::milliseconds;

// How long the survivors of a failure wait for each other's statements.
constexpr milliseconds kDiagnosisPatience{1000};

milliseconds left_until(Clock::time_point deadline) {
  const auto left = std::chrono::duration_cast<milliseconds>(deadline - Clock::now());
  return std::max(left, milliseconds(1));
}

// FNV-1a: stable between builds, unlike std::hash.
std::uint32_t tag_of(std::initializer_list<std::uint64_t> fields) {
  std::uint32_t hash = 2166136261u;
  for (std::uint64_t field : fields) {
    for (int i = 0; i < 8; ++i, field >>= 8) hash = (hash ^ (field & 0xff)) * 16777619u;
  }
  return hash;
}

std::uint32_t tag_of(const Call& call) {
  return tag_of({static_cast<std::uint64_t>(call.what.kind),
                 static_cast<std::uint64_t>(call.what.type),
                 static_cast<std::uint64_t>(call.what.op),
                 static_cast<std::uint64_t>(call.what.rank), call.what.count, call.number});
}

// Messages between two ranks live in a part of Gloo's slots that no collective of its own uses.
std::uint64_t slot_of(const Call& call, int from, int to, std::uint32_t number) {
  constexpr std::uint64_t kPointToPoint = 0x70;
  const std::uint32_t tag =
      tag_of({static_cast<std::uint64_t>(from), static_cast<std::uint64_t>(to), number,
              static_cast<std::uint64_t>(call.what.type), call.what.count});
  return kPointToPoint << 56 | std::uint64_t{tag} << 24;
}

// Gloo's options only want to know the size of an element.
template <class Options>
void set_buffers(Options& options, DataType type, void* in, std::size_t in_count, void* out,
                 std::size_t out_count) {
  const auto set = [&]<class T>(T) {
    if (in) options.setInput(static_cast<T*>(in), in_count);
    if (out) options.setOutput(static_cast<T*>(out), out_count);
  };
  switch (size_of(type)) {
    case 1: return set(std::uint8_t{});
    case 2: return set(std::uint16_t{});
    case 4: return set(std::uint32_t{});
    default: return set(std::uint64_t{});
  }
}

bool is_half(DataType type) { return type == DataType::f16 || type == DataType::bf16; }

}  // namespace

GlooBackend::GlooBackend(std::shared_ptr<const Roster> roster, const GlooOptions& options)
    : roster_(std::move(roster)),
      reopen_store_(options.reopen_store),
      prefix_(options.prefix),
      sent_(roster_->hosts.size()),
      received_(roster_->hosts.size()) {
  const Error::Where where{.rank = roster_->rank,
                           .host = roster_->hosts[static_cast<std::size_t>(roster_->rank)],
                           .operation = "connecting to the peers"};
  const SigpipeGuard guard;  // For Gloo's thread, too.
  try {
    connect(options);
  } catch (const gloo::Exception& error) {
    throw Error(ErrorKind::unreachable, where, error.what());
  } catch (const std::system_error&) {
    throw;
  } catch (const std::exception& error) {  // Gloo reports bad addresses by its assertions.
    throw Error(ErrorKind::unreachable, where, error.what());
  }
}

GlooBackend::~GlooBackend() {
  const SigpipeGuard guard;
  context_.reset();
  close_gently(connections_);
}

void GlooBackend::connect(const GlooOptions& options) {
  gloo::transport::tcp::attr attributes;
  attributes.hostname = options.address;
  attributes.iface = options.interface;
  attributes.ai_family = AF_UNSPEC;
  auto device = gloo::transport::tcp::CreateDevice(attributes);
  auto context = std::make_shared<gloo::rendezvous::Context>(roster_->rank, roster_->size());
  context->setTimeout(left_until(options.deadline));
  const auto mesh_keys = with_prefix(*options.store, prefix_ + "/mesh");
  GlooStore store(*mesh_keys, options.deadline);
  context->connectFullMesh(store, device);
  context_ = context;
  connections_ = find_connections(*context_);
}

void GlooBackend::abort() noexcept {
  aborted_.store(true);
  hang_up(connections_);
}

template <class Operation>
void GlooBackend::guarded(const Call& call, Operation operation) {
  if (aborted_.load()) fail(call, {});
  const SigpipeGuard guard;
  try {
    operation();
  } catch (const gloo::Exception& error) {
    fail(call, error.what());
  }
}

Statement GlooBackend::statement(const Call& call, const std::string& what_gloo_said) const {
  Statement mine{.what = call.what, .number = call.number};
  if (aborted_.load()) {
    mine.cause = Cause::kAborted;
  } else if (Clock::now() >= call.deadline ||
             what_gloo_said.find("imed out") != std::string::npos) {
    mine.cause = Cause::kTimedOut;
  }
  for (int r = 0; r < roster_->size(); ++r) {
    const std::string& address = connections_[static_cast<std::size_t>(r)].address;
    if (!address.empty() && what_gloo_said.find(address) != std::string::npos) mine.suspect = r;
  }
  return mine;
}

void GlooBackend::fail(const Call& call, const std::string& what_gloo_said) {
  const Statement mine = statement(call, what_gloo_said);
  hang_up(connections_);
  const Verdict verdict = ask_the_others(mine);
  if (mine.cause == Cause::kAborted) {
    throw failure(*roster_, call, ErrorKind::aborted, -1, "this rank called abort()");
  }
  throw failure(*roster_, call, verdict.kind, verdict.peer, verdict.text);
}

Verdict GlooBackend::ask_the_others(const Statement& mine) {
  std::map<int, Statement> others;
  const auto key = [](int rank) { return "failed/" + std::to_string(rank); };
  try {
    const auto whole_store = reopen_store_ ? reopen_store_() : nullptr;
    if (whole_store) {
      const auto store = with_prefix(*whole_store, prefix_);
      store->set(key(roster_->rank), encode(mine));
      // An aborting rank has nothing to ask; its peers do.
      const auto patience = mine.cause == Cause::kAborted ? milliseconds(0) : kDiagnosisPatience;
      retry_until(Clock::now() + patience, [&] {
        for (int r = 0; r < roster_->size(); ++r) {
          if (r == roster_->rank || others.contains(r) || !store->check({key(r)})) continue;
          if (const auto s = decode_statement(store->get(key(r), kDiagnosisPatience)))
            others[r] = *s;
        }
        const auto all = static_cast<std::size_t>(roster_->size()) - 1;
        const bool only_the_suspect =
            mine.suspect >= 0 && others.size() + 1 == all && !others.contains(mine.suspect);
        return others.size() == all || only_the_suspect;
      });
    }
  } catch (const Error&) {
    // The store is as dead as the peer; what this rank saw must do.
    if (others.empty() && mine.suspect >= 0) {
      return {mine.cause == Cause::kTimedOut ? ErrorKind::timed_out : ErrorKind::peer_lost,
              mine.suspect, "lost the connection to " + roster_->name(mine.suspect)};
    }
  }
  return diagnose(*roster_, mine, others);
}

void GlooBackend::all_reduce(const Call& call, Buffer inout) {
  guarded(call, [&] {
    if (inout.count == 0) return;
    const ReduceOp op = call.what.op;
    const bool divide_first = op == ReduceOp::avg && is_half(inout.type);
    if (divide_first) divide(inout.type, inout.data, inout.count, roster_->size());
    gloo::AllreduceOptions options(context_);
    set_buffers(options, inout.type, nullptr, 0, inout.data, inout.count);
    const ReduceOp step = op == ReduceOp::avg ? ReduceOp::sum : op;
    options.setReduceFunction(
        [type = inout.type, step](void* out, const void* a, const void* b, std::size_t n) {
          const void* arrays[] = {a, b};
          reduce(type, step, out, {arrays, 2}, n);
        });
    options.setTag(tag_of(call));
    options.setTimeout(left_until(call.deadline));
    gloo::allreduce(options);
    if (op == ReduceOp::avg && !divide_first) {
      divide(inout.type, inout.data, inout.count, roster_->size());
    }
  });
}

void GlooBackend::broadcast(const Call& call, Buffer inout) {
  guarded(call, [&] {
    if (inout.count == 0) return;
    gloo::BroadcastOptions options(context_);
    set_buffers(options, inout.type, nullptr, 0, inout.data, inout.count);
    options.setRoot(call.what.rank);
    options.setTag(tag_of(call));
    options.setTimeout(left_until(call.deadline));
    gloo::broadcast(options);
  });
}

void GlooBackend::all_gather(const Call& call, Buffer in, Buffer out) {
  guarded(call, [&] {
    if (in.count == 0) return;
    gloo::AllgatherOptions options(context_);
    set_buffers(options, in.type, in.data, in.count, out.data, out.count);
    options.setTag(tag_of(call));
    options.setTimeout(left_until(call.deadline));
    gloo::allgather(options);
  });
}

void GlooBackend::barrier(const Call& call) {
  guarded(call, [&] {
    gloo::BarrierOptions options(context_);
    options.setTag(tag_of(call));
    options.setTimeout(left_until(call.deadline));
    gloo::barrier(options);
  });
}

void GlooBackend::send(const Call& call, Buffer in) {
  guarded(call, [&] {
    const int to = call.what.rank;
    const std::uint32_t number = sent_[static_cast<std::size_t>(to)]++;
    auto buffer = context_->createUnboundBuffer(in.data, in.bytes());
    buffer->send(to, slot_of(call, roster_->rank, to, number));
    if (!buffer->waitSend(left_until(call.deadline))) throw gloo::IoException("send was aborted");
  });
}

void GlooBackend::recv(const Call& call, Buffer out) {
  guarded(call, [&] {
    const int from = call.what.rank;
    const std::uint32_t number = received_[static_cast<std::size_t>(from)]++;
    auto buffer = context_->createUnboundBuffer(out.data, out.bytes());
    buffer->recv(from, slot_of(call, from, roster_->rank, number));
    if (!buffer->waitRecv(left_until(call.deadline))) throw gloo::IoException("recv was aborted");
  });
}

std::shared_ptr<void> GlooBackend::allocate(const Call& call, std::size_t bytes) {
  if (aborted_.load()) fail(call, {});
  return allocate_plain(bytes);
}

}  // namespace ddprun::worker_sdk
