#include "launcher/plan/own_files.h"

#include <catch2/catch.hpp>

namespace ddprun::launcher {
namespace {

const std::string kFolder = "/opt/ddprun/libexec/ddprun/python";

Options with_stall(agent::OnStall on_stall) {
  Options options;
  options.stalls.on_stall = on_stall;
  options.given.push_back({"--on-stall", "any"});
  return options;
}

TEST_CASE("Python watch: only --report, --report-html and --on-stall bring it in", "[plan]") {
  CHECK(plan_python_watch({}, {}, kFolder).watch.empty());
  CHECK(plan_python_watch({}, {}, kFolder).python_path.empty());
  Options table, page;
  table.report = true;
  page.report_html = "page.html";
  CHECK(plan_python_watch(table, {}, kFolder).watch == "times");
  CHECK(plan_python_watch(page, {}, kFolder).watch == "times");
  CHECK(plan_python_watch(with_stall(agent::OnStall::kLog), {}, kFolder).watch == "phases");
  CHECK(plan_python_watch(with_stall(agent::OnStall::kKill), {}, kFolder).watch == "phases");
  CHECK(plan_python_watch(with_stall(agent::OnStall::kOff), {}, kFolder).watch.empty());
}

TEST_CASE("Python watch: --preload brings the folder in, and watches nothing", "[plan]") {
  Options options;
  options.preload = "auto";
  const PythonWatch plan = plan_python_watch(options, {{"DDPRUN_WATCH", "0"}}, kFolder);
  CHECK(plan.preload == "auto");
  CHECK(plan.python_path == kFolder);
  CHECK(plan.watch.empty());
  CHECK(!plan.may_query);
  CHECK(plan_python_watch(options, {}, "").preload.empty());
  options.report = true;
  CHECK(plan_python_watch(options, {}, kFolder).watch == "times");
  CHECK(plan_python_watch(options, {}, kFolder).preload == "auto");
}

TEST_CASE("Python watch: ranks are asked where they are only for --on-stall", "[plan]") {
  Options table;
  table.report = true;
  CHECK(!plan_python_watch(table, {}, kFolder).may_query);
  CHECK(plan_python_watch(with_stall(agent::OnStall::kLog), {}, kFolder).may_query);
  CHECK(!plan_python_watch(with_stall(agent::OnStall::kLog), {{"DDPRUN_WATCH", "0"}}, kFolder)
             .may_query);
}

TEST_CASE("Python watch: the user's folders stay, behind ours", "[plan]") {
  Options table;
  table.report = true;
  CHECK(plan_python_watch(table, {}, kFolder).python_path == kFolder);
  CHECK(plan_python_watch(table, {{"PYTHONPATH", "/a:/b"}}, kFolder).python_path ==
        kFolder + ":/a:/b");
  CHECK(plan_python_watch(table, {}, "").python_path.empty());
  CHECK(plan_python_watch(table, {{"DDPRUN_WATCH", "0"}}, kFolder).python_path.empty());
}

}  // namespace
}  // namespace ddprun::launcher
