#include "agent/process/cgroup.h"

#include <catch2/catch.hpp>

namespace ddprun::agent {
namespace {

const std::string kHybrid =
    "30 20 0:26 / /sys/fs/cgroup ro,nosuid - tmpfs tmpfs ro,mode=755\n"
    "31 30 0:27 / /sys/fs/cgroup/unified rw,nosuid shared:9 - cgroup2 cgroup2 rw\n"
    "32 30 0:28 / /sys/fs/cgroup/pids rw,nosuid shared:10 - cgroup cgroup rw,pids\n";
const std::string kUnified =
    "31 20 0:27 / /sys/fs/cgroup rw,nosuid,nodev - cgroup2 cgroup2 rw,nsdelegate\n";

TEST_CASE("Cgroup: our own folder is found in the hybrid and in the unified layout", "[cgroup]") {
  CHECK(cgroup_folder(kHybrid, "9:pids:/jobs/7\n0::/\n") == "/sys/fs/cgroup/unified");
  CHECK(cgroup_folder(kHybrid, "9:pids:/\n0::/user/1.scope\n") ==
        "/sys/fs/cgroup/unified/user/1.scope");
  CHECK(cgroup_folder(kUnified, "0::/system.slice/a b\n") == "/sys/fs/cgroup/system.slice/a b");
}

TEST_CASE("Cgroup: a container that sees a part of the tree counts from there", "[cgroup]") {
  const std::string part = "31 20 0:27 /docker/abc /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
  CHECK(cgroup_folder(part, "0::/docker/abc/job\n") == "/sys/fs/cgroup/job");
  CHECK(cgroup_folder(part, "0::/docker/abc\n") == "/sys/fs/cgroup");
  CHECK(cgroup_folder(part, "0::/docker/abcd\n").empty());  // Beside it, not below it.
}

TEST_CASE("Cgroup: where there is none for us there is none", "[cgroup]") {
  CHECK(cgroup_folder("", "").empty());
  CHECK(cgroup_folder(kHybrid, "9:pids:/\n").empty());  // Version 1 only.
  CHECK(cgroup_folder("32 30 0:28 / /c rw - cgroup c rw\n", "0::/\n").empty());
  CHECK(cgroup_folder(kUnified, "0::/../outside\n").empty());  // Of another namespace.
  CHECK(cgroup_folder("1 2 3 / /a\\040b rw - cgroup2 c rw\n", "0::/\n").empty());
  CHECK(cgroup_folder("1 - cgroup2 c", "0::/\n").empty());  // Cut off.
  CHECK(make_cgroup("", "x").has_error());
  CHECK(make_cgroup("/no/such/folder", "x").has_error());
  CHECK_FALSE(kill_cgroup("/no/such/folder"));
}

}  // namespace
}  // namespace ddprun::agent
