#pragma once
// Between the Coordinator and the world: nothing goes out before the records made with it are
// durable. Pure. Used by daemon/server over sockets and a RecordLog, and by the simulator.
//
//           an append takes longer than patience
//   open ──────────────────────────────────────────▶ stalled
//     ▲    decide; actions queue behind records         │    decide nothing; hold the messages,
//     └─────────────────────────────────────────────────┘    answer hello and heartbeat
//                  every append is durable
//
// When the gate opens again the nodes get time to return, as after a restart of the daemon, and the
// held messages are handled in their order. Only greetings come first, because an agent that closed
// its connection and came back on a new one was never lost. An agent that has not come back yet has
// time to do so.

#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rendezvous/coordinator/coordinator.h"

namespace ddprun::rendezvous {

class Gate {
 public:
  static constexpr Milliseconds kPatience{500};  // Much shorter than the silence after which
                                                 // agents reconnect.
  static constexpr std::size_t kHeldBytesMax = std::size_t{64} << 20;

  // `records`, unless empty, are to be appended now, and on_durable() called once they are durable,
  // in order. `actions` are to be carried out now, in order.
  struct Work {
    std::string records;
    std::vector<LinkAction> actions;
  };
  [[nodiscard]] Work replay(const Journal& journal, TimePoint now, const std::string& clock);
  [[nodiscard]] Work on_message(LinkId link, std::string_view body, TimePoint now,
                                std::string_view from = {});  // As the Coordinator's.
  [[nodiscard]] Work on_closed(LinkId link, TimePoint now);
  [[nodiscard]] Work on_tick(TimePoint now);
  [[nodiscard]] Work on_standstill(Milliseconds how_long, TimePoint now);
  std::vector<LinkId> quiet(TimePoint now) const;
  [[nodiscard]] Work on_reach(LinkId link, const Reach& reach, TimePoint now);
  [[nodiscard]] Work on_shutdown(int signal, TimePoint now);
  [[nodiscard]] Work on_durable(TimePoint now);

  std::optional<TimePoint> deadline() const;  // Of the next on_tick().
  bool stalled() const { return stalled_; }
  bool idle() const { return unwritten_.empty(); }  // Nothing waits for the log.
  const Coordinator& coordinator() const { return coordinator_; }
  std::vector<News> take_news() { return coordinator_.take_news(); }
  // As the Coordinator's.
  void keep_past() { coordinator_.keep_past(); }
  void serve_only(std::string run_id) { coordinator_.serve_only(std::move(run_id)); }
  void number_streams_from(std::uint64_t first) { coordinator_.number_streams_from(first); }
  std::vector<EndedRun> take_ended() { return coordinator_.take_ended(); }
  void remember(RunRecord record) { coordinator_.remember(std::move(record)); }
  void check_invariants() const;  // As the Coordinator's.

 private:
  struct Waiting {
    std::size_t after = 0;  // How many appends must be durable first.
    LinkAction action;
  };
  struct Held {
    LinkId link = 0;
    std::optional<std::string> body;  // Nothing: it was closed.
    std::string from{};
  };

  void pass(std::vector<LinkAction> actions, TimePoint now, Work& work);
  bool stalls(TimePoint now);
  Work hold(LinkId link, std::string_view body, std::string_view from);
  void receive(const Held& held, TimePoint now, Work& work);
  void resume(TimePoint now, Work& work);

  Coordinator coordinator_;
  std::deque<TimePoint> unwritten_;  // When each append that is not durable yet was begun.
  std::size_t appended_ = 0, durable_ = 0;
  std::deque<Waiting> waiting_;
  bool stalled_ = false;
  std::vector<Held> held_;
  std::size_t held_bytes_ = 0;
};

}  // namespace ddprun::rendezvous
