// What of train needs no libtorch: the IDX reader, options, the bar, reports.

#include <fcntl.h>
#include <zlib.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "examples/idx.h"
#include "examples/train/event_file.h"
#include "examples/train/progress.h"
#include "examples/train/report.h"
#include "examples/train/schedule.h"
#include "examples/train/train_options.h"
#include "tests/support/ranks.h"

namespace examples {
namespace {

using Catch::Matchers::Contains;
using ddprun::test::TemporaryDirectory;

void write_gz(const std::string& path, const std::string& bytes) {
  gzFile file = gzopen(path.c_str(), "wb");
  REQUIRE(file != nullptr);
  REQUIRE(gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size())) ==
          static_cast<int>(bytes.size()));
  gzclose(file);
}

std::string slurp(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::string big_endian(std::uint32_t n) {
  return {static_cast<char>(n >> 24), static_cast<char>(n >> 16), static_cast<char>(n >> 8),
          static_cast<char>(n)};
}

std::string idx(const std::vector<std::uint32_t>& extents, const std::string& bytes) {
  std::string text{'\0', '\0', '\x08', static_cast<char>(extents.size())};
  for (const std::uint32_t e : extents) text += big_endian(e);
  return text + bytes;
}

}  // namespace

TEST_CASE("IDX: a gzip'd array is read with its extents") {
  const TemporaryDirectory directory;
  write_gz(directory / "a.gz", idx({2, 3}, "abcdef"));
  const IdxArray array = read_idx(directory / "a.gz");
  CHECK(array.extents == std::vector<std::size_t>{2, 3});
  CHECK(std::string(array.bytes.begin(), array.bytes.end()) == "abcdef");
}

TEST_CASE("IDX: each way to be broken is told apart, with the file's name and the remedy") {
  const TemporaryDirectory directory;
  const std::string path = directory / "a.gz";
  const auto expect = [&](const std::string& what) {
    CHECK_THROWS_WITH(read_idx(path), Contains(path) && Contains(what) &&
                                          Contains("apt-get install dataset-fashion-mnist"));
  };
  expect("cannot be opened: No such file");
  write_gz(path, idx({2, 3}, "abcde"));
  expect("is truncated");
  write_gz(path, idx({2, 3}, "abcdefg"));
  expect("is longer than its header says");
  write_gz(path, "\x01\x02\x03\x04");
  expect("is not an IDX file");
  write_gz(path, idx({1u << 31, 1u << 31}, ""));
  expect("more than 1 GiB");
  write_gz(path, "");
  expect("is truncated");
}

TEST_CASE("IDX: a cut or altered gzip stream is noticed") {
  const TemporaryDirectory directory;
  const std::string path = directory / "a.gz";
  std::string noise;
  for (unsigned i = 0, x = 1; i < 40000; ++i, x = x * 1664525 + 1013904223) {
    noise += static_cast<char>(x >> 24);
  }
  write_gz(path, idx({40000}, noise));
  const std::string whole = slurp(path);
  std::ofstream(path, std::ios::binary) << whole.substr(0, whole.size() / 2);
  CHECK_THROWS_WITH(read_idx(path), Contains("is truncated"));
  std::string altered = whole;
  altered[altered.size() - 6] ^= 1;  // In the checksum at the end.
  std::ofstream(path, std::ios::binary) << altered;
  CHECK_THROWS_WITH(read_idx(path), Contains("is corrupt"));
}

TEST_CASE("IDX: images and labels that do not fit together are refused") {
  const TemporaryDirectory directory;
  const auto write = [&](const std::vector<std::uint32_t>& shape, const std::string& labels) {
    std::size_t size = 1;
    for (const auto e : shape) size *= e;
    write_gz(directory / "t-images-idx3-ubyte.gz", idx(shape, std::string(size, 'x')));
    write_gz(directory / "t-labels-idx1-ubyte.gz",
             idx({static_cast<std::uint32_t>(labels.size())}, labels));
  };
  const std::string folder = std::filesystem::path(directory / "t").parent_path();
  write({2, 28, 28}, "\x01\x09");
  CHECK(read_fashion_mnist(folder, "t").size() == 2);
  write({2, 28, 28}, "\x01");
  CHECK_THROWS_WITH(read_fashion_mnist(folder, "t"), Contains("one label for each of the 2"));
  write({2, 28, 28}, "\x01\x0a");
  CHECK_THROWS_WITH(read_fashion_mnist(folder, "t"), Contains("label above 9"));
  write({2, 27, 28}, "\x01\x02");
  CHECK_THROWS_WITH(read_fashion_mnist(folder, "t"), Contains("28 x 28"));
}

TEST_CASE("Options: both spellings of a value, and toggles") {
  const auto o = parse_train_options({"--epochs=3", "--lr", "0.5", "--no-bn", "--seed", "7"});
  CHECK(o.epochs == 3);
  CHECK(o.lr == 0.5);
  CHECK(o.seed == 7);
  CHECK_FALSE(o.batch_norm);
  CHECK(o.batch_size == 100);
}

