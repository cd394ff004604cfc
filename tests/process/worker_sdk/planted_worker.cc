// A worker with planted times, for tests/failures/ledger_test.py and bench/ledger: planted_worker
// startup=MS steps=N outside=MS forward=MS backward=MS late=RANK:MS
//                  save=EVERY:MS state=FILE fail=RANK:STEP stall=RANK:STEP:MS load=RANK:EVERY:MS
//                  truth=FOLDER
// It sleeps at these points; `load` is a slow loader, before every so many steps. With `state` it
// goes on from the last step that was saved; `fail` kills itself in the first start only. With
// `truth` each process writes what it did and when, by its own clock, to FOLDER/RANK.START: lines
// "what step from_ns until_ns".

#include <ddprun/distributed_data_parallel.h>
#include <ddprun/expect_steps.h>
#include <ddprun/process_group.h>
#include <poll.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <map>
#include <string>
#include <vector>

namespace {

void rest(int ms) {
  if (ms > 0) ::poll(nullptr, 0, ms);
}

// The same for all processes of a machine.
long long now_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1'000'000'000LL + now.tv_nsec;
}

// What was done and when; only kept if a folder is given.
class Truth {
 public:
  void open(const std::string& folder, int rank, int start) {
    if (folder.empty()) return;
    const std::string name = std::to_string(rank) + "." + std::to_string(start);
    file_ = std::fopen((folder + "/" + name).c_str(), "w");
  }
  void done(const char* what, int step, long long from) {
    if (!file_) return;
    std::fprintf(file_, "%s %d %lld %lld\n", what, step, from, now_ns());
    std::fflush(file_);
  }
  void rests(const char* what, int step, int ms) {
    if (ms <= 0) return;
    const long long from = now_ns();
    rest(ms);
    done(what, step, from);
  }

 private:
  std::FILE* file_ = nullptr;
};

std::vector<int> numbers(const std::string& text) {
  std::vector<int> all;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find(':', at), text.size());
    all.push_back(std::atoi(text.substr(at, end - at).c_str()));
    at = end + 1;
  }
  all.resize(3);
  return all;
}

class Plan {
 public:
  Plan(int argc, char** argv) {
    for (int i = 1; i < argc; ++i) {
      const std::string word = argv[i];
      words_[word.substr(0, word.find('='))] = word.substr(word.find('=') + 1);
    }
  }
  std::string text(const char* name) const { return has(name) ? words_.at(name) : ""; }
  std::vector<int> list(const char* name) const { return numbers(text(name)); }
  int ms(const char* name) const { return list(name)[0]; }
  bool has(const char* name) const { return words_.contains(name); }

 private:
  std::map<std::string, std::string> words_;
};

int saved_step(const std::string& path) {
  std::FILE* file = std::fopen(path.c_str(), "r");
  int step = 0;
  if (file && std::fscanf(file, "%d", &step) != 1) step = 0;
  if (file) std::fclose(file);
  return step;
}

void save(ddprun::ProcessGroup& group, const Plan& plan, int step) {
  group.set_phase("checkpoint");
  rest(plan.list("save")[1]);
  if (group.rank() == 0) {
    std::FILE* file = std::fopen(plan.text("state").c_str(), "w");
    if (file) std::fprintf(file, "%d", step), std::fclose(file);
  }
  group.barrier();
  group.set_phase("");
}

}  // namespace

int main(int argc, char** argv) {
  const long long began = now_ns();
  const Plan plan(argc, argv);
  rest(plan.ms("startup"));
  auto group = ddprun::ProcessGroup::init();
  std::vector<float> weights(1000, 1);
  ddprun::DistributedDataParallel ddp(
      group,
      {{.name = "w", .value = ddprun::buffer(weights.data(), weights.size()), .shape = {1000}}});
  Truth truth;
  truth.open(plan.text("truth"), group.rank(), group.restart_count());
  const auto late = plan.list("late"), fail = plan.list("fail"), stall = plan.list("stall"),
             load = plan.list("load");
  const auto mine = [&](const char* name, int rank) {
    return plan.has(name) && group.rank() == rank;
  };
  const int first = saved_step(plan.text("state")), steps = plan.ms("steps");
  ddprun::expect_steps(group, steps - first);
  truth.done("startup", first, began);
  for (int step = first; step < steps; ++step) {
    const bool fails = group.restart_count() == 0 && step == fail[1];
    if (fails && mine("fail", fail[0])) truth.done("kill", step, now_ns()), std::raise(SIGKILL);
    truth.rests("outside", step, plan.ms("outside"));
    if (mine("stall", stall[0]) && step == stall[1]) truth.rests("outside", step, stall[2]);
    if (mine("load", load[0]) && step % load[1] == 0) truth.rests("outside", step, load[2]);
    ddp.begin_forward();
    truth.rests("forward", step, plan.ms("forward"));
    if (mine("late", late[0])) truth.rests("forward", step, late[1]);
    ddp.begin_backward();
    truth.rests("backward", step, plan.ms("backward"));
    truth.done("arrival", step, now_ns());
    ddp.mark_ready(0);
    ddp.finish_backward();
    const int every = plan.list("save")[0];
    const long long until = now_ns();
    if (every > 0 && (step + 1) % every == 0) {
      save(group, plan, step + 1);
      truth.done("checkpoint", step, until);
    }
  }
}
