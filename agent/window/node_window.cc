#include "agent/window/node_window.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <cstdint>
#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "agent/window/window.h"
#include "common/assert.h"
#include "common/system/log.h"
#include "rendezvous/run/verdict.h"

namespace ddprun::agent {
namespace {

using nlohmann::json;

constexpr std::size_t kTailsBytesMax = std::size_t{512} << 10;  // Of all streams of this node.

// Whole lines, of which the oldest goes first; of one that is longer, its end.
std::string last_of(std::string text, std::size_t bytes_max) {
  if (text.size() <= bytes_max) return text;
  text.erase(0, text.size() - bytes_max);
  const std::size_t newline = text.find('\n');
  const bool has_more = newline != std::string::npos && newline + 1 < text.size();
  return has_more ? text.substr(newline + 1) : text;
}

json tails_of(const Output& output, const std::map<int, int>& ranks) {
  json tails = json::array();
  const std::size_t streams = 2 * std::max<std::size_t>(ranks.size(), 1);
  for (const auto& [local_rank, rank] : ranks) {
    for (const bool is_stderr : {false, true}) {
      const TailRing* ring = output.tail(local_rank, is_stderr);
      if (!ring || ring->end() == 0) continue;
      tails.push_back({{"rank", rank},
                       {"stream", is_stderr ? "stderr" : "stdout"},
                       {"text", last_of(ring->text(), kTailsBytesMax / streams)},
                       {"end", ring->end()}});
    }
  }
  return tails;
}

}  // namespace

// The names are those of common/history/run_record.h.
void write_ending(const std::string& path, const Output& output, const std::map<int, int>& ranks,
                  const std::optional<RunEnding>& of_run) {
  json ending = {{"tails", tails_of(output, ranks)}};
  if (of_run) {
    const auto& seat = of_run->seat;
    ending["verdict"] = json::parse(
        verdict_json(of_run->verdict, of_run->run_id, std::time(nullptr)), nullptr, false);
    ending["world_size"] = seat ? seat->world_size : 0;
    ending["nodes"] = seat ? seat->group_world_size : 0;
    ending["restarts"] = seat ? seat->restart_count : 0;
  }
  std::ofstream file(path, std::ios::trunc);
  file << json_line(ending) << '\n' << (of_run ? of_run->account : "") << std::flush;
}

namespace {

using nlohmann::json;

// What has come since the `after`th byte, as far as it is still here.
json since(const TailRing* ring, std::uint64_t after) {
  if (!ring) return nullptr;
  std::string text = ring->text();
  const std::uint64_t begin = ring->end() - text.size();
  if (after > begin) text.erase(0, std::min<std::uint64_t>(after - begin, text.size()));
  return {{"text", text}, {"end", ring->end()}, {"missed", after < begin ? begin - after : 0}};
}

// -1: there is none.
std::int64_t number(const json& object, const std::string& name) {
  const auto it = object.find(name);
  return it != object.end() && it->is_number_integer() ? it->get<std::int64_t>() : -1;
}

}  // namespace

NodeWindow::NodeWindow(boost::asio::io_context& loop, const Output& output)
    : loop_(loop), output_(output) {}

void NodeWindow::open(const std::string& path) {
  DDPRUN_ASSERT(workers && refresh && capture && runs && !window_);
  auto window = Window::open(loop_, path, [this](const std::string& question, Window::Reply reply) {
    answer(question, std::move(reply));
  });
  if (!window)
    return log::debug("no local socket for ddprunctl top, logs and stacks: " +
                      to_string(window.error()));
  window_ = std::move(*window);
}

// Answers "watch", "workers", "capture" or "tails". Repeat "tails" to get newer output.
void NodeWindow::answer(const std::string& question, Window::Reply reply) {
  const json question_json = json::parse(question, nullptr, /*allow_exceptions=*/false);
  const std::string subject =
      question_json.is_object() ? question_json.value("ask", json()).dump() : "";
  if (subject == "\"workers\"") return reply(workers_text());
  if (subject == "\"capture\"") {
    const Result<int> rank = capture();
    return reply(rank ? json_line({{"rank", *rank}})
                      : json_line({{"error", rank.error().context}}));
  }
  if (subject == "\"tails\"") return reply(tails_text(question_json));
  if (subject != "\"watch\"") return reply(json_line({{"error", "there is no such question"}}));
  refresh();
  // Behind what has just been sent.
  boost::asio::post(loop_, [this, reply = std::move(reply)] { reply(encode(runs())); });
}

std::string NodeWindow::workers_text() const {
  const Workers all = workers();
  json list = json::array();
  for (const auto& [local_rank, pid] : all.pids) {
    const auto rank = all.ranks.find(local_rank);
    list.push_back({{"rank", rank == all.ranks.end() ? -1 : rank->second},
                    {"local_rank", local_rank},
                    {"pid", pid}});
  }
  return json_line({{"run_id", all.run_id},
                    {"host", all.host},
                    {"world_size", all.world_size},
                    {"workers", std::move(list)}});
}

std::string NodeWindow::tails_text(const json& question_json) const {
  const Workers all = workers();
  const json after = question_json.value("after", json::object());
  json tails = json::array();
  for (const auto& [local_rank, rank] : all.ranks) {
    if (number(question_json, "rank") >= 0 && number(question_json, "rank") != rank) continue;
    for (const bool is_stderr : {false, true}) {
      const std::string stream = is_stderr ? "stderr" : "stdout";
      const std::int64_t from =
          after.is_object() ? number(after, std::to_string(local_rank) + stream) : -1;
      json tail = since(output_.tail(local_rank, is_stderr),
                        static_cast<std::uint64_t>(std::max<std::int64_t>(from, 0)));
      if (tail.is_null()) continue;
      if (from < 0) tail["missed"] = 0;  // Not requested.
      tail.update({{"rank", rank}, {"local_rank", local_rank}, {"stream", stream}});
      tails.push_back(std::move(tail));
    }
  }
  return json_line({{"run_id", all.run_id},
                    {"host", all.host},
                    {"world_size", all.world_size},
                    {"tails", std::move(tails)}});
}

}  // namespace ddprun::agent