TEST_CASE("Options: what is wrong is named") {
  const auto expect = [](const std::vector<std::string>& arguments, const std::string& text) {
    CHECK_THROWS_WITH(parse_train_options(arguments), Contains(text));
    CHECK_THROWS_AS(parse_train_options(arguments), std::invalid_argument);
  };
  expect({"--epoch", "1"}, "unknown option --epoch");
  expect({"--epochs"}, "--epochs needs a value");
  expect({"--epochs", "0"}, "at least 1, not '0'");
  expect({"--epochs", "2x"}, "not '2x'");
  expect({"--lr", "nan"}, "not 'nan'");
  expect({"--seed", "-1"}, "not '-1'");
  expect({"--no-bn=1"}, "--no-bn takes no value");
  expect({"--no-bn", "--sync-bn"}, "exclude each other");
  expect({"--data="}, "--data needs a path");
  expect({"--epochs", "99999999999"}, "--epochs 99999999999 is out of range");
  expect({"--lr", "inf"}, "at least 0, not 'inf'");
  expect({"--freeze", ""}, "--freeze needs the name of a layer");
  expect({"--schedule", "cosin"}, "--schedule is constant or cosine, not 'cosin'");
  expect({"--lr-scale", "log"}, "--lr-scale is none, linear or sqrt, not 'log'");
  expect({"--min-lr", "0.001"}, "--min-lr needs --schedule cosine");
  expect({"--min-lr", "0.1", "--schedule", "cosine"}, "--min-lr 0.1 is above --lr 0.01");
  expect({"--lr-scale", "linear", "--global-batch-size", "8"}, "exclude each other");
}

TEST_CASE("Options: the help has every option under a heading, and examples that are understood") {
  const std::string help = train_usage();
  for (const char* heading :
       {"Training:", "Learning rate:", "Model and weights:", "Files and output:"})
    CHECK_THAT(help, Contains(std::string("\n") + heading + "\n"));
  std::istringstream lines(help);
  std::size_t examples = 0;
  for (std::string line; std::getline(lines, line);) {
    CHECK(line.size() <= 100);
    const auto at = line.find(" train --");
    if (at == std::string::npos) continue;
    std::istringstream words(line.substr(at + 7));
    const std::vector<std::string> arguments{std::istream_iterator<std::string>(words), {}};
    CHECK_NOTHROW(parse_train_options(arguments));
    ++examples;
  }
  CHECK(examples == 3);
}

TEST_CASE("Schedule: it rises in equal parts, then falls along a cosine") {
  const Schedule schedule{.lr = 8, .decay = Decay::cosine, .min_lr = 2, .warmup = 3, .steps = 7};
  const std::vector<double> expected{2, 4, 6, 8, 7.121320343559643, 5, 2.8786796564403576};
  for (std::size_t step = 0; step < expected.size(); ++step) {
    CHECK(schedule.at(static_cast<std::int64_t>(step)) == Approx(expected[step]).epsilon(1e-14));
  }
  CHECK(Schedule{.lr = 0.5, .steps = 9}.at(0) == 0.5);
  CHECK(Schedule{.lr = 0.5, .steps = 9}.at(8) == 0.5);
  CHECK(Schedule{.lr = 0.5, .warmup = 1, .steps = 9}.at(0) == 0.25);
}

TEST_CASE("Schedule: rates grow with the number of ranks, or with its root, or not") {
  CHECK(scaled_lr(0.1, LrScale::none, 16) == 0.1);
  CHECK(scaled_lr(0.125, LrScale::linear, 16) == 2);
  CHECK(scaled_lr(0.125, LrScale::sqrt, 16) == 0.5);
}

TEST_CASE("Options: a GPU is taken where there is one, unless something else was asked for") {
  const auto wants = [](const char* device, std::size_t gpus, const std::string& backend) {
    return wants_gpu(parse_train_options({"--device", device}), gpus, backend);
  };
  CHECK(wants("auto", 1, ""));
  CHECK(wants("auto", 1, "nccl"));
  CHECK_FALSE(wants("auto", 0, "nccl"));  // The backend itself reports that it cannot be used.
  CHECK_FALSE(wants("auto", 1, "gloo"));
  CHECK_FALSE(wants("cpu", 8, ""));
  CHECK(wants("cuda", 1, "auto"));
  CHECK_THROWS_WITH(wants("cuda", 0, ""), Contains("sees no GPU"));
  CHECK_THROWS_WITH(wants("cuda", 1, "gloo"), Contains("DDPRUN_BACKEND is gloo"));
  CHECK_THROWS_WITH(wants("gpu", 1, ""), Contains("--device is auto, cuda or cpu, not 'gpu'"));
}

