#include "examples/checkpoint.h"

#include <exception>
#include <optional>
#include <sstream>
#include <stdexcept>

#include "examples/atomic_file.h"

namespace examples {
namespace {

constexpr std::int64_t kAbsent = -1;
constexpr std::int64_t kUnreadable = -2;

// Every rank gets the contents that rank 0 read, or none; if rank 0 could not read, all throw.
std::optional<std::string> read_and_share(const std::string& path, ddprun::ProcessGroup& group) {
  std::optional<std::string> contents;
  std::exception_ptr error;
  if (group.rank() == 0) {
    try {
      contents = read_file(path);
    } catch (...) {
      error = std::current_exception();
    }
  }
  std::int64_t size = kAbsent;
  if (contents) size = static_cast<std::int64_t>(contents->size());
  if (error) size = kUnreadable;
  group.broadcast(ddprun::buffer(&size, 1), 0);
  if (error) std::rethrow_exception(error);
  if (size == kUnreadable) throw std::runtime_error("rank 0 cannot read " + path);
  if (size == kAbsent) return std::nullopt;
  if (!contents) contents.emplace();
  contents->resize(static_cast<std::size_t>(size));
  group.broadcast(
      ddprun::buffer(reinterpret_cast<std::uint8_t*>(contents->data()), contents->size()), 0);
  return contents;
}

torch::serialize::InputArchive open_archive(const std::string& path, const std::string& contents) {
  std::istringstream in(contents);
  torch::serialize::InputArchive archive;
  try {
    archive.load_from(in);
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
    replace_file(path, out.str());
  } catch (const std::runtime_error& e) {
    throw std::runtime_error(std::string("checkpoint of epoch ") +
                             std::to_string(state.epochs_done) + ": " + e.what() + "; " + path +
                             " is as it was");
  }
}

bool load_checkpoint(const std::string& path, ddprun::ProcessGroup& group, TrainState& state) {
  const auto contents = read_and_share(path, group);
  if (!contents) return false;
  auto archive = open_archive(path, *contents);
  try {
    restore(archive, path, state);
  } catch (const c10::Error&) {
    throw std::runtime_error(path +
                             " is not a checkpoint of this program; remove it to start afresh");
  }
  return true;
}

}  // namespace examples
