// The two pages for people: that of --report-html, and the daemon's.

#include "rendezvous/daemon/pages.h"

#include <catch2/catch.hpp>

#include "common/text/display.h"
#include "launcher/page/report_page.h"
#include "launcher/run/report_table.h"

namespace ddprun {
namespace {

using namespace std::chrono_literals;
using Catch::Matchers::Contains;
using rendezvous::Pages;

std::size_t times(const std::string& text, std::string_view what) {
  std::size_t count = 0;
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) {
    ++count;
  }
  return count;
}

TEST_CASE("Report page: no word of an account becomes markup") {
  const auto page = launcher::report_page(
      R"({"schema":"ddprun.report/1","run":{"id":"</script><script>x()</script><!--&amp;"}})",
      {.command = "ddprun <b>", .started_utc = "2026-11-20T21:04:12Z"});
  REQUIRE(page);
  CHECK(times(*page, "<script") == 2);  // The data and the page's own.
  CHECK(times(*page, "</script>") == 2);
  CHECK_THAT(*page, Contains(R"("id":"\u003c/script\u003e\u003cscript\u003ex())"));
  CHECK_THAT(*page, Contains(R"("command":"ddprun \u003cb\u003e")"));
}

TEST_CASE("Report page: what is no account makes none") {
  for (const char* text :
       {"", "{", "[]", "{}", R"({"schema":"other/1","run":{}})", R"({"schema":"ddprun.report/1"})",
        R"({"schema":1,"run":{}})", R"({"schema":"ddprun.report/1","run":[]})"}) {
    CHECK_FALSE(launcher::report_page(text, {}));
  }
}

TEST_CASE("Ledger text: goodput, then each part that there is") {
  LedgerTotals ledger{.places = 2, .wall = 100s};
  CHECK(launcher::ledger_text(ledger).empty());
  ledger.parts[TimePart::kForward] = 150s;
  ledger.parts[TimePart::kLost] = 50s;
  ledger.parts[TimePart::kGone] = 10s;
  const std::string text = launcher::ledger_text(ledger);
  CHECK_THAT(text, Catch::Matchers::StartsWith("goodput 75.0 % of 200 rank-s, of all ranks, "));
  CHECK_THAT(text, Contains("  lost work      25.0 %       50 rank-s  since the last checkpoint"));
  CHECK_THAT(text, !Contains("not in the run"));
  LedgerTotals silent{.places = 1, .wall = 9s};
  silent.parts[TimePart::kUnknown] = 9s;
  CHECK_THAT(launcher::ledger_text(silent),
             Catch::Matchers::StartsWith("goodput not known: no rank reported steps; 9"));
}

TEST_CASE("Ledger text: on narrow terminals the meaning of the parts goes, no number") {
  LedgerTotals ledger{.places = 64, .wall = 700'000s};
  for (const TimePart part : {TimePart::kLost, TimePart::kRestart, TimePart::kForward}) {
    ledger.parts[part] = 1'234'567s;
  }
  const std::string wide = launcher::ledger_text(ledger);
  CHECK(launcher::ledger_text(ledger, 200) == wide);
  CHECK(launcher::ledger_text(ledger, 120) == wide);
  const std::string near = launcher::ledger_text(ledger, 78);
  CHECK_THAT(near, Contains("  since the last checkpoint, then undone\n"));
  CHECK_THAT(launcher::ledger_text(ledger, 60),
             !Contains("since the last") && Contains(" rank-h\n"));
  for (std::size_t width = 30; width < 120; ++width) {
    const std::string text = launcher::ledger_text(ledger, width);
    CAPTURE(width, text);
    CHECK(fits_columns(text, width));
    CHECK_THAT(text, Contains("lost work") && Contains("33.3 %"));
  }
}

Pages pages(const std::string& key) {
  Pages pages;
  pages.complaint = [] { return std::string(); };
  pages.status = [] { return rendezvous::DaemonStatus(); };
  pages.metrics = [] { return std::string("m"); };
  pages.events = [](std::int64_t after) { return "[" + std::to_string(after) + "]"; };
  pages.account = [](const std::string& run) {
    return run == "job7" ? std::optional<std::string>("{}") : std::nullopt;
  };
  pages.live = rendezvous::live_page();
  pages.key = key;
  return pages;
}

TEST_CASE("Live page: its own script and no other, and nothing from elsewhere") {
  const auto reply = pages("").answer("GET", "/");
  CHECK(reply.status == 200);
  CHECK(reply.content_type == "text/html; charset=utf-8");
  CHECK_THAT(reply.policy, Catch::Matchers::StartsWith("default-src 'none'; script-src 'sha256-"));
  CHECK_THAT(reply.policy, !Contains("script-src 'unsafe-inline'"));
  CHECK(times(reply.body, "<script") == 1);
  CHECK(times(reply.body, "http://") + times(reply.body, "https://") == 0);
}

TEST_CASE("Live page: where others can reach the port it wants its key, and no method writes") {
  const Pages open = pages(""), closed = pages("k3y");
  CHECK(open.answer("GET", "/events?after=7").body == "[7]");
  CHECK(open.answer("GET", "/events?after=x").body == "[0]");
  CHECK(open.answer("GET", "/report?run=job7").status == 200);
  CHECK(open.answer("GET", "/report?run=job8").status == 404);
  for (const char* target : {"/", "/events", "/report?run=job7", "/?key=k3", "/?key=k3yy"}) {
    CHECK(closed.answer("GET", target).status == 403);
  }
  CHECK(closed.answer("GET", "/?key=k3y").status == 200);
  CHECK(closed.answer("GET", "/report?run=job7&key=k3y").status == 200);
  CHECK(closed.answer("GET", "/metrics").status == 200);
  for (const char* method : {"POST", "PUT", "DELETE", "PATCH"}) {
    CHECK(open.answer(method, "/").status == 405);
  }
}

TEST_CASE("Live page: its key says nothing of the token") {
  CHECK(rendezvous::page_key("secret").size() == 32);
  CHECK(rendezvous::page_key("secret") != rendezvous::page_key("secret2"));
  CHECK_THAT(rendezvous::page_key("secret"), !Contains("secret"));
}

}  // namespace
}  // namespace ddprun
