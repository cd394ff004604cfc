#include "launcher/watch/top.h"

#include <unistd.h>

#include <algorithm>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <ctime>
#include <optional>

#include "common/system/standard_output.h"
#include "launcher/watch/terminal.h"
#include "launcher/watch/top_screen.h"
#include "launcher/watch/window_client.h"

namespace ddprun::launcher {
namespace {

using boost::asio::posix::stream_descriptor;
using boost::system::error_code;
using rendezvous::DaemonStatus;
using rendezvous::RunStatus;

// If a screen is empty for longer, it shows what is waited for.
constexpr Milliseconds kFirstAnswer{500};

// The status of a run from its record, if its agents do not answer.
RunStatus from_record(const PastRun& run, const std::string& mute) {
  RunStatus status;
  status.run_id = run.record.run_id;
  status.state = "no answer";
  status.max_restarts = run.record.max_restarts;
  status.waiting_for = mute;
  return status;
}

// The first agent of a launcher reports the run; the others add their nodes, if they know only
// their own.
void add_run(DaemonStatus& all, const PastRun& run, const std::vector<AgentAnswer>& answers) {
  const std::size_t before = all.runs.size();
  for (const AgentAnswer& answer : answers) {
    if (!answer.text) continue;
    auto status = rendezvous::decode_status(*answer.text);
    if (!status || status->runs.empty()) continue;
    if (all.runs.size() == before) {
      all.runs.push_back(std::move(status->runs.front()));
      continue;
    }
    auto& nodes = all.runs.back().nodes;
    for (auto& node : status->runs.front().nodes) nodes.push_back(std::move(node));
  }
  const std::string mute = mute_text(run, answers);
  if (mute.empty()) return;  // An agent that is not there ends at this moment.
  if (all.runs.size() == before) return all.runs.push_back(from_record(run, mute));
  const auto since = std::max<std::int64_t>(std::time(nullptr) - run.record.started, 0);
  all.runs.back().events.push_back(
      {.at_s = static_cast<double>(since), .is_trouble = true, .text = mute});
}

// The agents of all runs here, queried at once.
class Survey {
 public:
  Survey(boost::asio::io_context& io, std::string run_id, OnStatus handler)
      : run_id_(std::move(run_id)), handler_(std::move(handler)) {
    std::vector<AgentQuestion> questions;
    for (PastRun& run : past_runs()) {
      if (!run_id_.empty() && run.record.run_id != run_id_) continue;
      const std::vector<std::string> windows = windows_of(run);
      if (windows.empty()) continue;
      for (const std::string& path : windows) questions.push_back({path, R"({"ask":"watch"})"});
      runs_.push_back({std::move(run), windows.size()});
    }
    if (questions.empty()) {
      boost::asio::post(io, guarded([this] { finish({}); }));
      return;
    }
    query_ = async_query_windows(io, questions,
                                 [this](std::vector<AgentAnswer> all) { finish(std::move(all)); });
  }

 private:
  struct QueriedRun {
    PastRun run;
    std::size_t agents;
  };

  std::function<void()> guarded(std::function<void()> act) {
    return [alive = std::weak_ptr(alive_), act = std::move(act)] {
      if (alive.lock()) act();
    };
  }

  void finish(std::vector<AgentAnswer> answers) {
    DaemonStatus all;
    auto next = std::make_move_iterator(answers.begin());
    for (const QueriedRun& pending : runs_) {
      const auto end = next + static_cast<std::ptrdiff_t>(pending.agents);
      add_run(all, pending.run, {next, end});
      next = end;
    }
    const OnStatus handler = std::move(handler_);  // The handler may destroy this object.
    if (!all.runs.empty() || run_id_.empty()) return handler(std::move(all));
    handler(Failure{Errc::kNotFound, "no run '" + run_id_ +
                                         "' of yours is in progress on this machine; " +
                                         "-e HOST[:PORT] queries a daemon"});
  }

  const std::string run_id_;
  OnStatus handler_;
  std::vector<QueriedRun> runs_;
  std::shared_ptr<void> query_;
  std::shared_ptr<const bool> alive_ = std::make_shared<const bool>(true);
};

// Keys, the clock and answers in one loop: nothing here waits for an answer.
class Top {
 public:
  Top(const TopOptions& options, const StatusSource& source) : options_(options), source_(source) {
    view_.style = output_style();
    fetch();
  }

  Result<void> run() {
    io_.run_for(kFirstAnswer);  // Before the screen is opened: the first answer may be a failure.
    if (failure_) return *failure_;
    auto screen = FullScreen::open();
    if (!screen) return screen.error();
    screen_ = std::move(*screen);
    keys_.assign(::dup(FullScreen::keys_fd()));
    signals_.assign(::dup(screen_->signals_fd()));
    await_keys();
    await_signals();
    if (status_ && !timer_runs_) fetch_later();
    draw();
    io_.restart();
    io_.run();
    screen_.reset();
    if (failure_) return *failure_;
    return {};
  }

 private:
  void fetch() {
    query_ = source_(io_, [this](Result<DaemonStatus> status) { take(std::move(status)); });
  }

  void fetch_later() {
    timer_runs_ = true;
    timer_.expires_after(options_.interval);
    timer_.async_wait([this](error_code error) {
      if (error) return;
      view_.paused ? fetch_later() : fetch();
    });
  }

