#include "worker_sdk/join/nccl_join.h"

#include <algorithm>
#include <cstring>

#include "worker_sdk/nccl/nccl_backend.h"
#include "worker_sdk/nccl/nccl_preflight.h"
#include "worker_sdk/store/tcp_store.h"

namespace ddprun::worker_sdk {
namespace {

// A store that does not answer within this time cannot help to explain a failure.
constexpr std::chrono::milliseconds kReopenTimeout{500};

}  // namespace

std::function<std::shared_ptr<Store>()> reopening(const Rendezvous& at,
                                                  std::shared_ptr<Store> given) {
  if (at.kind == Rendezvous::Kind::kGiven) return [given] { return given; };
  if (at.kind == Rendezvous::Kind::kFile) return [at] { return open_file_store(at.path); };
  return [at] {
    return connect_tcp_store({.host = at.host,
                              .port = at.port,
                              .connect_timeout = kReopenTimeout,
                              .reply_timeout = kReopenTimeout,
                              .fence = nullptr});
  };
}

namespace {

using std::chrono::milliseconds;

constexpr int kAttempts = 3;
constexpr milliseconds kAttemptMax{60000};  // Plus kAttemptPerRank per rank.
constexpr milliseconds kAttemptPerRank{50};
constexpr char kGo[] = "go";
constexpr char kAgain[] = "again";
constexpr char kFenced[] = "the round is over";
constexpr char kNoEnd[] = "NCCL's bootstrap does not end";  // Caused by another rank.

class NcclJoiner {
 public:
  NcclJoiner(const NcclJoinOptions& options, const GlooBackend* gloo) : o_(options), gloo_(gloo) {}

  std::unique_ptr<NcclCommunicator> run() {
    compare();
    if (auto comm = shrink_parent()) return comm;
    for (int attempt = 1;; ++attempt) {
      auto [comm, error] = try_once(attempt, end_of_attempt());
      if (agree(attempt, error)) return std::move(comm);
      if (comm) comm->abort(kAbortPatience);
    }
  }

 private:
  int size() const { return o_.roster->size(); }
  int rank() const { return o_.roster->rank; }
  int lost_peer() const { return gloo_ ? gloo_->first_lost() : -1; }
  milliseconds left() const { return left_until(o_.deadline); }
  bool is_fenced() const { return o_.fence && o_.fence->is_raised(); }

  [[noreturn]] void fail(ErrorKind kind, int peer, const std::string& text) const {
    throw Error(kind, {.operation = "joining the job", .peer = peer}, text);
  }

  GpuFacts read_surroundings();
  void compare();
  std::vector<NcclUniqueId> exchange_ids(int attempt);
  std::pair<std::unique_ptr<NcclCommunicator>, std::string> try_once(int attempt,
                                                                     Clock::time_point until);
  bool agree(int attempt, const std::string& my_error);
  NcclCommOptions options() const;
  Clock::time_point end_of_attempt() const;
  std::unique_ptr<NcclCommunicator> shrink_parent();

