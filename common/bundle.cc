#include "common/bundle.h"

#include <algorithm>
#include <cctype>
#include <cinttypes>
#include <cstdio>
#include <utility>

#include "common/archive/json.h"
#include "common/checksum.h"

namespace ddprun {
namespace {

constexpr std::string_view kMagic = "ddprunB1";
constexpr archive::Bounds kHeadLimits{
    .bytes = kBundleHeadMax, .text_bytes = 64 * 1024, .items = 100'000, .least = -1};

Failure refused(const std::string& why) { return {Errc::kBadMessage, why}; }

std::string number_bytes(std::uint64_t number) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>(number >> (8 * i) & 0xff);
  return bytes;
}

std::uint64_t number_at(std::string_view bytes) {
  std::uint64_t number = 0;
  for (std::size_t i = 8; i-- > 0;) number = number << 8 | static_cast<unsigned char>(bytes[i]);
  return number;
}

std::string one_line(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

// As a part of the name of a file.
std::string plain_name(std::string text) {
  for (char& letter : text) {
    const bool is_plain = std::isalnum(static_cast<unsigned char>(letter)) || letter == '-' ||
                          letter == '_' || letter == '.';
    if (!is_plain) letter = '_';
  }
  return text;
}

// " (hash 4be2...)"
std::string with_hash(const std::string& hash) {
  return hash.empty() ? "" : " (hash " + hash + ")";
}

}  // namespace

void fields(auto& a, archive::Is<Bundle::Item> auto& m) { a("name", m.name), a("bytes", m.bytes); }

void fields(auto& a, archive::Is<Bundle> auto& m) {
  a.enumerator("cause", m.cause, Bundle::Cause::kRequest);
  a("why", m.why), a("who", m.who), a("work", m.work), a("step", m.step), a("shard", m.shard);
  a("shards", m.shards), a("world_size", m.world_size), a("hash", m.hash), a("skip", m.skip);
  a("run_id", m.run_id), a("release", m.release), a("system", m.system);
  a("command", m.command), a("folder", m.folder), a("environment", m.environment);
  a("items", m.items);
}

void fields(auto& a, archive::Is<Walk> auto& m) {
  a.enumerator("state", m.state, Walk::State::kDiffers);
  a("step", m.step), a("shard", m.shard), a("work", m.work), a("found", m.found);
  a("not_finite", m.not_finite);
}

bool is_of_results(std::string_view name) {
  constexpr std::string_view kPrefixes[] = {"OMP_",  "MKL_",    "OPENBLAS_", "KMP_",       "GOMP_",
                                            "ATEN_", "TORCH_",  "PYTORCH_",  "CUBLAS",     "CUDNN_",
                                            "DNNL_", "ONEDNN_", "PYTHON",    "NVIDIA_TF32"};
  return std::any_of(std::begin(kPrefixes), std::end(kPrefixes),
                     [&](std::string_view prefix) { return name.starts_with(prefix); });
}

std::string hash_text(std::uint64_t hash) {
  char text[24];
  std::snprintf(text, sizeof text, "%016" PRIx64, hash);
  return text;
}

std::string failed_prefix(std::string run_id) { return plain_name(std::move(run_id)) + "-step-"; }
std::string regular_prefix(std::string run_id) {
  return plain_name(std::move(run_id)) + "-regular-";
}

std::string regular_name(const std::string& run_id, std::int64_t step) {
  char number[24];
  std::snprintf(number, sizeof number, "%010" PRId64, step);
  return regular_prefix(run_id) + number + ".bundle";
}

// The one whose absence leaves the gap that is smallest beside its distance from the last step.
std::size_t most_superfluous(const std::vector<std::int64_t>& steps) {
  std::size_t result = 1;
  double least = 0;
  for (std::size_t i = 1; i + 1 < steps.size(); ++i) {
    const auto gap = static_cast<double>(steps[i + 1] - steps[i - 1]);
    const double share =
        gap / static_cast<double>(std::max<std::int64_t>(steps.back() - steps[i], 1));
    if (i > 1 && share >= least) continue;
    least = share;
    result = i;
  }
  return result;
}

std::string encode_walk(Walk walk) {
  for (std::string* text : {&walk.work, &walk.found}) {
    *text = one_line(text->substr(0, kHeadLimits.text_bytes / 2));
  }
  return archive::text_of(archive::tree_of(walk, kHeadLimits));
}

Result<Walk> decode_walk(std::string_view text) {
  if (text.size() > kWalkMax) return refused("it is too long");
  return archive::read_message<Walk>(text, "what the job has found", kHeadLimits);
}

std::uint64_t Bundle::item_bytes() const {
  std::uint64_t all = 0;
  for (const Item& item : items) all += item.bytes;
  return all;
}

Result<std::string> encode_start(Bundle bundle) {
  for (std::string* text : {&bundle.why, &bundle.work}) {
    *text = one_line(text->substr(0, kHeadLimits.text_bytes / 2));
  }
  std::string head = archive::text_of(archive::tree_of(bundle, kHeadLimits));
  if (head.size() > kBundleHeadMax) {
    bundle.environment.clear();
    head = archive::text_of(archive::tree_of(bundle, kHeadLimits));
  }
  if (head.size() > kBundleHeadMax) {
    return refused("the names of what the job keeps, and the command, are too long for a bundle");
  }
  std::string start = std::string(kMagic) + number_bytes(head.size()) + head;
  // What no reader takes is refused here, while the run can still warn.
  const auto read = decode_start(start, start.size() + bundle.item_bytes() + kChecksumBytes);
  if (!read) return refused("the bundle could not be read: " + read.error().context);
  return start;
}

Result<BundleStart> decode_start(std::string_view start, std::uint64_t file_bytes) {
  if (start.size() < kBundleStartBytes || !start.starts_with(kMagic)) {
    return refused("it is no bundle of this version of ddprun");
  }
  const std::uint64_t bytes = number_at(start.substr(kMagic.size()));
  if (bytes > kBundleHeadMax || bytes > start.size() - kBundleStartBytes) {
    return refused("its head is cut off, or longer than 1 MiB");
  }
  auto bundle = archive::read_message<Bundle>(
      start.substr(kBundleStartBytes, static_cast<std::size_t>(bytes)), "a bundle", kHeadLimits);
  if (!bundle) return bundle.error();
  BundleStart result{std::move(*bundle), kBundleStartBytes + bytes};
  std::uint64_t left = file_bytes - std::min(file_bytes, result.items_at + kChecksumBytes);
  for (const Bundle::Item& item : result.bundle.items) {
    if (item.bytes > left) return refused("it is cut off in \"" + item.name + "\"");
    left -= item.bytes;
  }
  if (left != 0 || file_bytes < result.items_at + kChecksumBytes) {
    return refused("it has another size than what is in it");
  }
  const Bundle& found = result.bundle;
  const bool is_hash = found.hash.empty() || found.hash.size() == 16;
  if (found.step < 0 || found.shard < -1 || found.shards < 0 || !is_hash) {
    return refused("its step, shard or hash cannot be");
  }
  if (found.shards > 0 && found.shard >= found.shards) {
    return refused("it has shard " + std::to_string(found.shard) + " of " +
                   std::to_string(found.shards));
  }
  return result;
}

ReplayVerdict compare(const Bundle& bundle, const Replayed& replayed) {
  using Cause = Bundle::Cause;
  const std::string found = one_line(replayed.found);
  const bool same_hash = bundle.hash.empty() || bundle.hash == replayed.hash;
  const bool is_same = bundle.cause == Cause::kCrash     ? replayed.crashed && bundle.why == found
                       : bundle.cause == Cause::kFailure ? bundle.why == found && same_hash
                                                         : found.empty() && same_hash;
  const std::string here = (found.empty() ? "no failure" : found) + with_hash(replayed.hash);
  const std::string there = bundle.why + with_hash(bundle.hash);
  std::string text = "replay of " + replayed.work + ": " + here;
  if (is_same && bundle.cause == Cause::kRequest && bundle.hash.empty()) {
    return {true, text + "; the bundle has no hash to compare with (" + bundle.why + ")"};
  }
  if (is_same) return {true, text + ", the same as in the run, on " + bundle.who};
  text += "; in the run, on " + bundle.who + ": " + there + ". ";
  if (found.empty() && bundle.cause != Cause::kRequest) {
    text += std::string(bundle.shard >= 0 ? "The shard alone" : "The step") +
            " does not fail here: unless the program or its data were changed, look at that "
            "machine, or at what the program remembers from step to step without job.keep()";
  } else {
    text +=
        "They differ: in the machine, in libraries, threads or the program, or because the "
        "arithmetic is not deterministic; replay it again, and on another machine";
  }
  return {false, text};
}

}  // namespace ddprun