  void take(Result<DaemonStatus> status) {
    if (!status && !status_) {  // There is nothing to show.
      failure_ = status.error();
      return io_.stop();
    }
    complaint_ = status ? "" : status.error().context;
    if (status) status_ = std::move(*status);
    view_.run = std::min(view_.run, std::max<std::size_t>(status_->runs.size(), 1) - 1);
    if (!screen_) return io_.stop();
    draw();
    fetch_later();
  }

  void await_keys() {
    keys_.async_wait(stream_descriptor::wait_read, [this](error_code error) {
      if (error) return;
      const auto bytes = FullScreen::take_bytes();
      if (!bytes) return io_.stop();
      press(parser_.take(*bytes));
      escape_.cancel();
      if (parser_.is_waiting()) await_escape();
      await_keys();
    });
  }

  void await_escape() {
    escape_.expires_after(KeyParser::kEscapeLimit);
    escape_.async_wait([this](error_code error) {
      if (!error && parser_.is_waiting()) press(parser_.expired());
    });
  }

  void await_signals() {
    signals_.async_wait(stream_descriptor::wait_read, [this](error_code error) {
      if (error) return;
      if (!screen_->take_signals()) return io_.stop();
      draw();
      await_signals();
    });
  }

  void press(const std::vector<Key>& keys) {
    for (const Key key : keys) {
      if (key == Key::kQuit) return io_.stop();
      press(key);
    }
    if (!keys.empty()) draw();
  }

  void press(Key key) {
    const std::size_t runs = status_ ? status_->runs.size() : 0;
    const std::size_t nodes = view_.run < runs ? status_->runs[view_.run].nodes.size() : 0;
    switch (key) {
      case Key::kUp:
        if (view_.chosen > 0) --view_.chosen;
        break;
      case Key::kDown:
        if (view_.chosen + 1 < nodes) ++view_.chosen;
        break;
      case Key::kOpen: {
        if (!status_) break;
        const std::string node = chosen_node(*status_, view_);
        view_.open_node = view_.open_node == node ? "" : node;
        break;
      }
      case Key::kClose: view_.open_node.clear(); break;
      case Key::kNext:
        view_.run = runs == 0 ? 0 : (view_.run + 1) % runs;
        view_.chosen = 0;
        break;
      case Key::kOrder:
        view_.order = view_.order == TopOrder::kRank ? TopOrder::kLate : TopOrder::kRank;
        break;
      case Key::kHelp: view_.help = !view_.help; break;
      case Key::kPause: view_.paused = !view_.paused; break;
      case Key::kQuit: break;
    }
  }

  void draw() {
    const FullScreen::Size size = screen_->size();
    view_.style.columns = size.columns;
    view_.lines = std::max(size.lines, 3);
    std::vector<std::string> lines =
        status_ ? top_screen(*status_, view_) : std::vector<std::string>{" waiting for an answer"};
    if (!complaint_.empty()) {
      const auto columns = static_cast<std::size_t>(size.columns);
      lines.back() =
          view_.style.paint(clipped(" " + cell_text(complaint_), columns, view_.style.utf8), "31");
    }
    screen_->draw(lines);
  }

  const TopOptions& options_;
  const StatusSource& source_;
  boost::asio::io_context io_{1};
  std::unique_ptr<FullScreen> screen_;
  stream_descriptor keys_{io_}, signals_{io_};
  boost::asio::steady_timer timer_{io_}, escape_{io_};
  bool timer_runs_ = false;
  KeyParser parser_;
  std::shared_ptr<void> query_;         // The query in progress, or the last.
  std::optional<DaemonStatus> status_;  // The last one received.
  std::optional<Failure> failure_;      // Of the first query.
  TopView view_;
  std::string complaint_;
};

void print_once(const DaemonStatus& status, bool as_json) {
  if (as_json) {
    write_output(rendezvous::encode_indented(status));
    return;
  }
  TopView view{.style = output_style()};
  const std::size_t runs = std::max<std::size_t>(status.runs.size(), 1);
  for (view.run = 0; view.run < runs; ++view.run) {
    if (view.run > 0) write_output("\n");
    for (const std::string& line : top_screen(status, view)) write_output(line + "\n");
  }
}

Result<DaemonStatus> status_of(const StatusSource& source) {
  boost::asio::io_context io{1};
  std::optional<Result<DaemonStatus>> result;
  const auto pending = source(io, [&](Result<DaemonStatus> status) {
    result = std::move(status);
    io.stop();
  });
  io.run();
  if (!result) return Failure{Errc::kPeerSilent, "there is no answer"};
  return std::move(*result);
}

}  // namespace

StatusSource runs_of_this_machine(std::string run_id) {
  return [run_id = std::move(run_id)](boost::asio::io_context& io, OnStatus handler) {
    return std::make_shared<Survey>(io, run_id, std::move(handler));
  };
}

Result<void> run_top(const TopOptions& options, const StatusSource& source) {
  if (!options.once && !options.json && can_redraw()) return Top(options, source).run();
  auto status = status_of(source);
  if (!status) return status.error();
  print_once(*status, options.json);
  return {};
}

}  // namespace ddprun::launcher