TEST_CASE("Progress: the bar fills up and never exceeds its line") {
  const ProgressState half{.label = "epoch 1/2", .done = 150, .total = 300, .tail = "loss 0.4"};
  CHECK(render_bar(half, 48) == "epoch 1/2 [=========>          ]  50%  loss 0.4");
  CHECK(render_bar(half, 30) == "epoch 1/2  50%  loss 0.4");
  for (std::size_t columns = 0; columns < 100; ++columns) {
    CHECK(render_bar(half, columns).size() <= (columns == 0 ? 0 : columns - 1));
  }
  CHECK_THAT(render_bar({.label = "e", .done = 9, .total = 0, .tail = ""}, 60), Contains("100%"));
}

TEST_CASE("Progress: the time to the end is that of the steps so far") {
  using std::chrono::seconds;
  CHECK(eta_text(seconds(0), 0, 10).empty());
  CHECK(eta_text(seconds(10), 10, 42) == "ETA 0:42");
  CHECK(eta_text(std::chrono::milliseconds(1), 10, 1) == "ETA 0:01");  // Rounded up.
  CHECK(eta_text(seconds(100), 10, 360) == "ETA 1:00:00");
  CHECK(eta_text(seconds(1), 1, 3599) == "ETA 59:59");
  CHECK(eta_text(seconds(5), 1, 0) == "ETA 0:00");
}

TEST_CASE("Event file: checksums and bytes are those of TensorBoard's format") {
  CHECK(crc32c("") == 0);
  CHECK(crc32c("123456789") == 0xe3069283);            // The check value of CRC-32C.
  CHECK(crc32c(std::string(32, '\0')) == 0x8a9136aa);  // RFC 3720, B.4.
  CHECK(crc32c(std::string(32, '\xff')) == 0x62a8ab43);
  const std::string event = scalar_event(1.5, 300, {{"a/b", 0.25}});
  CHECK(event == std::string("\x09\0\0\0\0\0\0\xf8\x3f"  // wall_time
                             "\x10\xac\x02"              // step
                             "\x2a\x0c\x0a\x0a"          // summary, value
                             "\x0a\x03"
                             "a/b"                // tag
                             "\x15\0\0\x80\x3e",  // simple_value
                             26));
  CHECK(restart_event(0, 5).substr(9) == "\x10\x05\x3a\x02\x08\x01");
  CHECK(version_event(0).substr(11) ==
        "\x1a\x0d"
        "brain.Event:2");
  const std::string framed =  // Made by a reader that shares no code with record().
      std::string("\x01\0\0\0\0\0\0\0", 8) + "\x01\x75\xde\x41" + "x" + "\x50\x3d\xaa\x61";
  CHECK(record("x") == framed);
}

TEST_CASE("Event file: a folder that cannot be is named") {
  CHECK_THROWS_WITH(EventFile("/dev/null/runs", 0),
                    Contains("cannot create /dev/null/runs: Not a directory"));
  const TemporaryDirectory directory;
  EventFile(directory / "a/b", 0).write(0, {{"t", 1}});
  CHECK(std::filesystem::exists(directory / "a/b"));
}

TEST_CASE("Report: the JSON line has the keys that are promised") {
  EpochReport report{.epoch = 2,
                     .train_loss = 0.25,
                     .test_accuracy = 0.875,
                     .samples = 60000,
                     .steps = 300,
                     .learning_rate = 0.0125,
                     .training = std::chrono::seconds(12),
                     .sync = {}};
  report.sync = {.steps = 300,
                 .comm = std::chrono::milliseconds(600),
                 .exposed = std::chrono::milliseconds(300),
                 .bytes = 1000,
                 .buckets = 300};
  const auto json = nlohmann::json::parse(to_json(report, 2, 1));
  CHECK(json["epoch"] == 2);
  CHECK(json["train_loss"] == 0.25);
  CHECK(json["test_accuracy"] == 0.875);
  CHECK(json["samples_per_s"] == 5000);
  CHECK(json["sync_exposed_ms"] == 1);
  CHECK(json["sync_comm_ms"] == 2);
  CHECK(json["step_ms"] == 40);
  CHECK(json["learning_rate"] == 0.0125);
  CHECK(json["sync_share"] == 0.025);
  CHECK(json["restart_count"] == 1);
  CHECK_THAT(summary(report, report, 2, "shm"),
             Contains("87.50 %") && Contains("5000 samples/s, 2 workers over shm") &&
                 Contains("1.00 ms a step waited for") && Contains("2.5 % of a step of 40.0 ms"));
}

TEST_CASE("Report: a loss that is no number is null in JSON") {
  for (const double loss : {std::nan(""), -HUGE_VAL}) {
    const EpochReport report{.train_loss = loss, .steps = 3, .sync = {}};
    const auto json = nlohmann::json::parse(to_json(report, 1, 0));
    CHECK(json["train_loss"].is_null());
    CHECK(json["steps"] == 3);
  }
}

TEST_CASE("Report: a metrics file that cannot be written is named") {
  CHECK_THROWS_WITH(MetricsFile("/nowhere/m", false), Contains("cannot write /nowhere/m"));
  MetricsFile full("/dev/full", true);
  CHECK_THROWS_WITH(full.write("{}"), Contains("cannot write /dev/full: No space left on device"));
}

}  // namespace examples
