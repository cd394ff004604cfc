// The part of Agent for those that watch the run on this machine, while it goes on (ddprunctl top,
// logs, stacks) and afterwards (ddprunctl history).

#include <algorithm>
#include <boost/asio/post.hpp>
#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>

#include "agent/node/agent.h"
#include "agent/node/verdict_file.h"
#include "agent/output/terminal_facts.h"
#include "common/system/log.h"
#include "common/system/log_lines.h"
#include "rendezvous/ledger/rank_status.h"
#include "rendezvous/run/verdict.h"

namespace ddprun::agent {
namespace {

using Clock = std::chrono::steady_clock;
using nlohmann::json;

constexpr std::size_t kTailsBytesMax = std::size_t{512} << 10;  // Of all streams of this node.
constexpr auto kFreshEnough = std::chrono::seconds(1);
constexpr auto kStatusEvery = std::chrono::milliseconds(250);

std::string text_of(const json& object) {
  // Workers write any bytes; JSON text may not.
  return object.dump(-1, ' ', /*ensure_ascii=*/true, json::error_handler_t::replace);
}

// Whole lines, of which the oldest goes first; of one that is longer, its end.
std::string last_of(std::string text, std::size_t bytes_max) {
  if (text.size() <= bytes_max) return text;
  text.erase(0, text.size() - bytes_max);
  const std::size_t newline = text.find('\n');
  const bool has_more = newline != std::string::npos && newline + 1 < text.size();
  return has_more ? text.substr(newline + 1) : text;
}

// What has come since the `after`th byte, as far as it is still here.
json since(const TailRing* ring, std::uint64_t after) {
  if (!ring) return nullptr;
  std::string text = ring->text();
  const std::uint64_t begin = ring->end() - text.size();
  if (after > begin) text.erase(0, std::min<std::uint64_t>(after - begin, text.size()));
  return {{"text", text}, {"end", ring->end()}, {"missed", after < begin ? begin - after : 0}};
}

}  // namespace

void Agent::open_window() {
  if (options_.files.window.empty()) return;
  auto window = Window::open(loop_, options_.files.window,
                             [this](const std::string& question, Window::Reply reply) {
                               answer(question, std::move(reply));
                             });
  if (!window) return log::debug("nobody can watch: " + to_string(window.error()));
  window_ = std::move(*window);
}

// "watch", "workers", or "tails": the last may be asked again for what has come since.
void Agent::answer(const std::string& question, Window::Reply reply) {
  const json asked = json::parse(question, nullptr, /*allow_exceptions=*/false);
  const std::string ask = asked.is_object() ? asked.value("ask", json()).dump() : "";
  if (ask == "\"workers\"") return reply(workers_text());
  if (ask == "\"tails\"") return reply(tails_text(question));
  if (ask != "\"watch\"") return reply(text_of({{"error", "there is no such question"}}));
  if (Clock::now() - sync_told_ >= kFreshEnough && !ending_) {
    progress_.look_at_counts();
    say_alive(/*with_counts=*/true);
  }
  // Behind what has just been sent.
  boost::asio::post(loop_, [this, reply = std::move(reply)] { reply(encode(watched())); });
}

// The daemon's view where it is in this process; else what this node knows of itself.
rendezvous::DaemonStatus Agent::watched() {
  if (auto all = link_->watched()) return *std::move(all);
  const TimePoint now = Clock::now();
  rendezvous::RunStatus run{.run_id = options_.run_id, .state = "gathering"};
  rendezvous::NodeStatus node{.id = node_,
                              .host = options_.offer.host,
                              .address = options_.offer.address,
                              .phase = "ready",
                              .local_world_size = options_.offer.local_world_size};
  run.max_restarts = options_.offer.config.max_restarts;
  run.nnodes_min = options_.offer.config.nnodes_min;
  run.nnodes_max = options_.offer.config.nnodes_max;
  run.waiting_for = "only this node is shown; the daemon knows the others";
  if (seat_) {
    run.state = supervisor_.running() ? "running" : "closing";
    run.round = seat_->round;
    run.restart_count = seat_->restart_count;
    run.world_size = seat_->world_size;
    node.phase = supervisor_.running() ? "seated" : "stopping";
    node.group_rank = seat_->group_rank;
    node.base_rank = seat_->base_rank;
  }
  run.nodes.push_back(std::move(node));
  add_ledger(run, own_ledger_, now);
  add_ranks(run, own_ledger_, now);
  return {{std::move(run)}};
}

std::string Agent::workers_text() const {
  json workers = json::array();
  for (const auto& [local_rank, pid] : processes_.pids()) {
    workers.push_back({{"rank", rank_of(local_rank)}, {"local_rank", local_rank}, {"pid", pid}});
  }
  return text_of({{"run_id", options_.run_id},
                  {"host", options_.offer.host},
                  {"world_size", seat_ ? seat_->world_size : 0},
                  {"workers", std::move(workers)}});
}

std::string Agent::tails_text(const std::string& question) const {
  const json asked = json::parse(question, nullptr, /*allow_exceptions=*/false);
  const auto number = [](const json& object, const std::string& name) -> std::int64_t {
    const auto it = object.find(name);
    return it != object.end() && it->is_number_integer() ? it->get<std::int64_t>() : -1;
  };
  const json after = asked.value("after", json::object());
  json tails = json::array();
  for (const auto& [local_rank, place] : places_) {
    const int rank = rank_of(local_rank);
    if (number(asked, "rank") >= 0 && number(asked, "rank") != rank) continue;
    for (const bool is_stderr : {false, true}) {
      const std::string stream = is_stderr ? "stderr" : "stdout";
      const std::int64_t from =
          after.is_object() ? number(after, std::to_string(local_rank) + stream) : -1;
      json tail = since(output_.tail(local_rank, is_stderr),
                        static_cast<std::uint64_t>(std::max<std::int64_t>(from, 0)));
      if (tail.is_null()) continue;
      if (from < 0) tail["missed"] = 0;  // Nobody has asked for it.
      tail.update({{"rank", rank}, {"local_rank", local_rank}, {"stream", stream}});
      tails.push_back(std::move(tail));
    }
  }
  return text_of({{"run_id", options_.run_id},
                  {"host", options_.offer.host},
                  {"world_size", seat_ ? seat_->world_size : 0},
                  {"tails", std::move(tails)}});
}

// The names are those of common/history/run_record.h.
void Agent::write_ending(const Exit& exit) const {
  if (options_.files.ending.empty()) return;
  json ending = {{"tails", json::array()}};
  const std::size_t streams = 2 * std::max<std::size_t>(places_.size(), 1);
  for (const auto& [local_rank, place] : places_) {
    for (const bool is_stderr : {false, true}) {
      const TailRing* ring = output_.tail(local_rank, is_stderr);
      if (!ring || ring->end() == 0) continue;
      ending["tails"].push_back({{"rank", rank_of(local_rank)},
                                 {"stream", is_stderr ? "stderr" : "stdout"},
                                 {"text", last_of(ring->text(), kTailsBytesMax / streams)},
                                 {"end", ring->end()}});
    }
  }
  if (options_.speaks_for_run) {
    const bool dismissed = !exit.verdict && exit.status == 0;  // Drained: the run goes on.
    rendezvous::Verdict verdict = verdict_or(exit.verdict, exit.status, complaint_);
    if (dismissed) verdict.kind = rendezvous::Verdict::Kind::kSuccess;
    ending["verdict"] =
        json::parse(verdict_json(verdict, options_.run_id, std::time(nullptr)), nullptr, false);
    ending["world_size"] = seat_ ? seat_->world_size : 0;
    ending["nodes"] = seat_ ? seat_->group_world_size : 0;
    ending["restarts"] = seat_ ? seat_->restart_count : 0;
  }
  std::ofstream file(options_.files.ending, std::ios::trunc);
  file << text_of(ending) << '\n' << (options_.speaks_for_run ? account_ : "") << std::flush;
}

bool Agent::may_show_status() const {
  const bool runs = supervisor_.running() && !waiting_.active() && !progress_.paused();
  return runs && has_foreground(options_.job.launcher_pid);
}

void Agent::keep_status() {
  const bool wanted = options_.status_line && options_.speaks_for_run &&
                      options_.output.lines.format == LineFormat::kText;
  if (!wanted || !look_at_terminal().can_move) return;
  log::before_lines([this] { output_.hide_status(); });
  status_later();
}

void Agent::end_status() {
  status_timer_.cancel();
  output_.hide_status();
  log::before_lines({});
}

void Agent::status_later() {
  status_timer_.expires_after(kStatusEvery);
  status_timer_.async_wait([this](const boost::system::error_code& ec) {
    if (ec || ending_) return;
    show_status();
    status_later();
  });
}

void Agent::show_status() {
  if (!may_show_status()) return output_.hide_status();
  const TimePoint now = Clock::now();
  if (now - options_.job.began < kFreshEnough) return;  // It may be over at once.
  if (now - status_made_ < kFreshEnough && output_.shows_status()) return;
  if (now - status_made_ >= kFreshEnough) {
    const TerminalFacts terminal = look_at_terminal();
    status_text_ = status_text(
        status_facts(),
        {.columns = terminal.columns, .colour = terminal.colour, .utf8 = terminal.utf8});
    status_made_ = now;
  }
  output_.show_status(status_text_);
}

StatusFacts Agent::status_facts() {
  const TimePoint now = Clock::now();
  progress_.look_at_counts();
  own_ledger_.report(node_, ledger_.times(/*whole=*/false, now), now);
  StatusFacts facts{.run_id = options_.run_id,
                    .elapsed = std::chrono::floor<std::chrono::seconds>(now - options_.job.began)};
  if (seat_) {
    facts.world_size = seat_->world_size;
    facts.nodes = seat_->group_world_size;
    facts.restart_count = seat_->restart_count;
  }
  facts.max_restarts = options_.offer.config.max_restarts;
  if (const auto progress = own_ledger_.progress()) {
    facts.step = progress->step;
    facts.steps_per_s = progress->steps_per_s;
  }
  if (const auto late = own_ledger_.late(); !late.empty()) {
    facts.late_rank = late.front().rank;
    facts.late_ms = late.front().late_ms;
  }
  return facts;
}

}  // namespace ddprun::agent
