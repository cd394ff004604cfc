#include "examples/train/checkpoint.h"

#include <sstream>
#include <stdexcept>

#include "ddprun/ddprun.h"

namespace examples {
namespace {

// Loads to `device`: the checkpoint may have been saved from another one.
torch::serialize::InputArchive open_archive(const std::string& path, const std::string& contents,
                                            torch::Device device) {
  std::istringstream in(contents);
  torch::serialize::InputArchive archive;
  try {
    archive.load_from(in, device);
  } catch (const c10::Error&) {
    throw std::runtime_error(path + " is not a checkpoint, or damaged; remove it to start afresh");
  }
  return archive;
}

// Into `state`; throws c10::Error if the archive holds something else.
void restore(torch::serialize::InputArchive& archive, const std::string& path, TrainState& state) {
  c10::IValue kind;
  archive.read("kind", kind);
  if (kind.toStringRef() != state.kind) {
    throw std::runtime_error(path + " belongs to a model with " + kind.toStringRef() +
                             ", this one has " + state.kind);
  }
  torch::serialize::InputArchive model;
  torch::serialize::InputArchive optimizer;
  archive.read("model", model);
  archive.read("optimizer", optimizer);
  state.model->load(model);
  state.optimizer->load(optimizer);
  c10::IValue epochs;
  archive.read("epochs_done", epochs);
  state.epochs_done = epochs.toInt();
}

}  // namespace

// The text that is sent begins with a letter for the result of rank 0.
std::optional<std::string> read_and_share(const std::string& path, ddprun::ProcessGroup& group) {
  std::string answer;
  if (group.rank() == 0) {
    try {
      const auto contents = ddprun::read_file(path);
      answer = contents ? "+" + *contents : "-";
    } catch (const std::runtime_error& e) {
      answer = std::string("!") + e.what();
    }
  }
  answer = ddprun::broadcast_bytes(group, answer, 0);
  if (answer[0] == '-') return std::nullopt;
  if (answer[0] == '!') throw std::runtime_error("rank 0: " + answer.substr(1));
  return answer.substr(1);
}

void save_checkpoint(const std::string& path, const TrainState& state) {
  torch::serialize::OutputArchive archive;
  torch::serialize::OutputArchive model;
  torch::serialize::OutputArchive optimizer;
  state.model->save(model);
  state.optimizer->save(optimizer);
  archive.write("model", model);
  archive.write("optimizer", optimizer);
  archive.write("epochs_done", c10::IValue(state.epochs_done));
  archive.write("kind", c10::IValue(state.kind));
  std::ostringstream out;
  archive.save_to(out);
  try {
    ddprun::replace_file(path, out.str());
  } catch (const std::runtime_error& e) {
    throw std::runtime_error(std::string("checkpoint of epoch ") +
                             std::to_string(state.epochs_done) + ": " + e.what() + "; " + path +
                             " is as it was");
  }
}

bool load_checkpoint(const std::string& path, ddprun::ProcessGroup& group, TrainState& state) {
  const auto contents = read_and_share(path, group);
  if (!contents) return false;
  auto archive = open_archive(path, *contents, ddprun::torch::device_of(group));
  try {
    restore(archive, path, state);
  } catch (const c10::Error&) {
    throw std::runtime_error(path +
                             " is not a checkpoint of this program; remove it to start afresh");
  }
  return true;
}

}  // namespace examples
