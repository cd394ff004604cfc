// A plain worker whose ranks save their shares in the memory folder every few steps, for
// tests/failures/memory_campaign.py. Its state after a step is a function of the step alone, so
// that what it restores can be checked to the last bit, with any number of ranks.
//
//   LOG        a file to which rank 0 appends "restored STEP" and "saved STEP"
//   STEPS, EVERY, STEP_MS, SIZE   steps in all, between two checkpoints, their time, elements

#include <poll.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "ddprun/checkpoint.h"
#include "ddprun/ddprun.h"

namespace {

int number(const char* name) { return std::atoi(std::getenv(name)); }

void advance(std::vector<double>& state, std::int64_t step) {
  for (std::size_t i = 0; i < state.size(); ++i) {
    state[i] = state[i] * 0.999 + static_cast<double>(step % 97) / static_cast<double>(i + 1);
  }
}

std::vector<double> state_after(std::int64_t steps, std::size_t size) {
  std::vector<double> state(size);
  for (std::int64_t step = 0; step < steps; ++step) advance(state, step);
  return state;
}

void note(int rank, const std::string& what, std::uint64_t value) {
  if (rank != 0) return;
  std::ofstream log(std::getenv("LOG"), std::ios::app);
  log << what << " " << value << std::endl;
}

}  // namespace

int main() {
  const auto size = static_cast<std::size_t>(number("SIZE"));
  ddprun::ProcessGroup group = ddprun::ProcessGroup::init();
  const int rank = group.rank();
  std::vector<double> state(size);
  std::int64_t step = 0;
  if (const auto path = ddprun::latest_checkpoint(group, {ddprun::in_memory()})) {
    const ddprun::Checkpoint checkpoint(*path);
    checkpoint.read("state", ddprun::buffer(state.data(), size));
    step = checkpoint.step();
    if (state != state_after(step, size)) {
      std::fprintf(stderr, "rank %d restored a wrong state of step %ld\n", rank,
                   static_cast<long>(step));
      return 3;
    }
  }
  note(rank, "restored", static_cast<std::uint64_t>(step));
  ddprun::CheckpointWriter writer(group, ddprun::in_memory());
  std::int64_t saving = -1;
  for (; step < number("STEPS");) {
    advance(state, step);
    group.barrier();
    ::poll(nullptr, 0, number("STEP_MS"));
    if (++step % number("EVERY") != 0) continue;
    const auto mine = ddprun::even_piece(group, "state", ddprun::buffer(state.data(), size));
    writer.save_async(step, {&mine, 1});
    if (saving >= 0)
      note(rank, "saved", static_cast<std::uint64_t>(saving));  // All have written it.
    saving = step;
  }
  writer.wait();
}