  const NcclJoinOptions& o_;
  const GlooBackend* const gloo_;
  std::shared_ptr<const GpuRuntime> gpu_;
  int device_ = 0;
};

GpuFacts NcclJoiner::read_surroundings() {
  GpuFacts facts;
  try {
    gpu_ = load_gpu_runtime();
  } catch (const Error& error) {
    facts.error = error.text();
    return facts;
  }
  device_ = o_.request.device;
  if (device_ < 0) device_ = gpu_->devices == 1 ? 0 : o_.identity.local_rank;
  facts.nccl_version = gpu_->nccl_version;
  facts.device = device_;
  facts.may_share = o_.request.may_share;
  char bus_id[32] = {};
  if (device_ >= gpu_->devices) {
    facts.error = "it requests GPU " + std::to_string(device_) + ", but sees " +
                  std::to_string(gpu_->devices) + " (CUDA_VISIBLE_DEVICES?)";
  } else if (const int status = gpu_->cuda.bus_id(bus_id, sizeof bus_id - 1, device_);
             status != kCudaSuccess) {
    facts.error = std::string("its GPU has no bus id: ") + gpu_->cuda.error_string(status);
  }
  facts.bus_id = bus_id;
  return facts;
}

void NcclJoiner::compare() {
  const GpuFacts mine = read_surroundings();
  if (!o_.meeting) {
    if (!mine.error.empty()) fail(ErrorKind::unsupported, -1, mine.error);
    return;
  }
  o_.meeting->hold("nccl", encode(mine), [this](const std::vector<std::string>& statements) {
    std::vector<GpuFacts> all;
    bool able = true;
    for (const std::string& text : statements) {
      const auto facts = decode_gpu_facts(text);
      const auto r = static_cast<int>(all.size());
      if (!facts)
        fail(ErrorKind::mismatch, r,
             "rank " + std::to_string(r) + " is of another version: " + facts.error().context);
      able = able && facts->error.empty();
      all.push_back(*facts);
    }
    const auto wrong = objection(all, o_.roster->hosts, o_.domains);
    if (wrong)
      fail(able ? ErrorKind::mismatch : ErrorKind::unsupported, wrong->culprit, wrong->text);
    return std::string();
  });
}

// Creates a fresh id per attempt and root: an id is valid for one communicator.
std::vector<NcclUniqueId> NcclJoiner::exchange_ids(int attempt) {
  const int roots = gpu_->nccl.init_scalable ? roots_for(size(), o_.request.ranks_per_root) : 1;
  const auto key = [&](int root) {
    return "nccl/id/" + std::to_string(attempt) + "/" + std::to_string(root);
  };
  const int mine = root_of(rank(), size(), roots);
  std::vector<NcclUniqueId> ids(static_cast<std::size_t>(roots));
  if (mine >= 0) {
    NcclUniqueId& id = ids[static_cast<std::size_t>(mine)];
    const int status = gpu_->nccl.unique_id(&id);
    std::string text = "-" + std::string(gpu_->nccl.error_string(status));
    if (status == kNcclSuccess) text = to_hex({id.internal, sizeof id.internal});
    if (o_.keys) o_.keys->set(key(mine), text);
    if (status != kNcclSuccess && !o_.keys) fail(ErrorKind::system, rank(), text.substr(1));
  }
  for (int r = 0; o_.keys && r < roots; ++r) {
    const std::string text = o_.keys->get(key(r), left());
    const auto bytes = from_hex(text);
    if (!bytes || bytes->size() != sizeof(NcclUniqueId)) {
      throw Error(ErrorKind::system, {},
                  "root " + std::to_string(r) + " has no unique id: " + text);
    }
    std::memcpy(&ids[static_cast<std::size_t>(r)], bytes->data(), bytes->size());
  }
  return ids;
}

Clock::time_point NcclJoiner::end_of_attempt() const {
  const auto half = (o_.deadline - Clock::now()) / 2;
  return Clock::now() + std::min<Clock::duration>(half, kAttemptMax + kAttemptPerRank * size());
}

NcclCommOptions NcclJoiner::options() const {
  NcclCommOptions options;
  options.device = device_;
  options.rank = rank();
  options.size = size();
  options.max_ctas = o_.request.max_ctas;
  options.may_shrink = o_.request.may_shrink;
  options.name = "ddprun " + o_.identity.run_id + "." + std::to_string(o_.identity.restart_count);
  return options;
}

// nullptr: all ranks join anew.
std::unique_ptr<NcclCommunicator> NcclJoiner::shrink_parent() {
  if (!o_.meeting || o_.excluded.empty()) return nullptr;
  const auto all = [](const std::vector<std::string>& statements) -> std::string {
    const bool well = std::all_of(statements.begin(), statements.end(),
                                  [](const auto& text) { return text == kGo; });
    return well ? kGo : kAgain;
  };
  if (o_.meeting->hold("nccl/shrink", o_.parent && o_.parent->is_revoked() ? kGo : kAgain, all) !=
      kGo)
    return nullptr;
  const Clock::time_point until = end_of_attempt();
  auto [comm, error] = o_.parent->shrink(o_.excluded, options(),
                                         [&] { return lost_peer() >= 0 || Clock::now() >= until; });
  const bool well = error.empty() && lost_peer() < 0;
  if (o_.meeting->hold("nccl/shrunk", well ? kGo : kAgain, all) == kGo) return std::move(comm);
  if (comm) comm->abort(kAbortPatience);
  return nullptr;
}

// The communicator, or why there is none.
std::pair<std::unique_ptr<NcclCommunicator>, std::string> NcclJoiner::try_once(
    int attempt, Clock::time_point until) {
  NcclCommOptions options = this->options();
  try {
    options.ids = exchange_ids(attempt);
  } catch (const Error& error) {
    return {nullptr, error.text()};
  }
  auto comm = std::make_unique<NcclCommunicator>(gpu_, std::move(options));
  int lost = -1;
  const int status = comm->settle([&] {
    lost = lost_peer();
    return lost >= 0 || is_fenced() || Clock::now() >= until;
  });
  if (is_fenced()) fail(ErrorKind::membership_changed, -1, kFenced);
  if (status == kNcclSuccess) return {std::move(comm), ""};
  std::string text = "NCCL says: " + comm->explain(status);
  if (status == kNcclInProgress) text = kNoEnd;
  if (lost >= 0) text = "lost " + o_.roster->name(lost);
  return {std::move(comm), text};
}

// True: all have joined. False: all try again.
bool NcclJoiner::agree(int attempt, const std::string& my_error) {
  if (!o_.meeting) {
    if (my_error.empty()) return true;
    fail(ErrorKind::system, -1, my_error);
  }
  const auto decide = [&](const std::vector<std::string>& errors) -> std::string {
    const bool well = std::all_of(errors.begin(), errors.end(),
                                  [](const std::string& error) { return error.empty(); });
    if (well) return kGo;
    if (attempt < kAttempts && lost_peer() < 0) return kAgain;
    const std::string tried = ", after " + std::to_string(attempt) + " attempt(s)";
    for (int r = 0; r < size(); ++r) {
      const std::string& error = errors[static_cast<std::size_t>(r)];
      if (error.empty() || error == kNoEnd) continue;
      fail(ErrorKind::unreachable, r,
           o_.roster->name(r) + " cannot join NCCL's communicator" + tried + ": " + error);
    }
    fail(ErrorKind::unreachable, -1,
         kNoEnd + tried + "; do all ranks use the right network (NCCL_SOCKET_IFNAME)?");
  };
  return o_.meeting->hold("nccl/joined/" + std::to_string(attempt), my_error, decide) == kGo;
}

}  // namespace

std::unique_ptr<DeviceBackend> join_nccl(const NcclJoinOptions& options,
                                         std::unique_ptr<GlooBackend> gloo) {
  auto comm = NcclJoiner(options, gloo.get()).run();
  if (options.parent) options.parent->abort(kAbortPatience);
  return std::make_unique<NcclBackend>(
      options.roster, std::move(comm), std::move(gloo), options.siblings,
      NcclWindowOptions{options.request.windows, options.request.verbose});
}

}  // namespace ddprun::worker_sdk
