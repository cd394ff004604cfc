// Each defect of one node, planted in the facts of a healthy one, is found under its name, and no
// other is.

#include "launcher/doctor/subject.h"

#include <catch2/catch.hpp>
#include <functional>

#include "launcher/doctor/health_report.h"
#include "tests/unit/launcher/doctor/healthy.h"

namespace ddprun::doctor {
namespace {

using test::healthy, test::healthy_gpu;

struct Defect {
  std::string what;
  std::function<void(Facts&)> plant;
  std::string name;
  Status status;
  std::string cure;  // A part of it.
};

const Need kNeed{.workers = 8, .several = true};

std::string bad_rows(const HealthReport& report) {
  std::string text;
  for (const Row& row : report.rows) {
    if (row.finding.status <= Status::kSkipped) continue;
    text += row.finding.name + " " + std::string(to_string(row.finding.status)) + "; ";
  }
  return text;
}

void expect(const Defect& defect) {
  INFO(defect.what);
  Facts facts = healthy();
  defect.plant(facts);
  const HealthReport report = report_of_node({"node1", facts}, kNeed);
  CHECK(bad_rows(report) == defect.name + " " + std::string(to_string(defect.status)) + "; ");
  for (const Row& row : report.rows) {
    if (row.finding.name == defect.name && row.finding.status == defect.status) {
      CHECK_THAT(row.finding.cure, Catch::Contains(defect.cure));
    }
  }
}

template <class F>
auto set(F fact, std::int64_t value) {
  return [=](Facts& facts) { facts.set(fact, value); };
}
auto set_text(Text fact, std::string value) {
  return [=](Facts& facts) { facts.set(fact, value); };
}
auto gpu(Whole fact, std::int64_t value) {
  return [=](Facts& facts) {
    facts.add("gpus", healthy_gpu());
    Facts sick = healthy_gpu();
    sick.set(fact, value);
    facts.add("gpus", sick);
  };
}

TEST_CASE("Doctor: a healthy node has nothing to cure", "[doctor]") {
  Facts facts = healthy();
  CHECK(bad_rows(report_of_node({"node1", facts}, kNeed)).empty());
  facts.add("gpus", healthy_gpu());
  CHECK(bad_rows(report_of_node({"node1", facts}, kNeed)).empty());
}

TEST_CASE("Doctor: imports that take long or forbid preloading are named, and are no defect",
          "[doctor]") {
  const auto row = [](const Facts& facts, const std::string& program) {
    const HealthReport report =
        report_of_node({"node1", facts}, {.workers = 8, .program = program});
    for (const Row& one : report.rows) {
      if (one.finding.name == "imports") return one.finding;
    }
    FAIL("there is no such row");
    return Finding{};
  };
  const auto with = [](Facts facts, std::string_view list, const std::string& name) {
    Facts item;
    item.set(Text{"import"}, name);
    facts.add(list, std::move(item));
    return facts;
  };
  Facts facts = healthy();
  CHECK(row(facts, "").status == Status::kSkipped);
  CHECK(row(facts, "train.py").status == Status::kSkipped);
  CHECK_THAT(row(facts, "train.py").note, Catch::Contains("--preload auto"));
  facts.set(Whole{"knows_imports"}, 1);
  CHECK(row(facts, "train.py").value == "none took more than 1 s");
  facts = with(with(facts, "slow_imports", "torch 2.31"), "slow_imports", "numpy 1.04");
  CHECK(row(facts, "train.py").value == "torch 2.31 s, numpy 1.04 s");
  facts = with(facts, "forbidden_imports", "wandb");
  const Finding finding = row(facts, "train.py");
  CHECK(finding.value == "torch 2.31 s, numpy 1.04 s; not preloaded: wandb");
  CHECK(finding.status == Status::kOk);
  CHECK_THAT(finding.note, Catch::Contains("once per node") && Catch::Contains("starts threads"));
}

TEST_CASE("Doctor: each defect of the machine is found under its name", "[doctor]") {
  using enum Status;
  const Defect kDefects[] = {
      {"few descriptors", set(Whole{"files_hard"}, 64), "open files", kFail, "ulimit -n"},
      {"few soft descriptors", set(Whole{"files_soft"}, 256), "open files", kWarn,
       "ulimit -n 1048576"},
      {"no processes", set(Whole{"tasks_left"}, 20), "processes", kFail, "raise"},
      {"few processes", set(Whole{"tasks_left"}, 200), "processes", kWarn, "raise"},
      {"locked memory under InfiniBand",
       [](Facts& facts) {
         facts.set(Whole{"infiniband_devices"}, std::int64_t{1});
         facts.set(Whole{"locked_bytes"}, std::int64_t{65'536});
       },
       "locked memory", kFail, "ulimit -l unlimited"},
      {"little shared memory", set(Whole{"shm_bytes"}, 67'108'864), "/dev/shm", kWarn, "remount"},
      {"hardly any shared memory", set(Whole{"shm_free_bytes"}, 1'000'000), "/dev/shm", kFail,
       "remount"},
      {"no shared memory", set_text(Text{"shm_error"}, "Read-only file system"), "/dev/shm", kFail,
       "mount"},
      {"full temporary folder", set(Whole{"tmp_free_bytes"}, 1'000'000), "TMPDIR", kFail,
       "/var/tmp"},
      {"little temporary room", set(Whole{"tmp_free_bytes"}, 310'000'000), "TMPDIR", kWarn,
       "/var/tmp"},
      {"no inodes", set(Whole{"tmp_free_inodes"}, 3), "TMPDIR", kWarn, "/var/tmp"},
      {"noexec", set(Whole{"tmp_noexec"}, 1), "TMPDIR", kWarn, "/var/tmp"},
      {"unwritable", set_text(Text{"tmp_error"}, "Permission denied"), "TMPDIR", kFail, "/var/tmp"},
      {"little memory", set(Whole{"memory_left_bytes"}, 2'000'000'000), "memory", kWarn,
       "--nproc-per-node 3"},
      {"hardly any memory", set(Whole{"memory_left_bytes"}, 100'000'000), "memory", kFail, "1"},
      {"memory that goes bad", set(Whole{"memory_errors"}, 2), "memory errors", kFail, "edac"},
      {"few processors", set(Whole{"processors"}, 4), "processors", kWarn, "--nproc-per-node 4"},
      {"a quota", [](Facts& facts) { facts.set(Real{"cpu_quota"}, 0.5); }, "processors", kWarn,
       "cpu.max"},
      {"a lazy governor", set_text(Text{"governor"}, "powersave"), "governor", kWarn, "cpupower"},
      {"an orphan",
       [](Facts& facts) {
         Facts left;
         left.set(Text{"what"}, std::string("pid 4711 (train)"));
         left.set(Text{"cure"}, std::string("kill 4711"));
         facts.add("leftovers", left);
       },
       "leftovers", kWarn, "kill 4711"},
  };
  for (const Defect& defect : kDefects) expect(defect);
}

TEST_CASE("Doctor: a memory folder needs its place and the memory", "[doctor]") {
  using enum Status;
  constexpr std::int64_t kGiga = 1'000'000'000;
  Facts facts = healthy();
  Need need = kNeed;
  need.memory_folder = 4 * kGiga;
  const auto bad = [&] {
    std::vector<Finding> found;
    for (const Row& row : report_of_node({"node1", facts}, need).rows) {
      if (row.finding.status > kSkipped) found.push_back(row.finding);
    }
    return found;
  };
  facts.set(Text{"memory_at"}, std::string("/dev/shm"));
  facts.set(Whole{"memory_at_free_bytes"}, std::int64_t{8 * kGiga});
  facts.set(Whole{"memory_at_on_disk"}, std::int64_t{0});
  facts.set(Whole{"memory_left_bytes"}, std::int64_t{64 * kGiga});
  CHECK(bad().empty());

  SECTION("a container's /dev/shm is too small, and the way out is named") {
    facts.set(Whole{"memory_at_free_bytes"}, std::int64_t{67'108'864});
    REQUIRE(bad().size() == 1);
    const Finding found = bad()[0];
    CHECK(found.name == "memory folder");
    CHECK(found.status == kFail);
    CHECK(found.cure.find("--shm-size") != std::string::npos);
    CHECK(found.cure.find("medium: Memory") != std::string::npos);
    CHECK(found.cure.find("at=FOLDER") != std::string::npos);
  }
  SECTION("the place cannot be written") {
    facts.set(Text{"memory_at_error"}, std::string("Permission denied"));
    REQUIRE(bad().size() == 1);
    CHECK(bad()[0].note == "Permission denied");
  }
  SECTION("the place is on a disk") {
    facts.set(Whole{"memory_at_on_disk"}, std::int64_t{1});
    REQUIRE(bad().size() == 1);
    CHECK(bad()[0].status == kWarn);
  }
  SECTION("the machine has less memory than folder and workers need") {
    facts.set(Whole{"memory_left_bytes"}, std::int64_t{6 * kGiga});
    REQUIRE(bad().size() == 1);
    CHECK(bad()[0].name == "memory");
    CHECK(bad()[0].status == kWarn);
    CHECK(bad()[0].cure == "--nproc-per-node 3");
    facts.set(Whole{"memory_left_bytes"}, std::int64_t{3 * kGiga});
    CHECK(bad()[0].status == kFail);
    CHECK(bad()[0].cure == "a smaller --memory-folder");
  }
  SECTION("without one its place does not matter") {
    need.memory_folder = 0;
    facts.set(Text{"memory_at_error"}, std::string("Permission denied"));
    CHECK(bad().empty());
  }
}

TEST_CASE("Doctor: each defect of a GPU names the GPU", "[doctor]") {
  using enum Status;
  const Defect kDefects[] = {
      {"ECC", gpu(Whole{"ecc_uncorrected"}, 3), "GPU 1", kFail, "CUDA_VISIBLE_DEVICES=0"},
      {"rows to remap", gpu(Whole{"remap_pending"}, 1), "GPU 1", kFail, "--gpu-reset"},
      {"failed remapping", gpu(Whole{"remap_failed"}, 1), "GPU 1", kFail, "VISIBLE"},
      {"hot", gpu(Whole{"throttle"}, 0x40), "GPU 1", kWarn, "PERFORMANCE"},
      {"power brake", gpu(Whole{"throttle"}, 0x80), "GPU 1", kWarn, "PERFORMANCE"},
      {"about to throttle", gpu(Whole{"celsius"}, 93), "GPU 1", kWarn, "TEMPERATURE"},
      {"narrow", gpu(Whole{"pcie_width"}, 8), "GPU 1", kFail, "VISIBLE"},
      {"NVLink", gpu(Whole{"links_down"}, 2), "GPU 1", kFail, "nvlink"},
      {"prohibited", gpu(Whole{"compute_mode"}, 2), "GPU 1", kFail, "--compute-mode"},
      {"no GPU answers", set(Whole{"gpu_devices"}, 8), "GPUs", kFail, "nvidia-smi"},
      {"in use",
       [](Facts& facts) {
         Facts used = healthy_gpu();
         used.set(Text{"holders"}, std::string("pid 12 (python3)"));
         used.set(Whole{"holder"}, std::int64_t{12});
         facts.add("gpus", used);
       },
       "GPU 0", kWarn, "kill 12"},
      {"Xid",
       [](Facts& facts) {
         facts.add("gpus", healthy_gpu());
         facts.set(Whole{"gpu_xids"}, std::int64_t{2});
       },
       "Xid", kWarn, "dmesg"},
  };
  for (const Defect& defect : kDefects) expect(defect);
}

TEST_CASE("Doctor: each defect of a node's network is found under its name", "[doctor]") {
  using enum Status;
  const Defect kDefects[] = {
      {"a name that is not known", set_text(Text{"own_addresses"}, ""), "own name", kFail, "hosts"},
      {"a name that means loopback", set_text(Text{"own_addresses"}, "127.0.1.1 ::1"), "own name",
       kWarn, "--local-addr"},
      {"a slow name", [](Facts& facts) { facts.set(Real{"name_ms"}, 4'200.0); }, "own name", kWarn,
       "hosts"},
      {"a taken port", set_text(Text{"port_error"}, "by python3 (pid 7)"), "port 29400", kWarn,
       "HOST:29401"},
      {"no loopback", set_text(Text{"loopback_error"}, "no route"), "loopback", kFail, "lo up"},
      {"damaged packets",
       [](Facts& facts) {
         Facts bad;
         bad.set(Text{"interface"}, std::string("eth1"));
         bad.set(Whole{"errors"}, std::int64_t{5'000});
         bad.set(Whole{"packets"}, std::int64_t{1'000'000});
         facts.add("interfaces", bad);
       },
       "eth1", kWarn, "ip -s"},
  };
  for (const Defect& defect : kDefects) expect(defect);
}

TEST_CASE("Doctor: what a probe could not measure is unknown, with its reason", "[doctor]") {
  Facts facts = healthy();
  facts.set_why("gpu", "no answer within 15 s");
  const HealthReport report = report_of_node({"node1", facts}, kNeed);
  CHECK(bad_rows(report) == "GPUs unknown; ");
  CHECK(exit_code_of(worst_of(report)) == 3);
  CHECK(exit_code_of(Status::kWarn) == 1);
  CHECK(exit_code_of(Status::kSkipped) == 0);
  facts.set(Whole{"files_hard"}, std::int64_t{64});
  CHECK(exit_code_of(worst_of(report_of_node({"node1", facts}, kNeed))) == 2);
}

TEST_CASE("Doctor: nothing known is never taken for all well", "[doctor]") {
  for (const Subject& subject : all_subjects()) {
    for (const Check& check : subject.checks) {
      INFO(check.name);
      CHECK_FALSE(judge(subject, check, Facts(), kNeed).empty());
    }
  }
  CHECK(exit_code_of(worst_of(report_of_node({"x", Facts()}, kNeed))) >= 2);
}

}  // namespace
}  // namespace ddprun::doctor
