#include "launcher/watch/top.h"

#include <algorithm>
#include <chrono>

#include "common/system/standard_output.h"
#include "launcher/watch/terminal.h"
#include "launcher/watch/top_screen.h"
#include "launcher/watch/window_client.h"

namespace ddprun::launcher {
namespace {

using rendezvous::DaemonStatus;
using Clock = std::chrono::steady_clock;
using Key = FullScreen::Key;

// Of the agents of one launcher the first tells of the run; the others add their nodes, where they
// know of none but themselves.
void add_run(DaemonStatus& all, const PastRun& run) {
  const std::size_t before = all.runs.size();
  for (const std::string& path : windows_of(run)) {
    const auto answer = ask_window(path, R"({"ask":"watch"})");
    if (!answer) continue;  // It ends at this moment.
    auto status = rendezvous::decode_status(*answer);
    if (!status || status->runs.empty()) continue;
    if (all.runs.size() == before) {
      all.runs.push_back(std::move(status->runs.front()));
      continue;
    }
    auto& nodes = all.runs.back().nodes;
    for (auto& node : status->runs.front().nodes) nodes.push_back(std::move(node));
  }
}

class Top {
 public:
  Top(const TopOptions& options, const StatusSource& source, FullScreen& screen,
      DaemonStatus status)
      : options_(options), source_(source), screen_(screen), status_(std::move(status)) {
    view_.style = output_style();
  }

  void run() {
    TimePoint due = Clock::now() + options_.interval;
    for (;;) {
      draw();
      const auto left = std::chrono::ceil<Milliseconds>(due - Clock::now());
      const Key key = screen_.wait(std::max(left, Milliseconds(0)));
      if (key == Key::kQuit) return;
      press(key);
      if (Clock::now() < due) continue;
      if (!view_.paused) fetch();
      due = Clock::now() + options_.interval;
    }
  }

 private:
  void fetch() {
    auto status = source_();
    complaint_ = status ? "" : status.error().context;
    if (status) status_ = std::move(*status);
    view_.run = std::min(view_.run, std::max<std::size_t>(status_.runs.size(), 1) - 1);
  }

  void draw() {
    const FullScreen::Size size = screen_.size();
    view_.style.columns = size.columns;
    view_.lines = std::max(size.lines, 3);
    std::vector<std::string> lines = top_screen(status_, view_);
    if (!complaint_.empty()) {
      const auto columns = static_cast<std::size_t>(size.columns);
      lines.back() = view_.style.paint(fitted(" " + plain(complaint_), columns), "31");
    }
    screen_.draw(lines);
  }

  void press(Key key) {
    const bool has_run = view_.run < status_.runs.size();
    const std::size_t nodes = has_run ? status_.runs[view_.run].nodes.size() : 0;
    switch (key) {
      case Key::kUp:
        if (view_.chosen > 0) --view_.chosen;
        break;
      case Key::kDown:
        if (view_.chosen + 1 < nodes) ++view_.chosen;
        break;
      case Key::kOpen: {
        const std::string node = chosen_node(status_, view_);
        view_.open_node = view_.open_node == node ? "" : node;
        break;
      }
      case Key::kClose: view_.open_node.clear(); break;
      case Key::kNext:
        view_.run = status_.runs.empty() ? 0 : (view_.run + 1) % status_.runs.size();
        view_.chosen = 0;
        break;
      case Key::kOrder:
        view_.order = view_.order == TopOrder::kRank ? TopOrder::kLate : TopOrder::kRank;
        break;
      case Key::kHelp: view_.help = !view_.help; break;
      case Key::kPause: view_.paused = !view_.paused; break;
      default: break;
    }
  }

  const TopOptions& options_;
  const StatusSource& source_;
  FullScreen& screen_;
  DaemonStatus status_;
  TopView view_;
  std::string complaint_;
};

void print_once(const DaemonStatus& status, bool json) {
  if (json) {
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

}  // namespace

Result<DaemonStatus> status_of_this_machine(const std::string& run_id) {
  DaemonStatus all;
  for (const PastRun& run : past_runs()) {
    if (run_id.empty() || run.record.run_id == run_id) add_run(all, run);
  }
  if (!all.runs.empty() || run_id.empty()) return all;
  return Failure{Errc::kNotFound, "no run '" + run_id +
                                      "' of yours is in progress on this machine; " +
                                      "-e HOST[:PORT] queries a daemon"};
}

Result<void> run_top(const TopOptions& options, const StatusSource& source) {
  auto status = source();
  if (!status) return status.error();
  if (options.once || options.json || !can_redraw()) {
    print_once(*status, options.json);
    return {};
  }
  const auto screen = FullScreen::open();
  if (!screen) return screen.error();
  Top(options, source, **screen, std::move(*status)).run();
  return {};
}

}  // namespace ddprun::launcher
