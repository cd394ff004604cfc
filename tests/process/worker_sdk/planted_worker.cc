// A worker whose time is planted, for tests/failures/ledger_test.py and bench/ledger:
//   planted_worker startup=MS steps=N outside=MS forward=MS backward=MS late=RANK:MS
//                  save=EVERY:MS state=FILE fail=RANK:STEP stall=RANK:STEP:MS
// It sleeps where it says. With `state` it goes on from the last step that was saved; `fail` kills
// itself in the first start only.

#include <ddprun/distributed_data_parallel.h>
#include <ddprun/process_group.h>
#include <poll.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

namespace {

void rest(int ms) {
  if (ms > 0) ::poll(nullptr, 0, ms);
}

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
  const Plan plan(argc, argv);
  rest(plan.ms("startup"));
  auto group = ddprun::ProcessGroup::init();
  std::vector<float> weights(1000, 1);
  ddprun::DistributedDataParallel ddp(
      group,
      {{.name = "w", .value = ddprun::buffer(weights.data(), weights.size()), .shape = {1000}}});
  const auto late = plan.list("late"), fail = plan.list("fail"), stall = plan.list("stall");
  for (int step = saved_step(plan.text("state")); step < plan.ms("steps"); ++step) {
    const bool fails = plan.has("fail") && group.restart_count() == 0 && step == fail[1];
    if (fails && group.rank() == fail[0]) std::raise(SIGKILL);
    rest(plan.ms("outside"));
    if (plan.has("stall") && group.rank() == stall[0] && step == stall[1]) rest(stall[2]);
    ddp.begin_forward();
    rest(plan.ms("forward"));
    if (plan.has("late") && group.rank() == late[0]) rest(late[1]);
    ddp.begin_backward();
    rest(plan.ms("backward"));
    ddp.mark_ready(0);
    ddp.finish_backward();
    const int every = plan.list("save")[0];
    if (every > 0 && (step + 1) % every == 0) save(group, plan, step + 1);
  }
}
