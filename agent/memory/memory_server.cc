#include "agent/memory/memory_server.h"

#include <fcntl.h>
#include <sys/inotify.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <csignal>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "agent/memory/memory_files.h"
#include "agent/memory/memory_link.h"
#include "agent/memory/memory_source.h"
#include "agent/memory/memory_wire.h"
#include "common/exit_status.h"
#include "common/system/folder.h"
#include "common/system/limits.h"
#include "common/system/log.h"
#include "common/text/figures.h"
#include "rendezvous/net/connect.h"
#include "rendezvous/net/listener.h"
#include "rendezvous/relay/relay_dial.h"

namespace ddprun::agent::memory {
namespace {

using boost::asio::posix::stream_descriptor;
using rendezvous::Link;
using rendezvous::NodeId;
using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr int kNice = 10;
constexpr auto kSettle = 20ms;         // From a change to the snapshot that has it.
constexpr auto kSilenceMax = 30s;      // Of a peer that owes an answer.
constexpr auto kFillSilenceMax = 10s;  // The workers of a whole node wait for it.
constexpr auto kComplainAfter = 5s;
constexpr Milliseconds kRelayLimit{12'000};  // The daemon gives up before, with a reason.
constexpr auto kProgressEvery = 1s;
constexpr Milliseconds kRetryFirst{50};  // Doubled each time, up to:
constexpr Milliseconds kRetryMax{1000};
constexpr auto kLeaveLimit = 1500ms;  // The launcher waits for two seconds.
constexpr std::size_t kLinksMax = 1024;

// One connection from or to another memory server, from the Open that begins it.
struct Peer {
  std::shared_ptr<Link> link;
  boost::asio::steady_timer silence;
  Duration silence_max{0};    // How long it may owe an answer; 0: it owes none.
  std::string name = {};      // Of the folder in copies/ that it is about.
  std::string snapshot = {};  // The folder that it is sent; empty: none.
  std::unique_ptr<Source> source{};
  std::unique_ptr<Staging> staging{};  // Of a sink.
  std::vector<Entry> entries{};        // Of an Index that is not whole yet.
  std::uint64_t announced = 0;         // Bytes of those.
};

class MemoryServer {
 public:
  explicit MemoryServer(const MemoryServerOptions& options)
      : options_(options),
        own_(options.base + "/own"),
        agent_(loop_, ::fcntl(options.agent_fd, F_DUPFD_CLOEXEC, 0)),
        changes_(loop_),
        settle_(loop_),
        retry_(loop_),
        leave_signal_(loop_, kLeaveSignal),
        leave_limit_(loop_) {}

  int run() {
    for (const std::string& left : leftovers()) remove_tree(left);
    for (const std::string& name : names_in(options_.base + "/copies").names) {
      committed_[name] = Clock::now();
    }
    if (options_.listening_fd >= 0) {
      if (const auto opened = listen(); !opened) return fail(opened.error());
    }
    if (const auto watched = watch(); !watched) return fail(watched.error());
    await_agent();
    await_leave();
    report({Report::Kind::kStarted});
    loop_.run();
    return kExitOk;
  }

 private:
  int fail(const Failure& failure) {
    log::error(to_string(failure) + "; the memory folder is not copied");
    return kExitFailed;
  }

  // Of a predecessor that was killed.
  std::vector<std::string> leftovers() const {
    std::vector<std::string> all;
    for (const std::string& folder : folders_of(options_.base)) {
      const std::string name = folder.substr(std::min(folder.size(), options_.base.size() + 1));
      if (name.starts_with("snapshot-") && name.find('/') == std::string::npos) {
        all.push_back(folder);
      }
    }
    return all;
  }

  Result<void> listen() {
    rendezvous::ListenOptions listening;
    listening.listening_fd = ::fcntl(options_.listening_fd, F_DUPFD_CLOEXEC, 0);
    listening.token = options_.token;
    listening.connections_max = kLinksMax;
    listening.handshakes_max = kLinksMax;
    auto listener =
        rendezvous::Listener::open(loop_, std::move(listening),
                                   [this](std::shared_ptr<Link> link) { accept(std::move(link)); });
    if (!listener) return listener.error();
    listener_ = std::move(*listener);
    return {};
  }

  // --- the agent ---

  void await_agent() {
    agent_.async_wait(stream_descriptor::wait_read, [this](const boost::system::error_code& ec) {
      if (ec) return;
      std::array<char, kDatagramMax> text;
      const ssize_t size =
          ::recv(agent_.native_handle(), text.data(), text.size(), MSG_DONTWAIT | MSG_TRUNC);
      if (size == 0) return loop_.stop();
      if (size > 0 && static_cast<std::size_t>(size) <= text.size()) {
        const auto order = decode_order({text.data(), static_cast<std::size_t>(size)});
        order ? take(*order) : log::debug(to_string(order.error()));
      }
      await_agent();
    });
  }

  void report(Report report) {
    const std::string text = encode(report);
    (void)::send(agent_.native_handle(), text.data(), text.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  }

  void take(const Order& order) {
    node_ = order.node;
    const bool moved = order.copy_to != copy_to_;
    copy_to_ = order.copy_to;
    own_host_ = order.host;
    own_address_ = order.address;
    daemon_host_ = order.daemon_host;
    daemon_port_ = order.daemon_port;
    one_port_ = order.one_port;
    if (moved) connecting_.reset(), failing_since_.reset(), relays_ = false;
    if (moved && out_) drop(out_, {Errc::kNotFound, "the node's copies go elsewhere now"});
    if (moved) direct_failure_.clear();
    if (order.fill && !fill_) fill(*order.fill);
    if (!order.fill && fill_) give_up_fill();
    connect();
  }

  // The node leaves a run that goes on: what has changed last is to be elsewhere before.
  void await_leave() {
    leave_signal_.async_wait([this](const boost::system::error_code& ec, int) {
      if (ec) return;
      leaves_ = true;
      if (dirty_) settled_ = true;
      copy();
      end_if_copied();
      leave_limit_.expires_after(kLeaveLimit);
      leave_limit_.async_wait([this](const boost::system::error_code& late) {
        if (!late) loop_.stop();
      });
    });
  }

  void end_if_copied() {
    const bool is_copying = out_ && (out_->source->is_offering() || dirty_);
    if (leaves_ && !is_copying) loop_.stop();
  }

  // --- changes of the node's folder ---

  Result<void> watch() {
    const int fd = ::inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    if (fd < 0) return errno_failure("watching " + own_);
    changes_.assign(fd);
    await_changes();
    changed();
    return {};
  }

  void await_changes() {
    changes_.async_wait(stream_descriptor::wait_read, [this](const boost::system::error_code& ec) {
      if (ec) return;
      std::array<char, kDatagramMax> events;
      while (::read(changes_.native_handle(), events.data(), events.size()) > 0) {
      }
      changed();
      await_changes();
    });
  }

  void changed() {
    if (std::exchange(dirty_, true)) return;
    report({.kind = Report::Kind::kChanged});
    settle_.expires_after(kSettle);
    settle_.async_wait([this](const boost::system::error_code& ec) {
      if (!ec) settled_ = true, copy();
    });
  }

  void add_watches() {
    constexpr std::uint32_t kEvents =
        IN_CLOSE_WRITE | IN_MOVED_TO | IN_MOVED_FROM | IN_DELETE | IN_CREATE | IN_ONLYDIR;
    for (const std::string& folder : folders_of(own_)) {
      if (::inotify_add_watch(changes_.native_handle(), folder.c_str(), kEvents) >= 0) continue;
      if (errno != ENOENT && errno != ENOTDIR && !std::exchange(warned_of_watches_, true)) {
        log::warning(to_string(errno_failure("watching " + folder)) +
                     "; changes in it are copied late");
      }
    }
  }

  // --- its copy on another node ---

  void connect() {
    if (!copy_to_ || out_ || connecting_ || fill_) return;
    retry_.cancel();
    if (needs_relay(*copy_to_)) relays_ = true;
    connecting_ = connect_to(*copy_to_, relays_, [this](Result<std::shared_ptr<Link>> link) {
      const auto connecting = std::move(connecting_);
      if (link) return opened(std::move(*link));
      if (relays_) return failed(unreachable(link.error()));
      if (daemon_port_ == 0) return failed(link.error());
      direct_failure_ = to_string(link.error());
      relays_ = true;
      connect();
    });
  }

  // Straight to the other node's memory server, or through the daemon.
  std::shared_ptr<void> connect_to(const rendezvous::MemoryPeer& peer, bool relayed,
                                   std::function<void(Result<std::shared_ptr<Link>>)> handler) {
    if (relayed) {
      return rendezvous::async_connect_relayed(
          loop_,
          {.host = daemon_host_,
           .port = static_cast<std::uint16_t>(daemon_port_),
           .token = options_.token,
           .timeout = kRelayLimit},
          {.run_id = options_.run_id, .node = peer.node, .port = peer.port}, std::move(handler));
    }
    return rendezvous::async_connect(loop_,
                                     {.host = peer.address,
                                      .port = static_cast<std::uint16_t>(peer.port),
                                      .token = options_.token},
                                     std::move(handler));
  }

  // Behind two routers two hosts may have the same address: straight on, a node would reach itself.
  bool needs_relay(const rendezvous::MemoryPeer& peer) const {
    const auto machine = [](const std::string& host) { return host.substr(0, host.find('/')); };
    const bool is_ours = !own_address_.empty() && peer.address == own_address_;
    const bool is_us = is_ours && machine(peer.host) != machine(own_host_);
    return daemon_port_ != 0 && (one_port_ || is_us);
  }

  Failure unreachable(const Failure& through_daemon) const {
    if (direct_failure_.empty()) return through_daemon;
    return {through_daemon.code,
            direct_failure_ + "; and through the rendezvous daemon: " + to_string(through_daemon)};
  }

  std::shared_ptr<Peer> make_peer(std::shared_ptr<Link> link) {
    return std::make_shared<Peer>(
        Peer{.link = std::move(link), .silence = boost::asio::steady_timer(loop_)});
  }

  void opened(std::shared_ptr<Link> link) {
    out_ = make_peer(std::move(link));
    out_->source = std::make_unique<Source>(loop_, out_->link, options_.rate);
    start(out_);
    out_->link->send(encode(Open{options_.run_id, node_, {}}));
    if (relays_ && relayed_to_ != copy_to_->node) {
      relayed_to_ = copy_to_->node;
      log::info("the memory folder is copied to " + copy_to_->host +
                " through the rendezvous daemon: " + why_relayed());
    }
    dirty_ = settled_ = true;  // The other node may have nothing yet.
    copy();
  }

  std::string why_relayed() const {
    if (one_port_) return "--one-port";
    return direct_failure_.empty() ? "it has the address of this node" : direct_failure_;
  }

  // A node that is lost, or a server that begins again, is no news before it lasts.
  void failed(const Failure& why) {
    const TimePoint now = Clock::now();
    relays_ = false;  // Perhaps it can be reached by now.
    if (!failing_since_) failing_since_ = now;
    log::debug(to_string(why));
    if (now - *failing_since_ >= kComplainAfter && !std::exchange(complained_, true)) {
      const std::string other = copy_to_ ? copy_to_->host : "another node";
      log::warning("the memory folder has not been copied to " + other + " for " +
                   took_text(duration_cast<std::chrono::microseconds>(now - *failing_since_)) +
                   ": " + to_string(why) + "; it is tried again");
    }
    retry_.expires_after(retry_after_);
    retry_after_ = std::min(2 * retry_after_, kRetryMax);
    retry_.async_wait([this](const boost::system::error_code& ec) {
      if (!ec) connect();
    });
  }

  // The next snapshot, if there is something new and nothing on its way.
  void copy() {
    if (fill_ || !settled_ || (out_ && out_->source->is_offering())) return;
    dirty_ = settled_ = false;
    add_watches();  // First: what changes after it is seen, and what changed before it is taken.
    account();
    if (!out_ || used_ > options_.bytes) return;
    auto snapshot = snapshot_of(own_, *out_);
    if (!snapshot) return drop(out_, snapshot.error());
    owe(*out_, kSilenceMax);
    out_->source->offer(out_->snapshot, std::move(*snapshot),
                        [this, peer = std::weak_ptr(out_),
                         began = Clock::now()](const Result<Committed>& committed) {
                          if (const auto one = peer.lock()) copied(one, committed, began);
                        });
  }

  void copied(const std::shared_ptr<Peer>& peer, const Result<Committed>& committed,
              TimePoint began) {
    owe(*peer, Duration(0));
    remove_tree(std::exchange(peer->snapshot, {}));
    if (!committed) return drop(peer, committed.error());
    complained_ = false;
    failing_since_.reset();
    retry_after_ = kRetryFirst;
    const auto ms = duration_cast<std::chrono::milliseconds>(Clock::now() - began);
    log::debug("copied " + std::to_string(committed->files) + " files, " +
               memory_text(committed->bytes) + ", in " + std::to_string(ms.count()) + " ms");
    report({.kind = Report::Kind::kCopied, .used = used_, .relayed = relays_});
    if (dirty_) report({.kind = Report::Kind::kChanged});  // Since that copy began.
    copy();
    end_if_copied();
  }

  Result<Snapshot> snapshot_of(const std::string& folder, Peer& peer) {
    peer.snapshot = options_.base + "/snapshot-" + std::to_string(++snapshots_);
    return take_snapshot(folder, peer.snapshot);
  }

  void account() {
    const std::uint64_t before = std::exchange(used_, occupied_bytes(own_));
    if (used_ != before) report({.kind = Report::Kind::kUsed, .used = used_});
    if (used_ <= options_.bytes) {
      warned_of_size_ = false;
    } else if (!std::exchange(warned_of_size_, true)) {
      log::warning("the memory folder " + own_ + " has " + memory_text(used_) + ", more than the " +
                   memory_text(options_.bytes) +
                   " of --memory-folder; the other nodes keep no copy of it until it is smaller");
    }
  }

  // --- all links ---

  void start(const std::shared_ptr<Peer>& peer) {
    peers_.push_back(peer);
    peer->link->start({
        .on_message =
            [this, weak = std::weak_ptr(peer)](std::string body) {
              if (const auto one = weak.lock()) take(one, body);
            },
        .on_closed =
            [this, weak = std::weak_ptr(peer)](const Failure& why) {
              if (const auto one = weak.lock()) closed(one, why);
            },
    });
  }

  // The peer owes answers from now on, each within `limit`; 0: it does not.
  void owe(Peer& peer, Duration limit) {
    peer.silence_max = limit;
    if (limit == Duration(0)) return static_cast<void>(peer.silence.cancel());
    peer.silence.expires_after(limit);
    peer.silence.async_wait([this, link = peer.link](const boost::system::error_code& ec) {
      if (!ec) silent(link);
    });
  }

  void silent(const std::shared_ptr<Link>& link) {
    for (const auto& peer : std::vector(peers_)) {
      if (peer->link == link) drop(peer, {Errc::kPeerSilent, "its memory server does not answer"});
    }
  }

  void drop(const std::shared_ptr<Peer> peer, const Failure& why) {
    peer->link->close();
    closed(peer, why);
  }

  void closed(const std::shared_ptr<Peer>& peer, const Failure& why) {
    if (std::erase(peers_, peer) == 0) return;
    peer->silence.cancel();
    if (!peer->snapshot.empty()) remove_tree(peer->snapshot);
    if (peer == filling_) return not_filled(why);
    if (peer != out_) return;
    out_.reset();
    failed(why);
  }

  void take(const std::shared_ptr<Peer>& peer, const std::string& body) {
    auto message = decode(body);
    if (!message) return drop(peer, message.error());
    if (peer->silence_max > Duration(0)) owe(*peer, peer->silence_max);
    Result<void> taken;
    if (peer->source) {
      taken = peer->source->take(*message);
    } else if (peer->staging) {
      taken = receive(peer, std::move(*message));
    } else if (const auto* open = std::get_if<Open>(&*message)) {
      taken = begin(peer, *open);
    } else {
      taken = Failure{Errc::kBadMessage, "a memory server began with something else than Open"};
    }
    if (!taken) {
      log::debug(to_string(taken.error()));
      drop(peer, taken.error());
    }
  }

  void accept(std::shared_ptr<Link> link) {
    const auto peer = make_peer(std::move(link));
    start(peer);
    owe(*peer, kSilenceMax);  // Its Open.
  }

  Result<void> begin(const std::shared_ptr<Peer>& peer, const Open& open) {
    if (open.run_id != options_.run_id) {
      return Failure{Errc::kBadMessage, "a memory server of run " + open.run_id + " has called"};
    }
    peer->name = folder_name(open.node);
    if (!open.fetch.empty()) return give(peer, open);
    owe(*peer, Duration(0));  // It may have nothing new for hours.
    for (const auto& other : std::vector(peers_)) {
      if (other != peer && other->staging && other->name == peer->name && other != filling_) {
        drop(other, {Errc::kNotFound, "another link of the same node"});
      }
    }
    const std::string workshop = options_.base + "/staging/" + peer->name;
    peer->staging = std::make_unique<Staging>(copy_path(peer->name), workshop);
    return {};
  }

  std::string copy_path(const std::string& name) const { return options_.base + "/copies/" + name; }

  // A node replaces one whose copy we have: it becomes the new node's.
  Result<void> give(const std::shared_ptr<Peer>& peer, const Open& open) {
    std::string found;
    for (const std::string& node : open.fetch) {
      const std::string name = folder_name(node);
      if (found.empty() && ::access(copy_path(name).c_str(), F_OK) == 0) found = name;
    }
    if (found.empty()) {
      peer->link->send(encode(Denial{"it has no copy of that node's folder"}));
      return {};
    }
    if (found != peer->name) {
      remove_tree(copy_path(peer->name));
      if (::rename(copy_path(found).c_str(), copy_path(peer->name).c_str()) != 0) {
        return errno_failure("renaming the copy " + found);
      }
    }
    auto snapshot = snapshot_of(copy_path(peer->name), *peer);
    if (!snapshot) return snapshot.error();
    peer->source = std::make_unique<Source>(loop_, peer->link, /*rate=*/0);
    peer->source->offer(peer->snapshot, std::move(*snapshot), [](const Result<Committed>&) {});
    return {};
  }

  // Of a sink: the files of one snapshot after the other.
  Result<void> receive(const std::shared_ptr<Peer>& peer, Message message) {
    Staging& staging = *peer->staging;
    Result<void> taken;
    if (auto* index = std::get_if<Index>(&message)) {
      if (peer->entries.size() + index->entries.size() > kFilesMax) {
        return Failure{Errc::kBadMessage, "a memory server offers too many files"};
      }
      for (const Entry& entry : index->entries) peer->announced += entry.bytes;
      std::move(index->entries.begin(), index->entries.end(), std::back_inserter(peer->entries));
      if (!index->last) return {};
      taken = want(*peer);
    } else if (const auto* piece = std::get_if<Piece>(&message)) {
      taken = staging.add(*piece);
      if (taken) peer->link->send(encode(Ack{}));
      if (peer == filling_) report_progress();
    } else if (const auto* skip = std::get_if<Skip>(&message)) {
      taken = staging.skip(skip->entry);
    } else if (const auto* refusal = std::get_if<Denial>(&message)) {
      return Failure{Errc::kNotFound, refusal->reason};
    } else {
      return Failure{Errc::kBadMessage, "a memory server sends what only its other end may"};
    }
    if (!taken) {
      peer->link->send(encode(Denial{to_string(taken.error())}));
      return taken;
    }
    if (staging.complete()) return commit(peer);
    return {};
  }

  Result<void> want(Peer& peer) {
    const std::uint64_t bytes = std::exchange(peer.announced, 0);
    if (bytes > options_.bytes) {
      return Failure{Errc::kBadOption, "keeping a copy of " + memory_text(bytes) +
                                           ", more than the " + memory_text(options_.bytes) +
                                           " of --memory-folder here"};
    }
    make_room(peer.name, bytes);
    const auto wants = peer.staging->begin(std::exchange(peer.entries, {}));
    if (!wants) return wants.error();
    for (const std::string& frame : encode_all<Lacks>(*wants)) peer.link->send(frame);
    return {};
  }

  // All copies together take twice what one may. The one that has not changed for longest goes.
  void make_room(const std::string& name, std::uint64_t bytes) {
    for (const std::string& other : names_in(options_.base + "/staging").names) {
      const bool is_open = std::any_of(peers_.begin(), peers_.end(), [&](const auto& peer) {
        return peer->staging && peer->name == other;
      });
      if (!is_open) remove_tree(options_.base + "/staging/" + other);
    }
    std::map<std::string, std::uint64_t> sizes;
    std::uint64_t all = bytes;
    for (const auto& [other, when] : committed_) {
      if (other != name) all += sizes[other] = occupied_bytes(copy_path(other));
    }
    while (all > 2 * options_.bytes && !sizes.empty()) {
      const auto oldest = std::min_element(sizes.begin(), sizes.end(), [&](auto& a, auto& b) {
        return committed_.at(a.first) < committed_.at(b.first);
      });
      log::warning("the copy of " + oldest->first + " is removed to make room for that of " + name);
      remove_tree(copy_path(oldest->first));
      committed_.erase(oldest->first);
      all -= oldest->second;
      sizes.erase(oldest);
    }
  }

  Result<void> commit(const std::shared_ptr<Peer>& peer) {
    const auto committed = peer->staging->commit();
    if (!committed) return committed.error();
    peer->link->send(encode(*committed));
    if (peer == filling_) {
      filled(*committed);
    } else {
      committed_[peer->name] = Clock::now();
    }
    return {};
  }

  // --- this node replaces another ---

  void fill(const rendezvous::MemoryFill& fill) {
    fill_ = fill;
    filling_began_ = Clock::now();
    fill_from(needs_relay(fill.from));
  }

  void fill_from(bool relayed) {
    fill_connecting_ =
        connect_to(fill_->from, relayed, [this, relayed](Result<std::shared_ptr<Link>> link) {
          const auto connecting = std::move(fill_connecting_);
          if (!link && (relayed || daemon_port_ == 0)) return not_filled(link.error());
          if (!link) return fill_from(/*relayed=*/true);
          fill_relayed_ = relayed;
          filling_ = make_peer(std::move(*link));
          filling_->staging = std::make_unique<Staging>(own_, options_.base + "/staging-own");
          start(filling_);
          owe(*filling_, kFillSilenceMax);
          filling_->link->send(encode(Open{options_.run_id, node_, fill_->as}));
        });
  }

  // So that the agent goes on waiting.
  void report_progress() {
    if (Clock::now() < next_progress_) return;
    next_progress_ = Clock::now() + kProgressEvery;
    report({.kind = Report::Kind::kFilling});
  }

  void filled(const Committed& committed) {
    const auto ms = duration_cast<std::chrono::milliseconds>(Clock::now() - filling_began_);
    log::info("the memory folder of the node that is replaced was fetched from " +
              fill_->from.host + (fill_relayed_ ? " through the rendezvous daemon" : "") + ": " +
              std::to_string(committed.files) + " files, " + memory_text(committed.bytes) +
              ", in " + std::to_string(ms.count()) + " ms");
    const auto peer = std::exchange(filling_, nullptr);
    std::erase(peers_, peer);
    peer->silence.cancel();
    peer->link->close();
    report({.kind = Report::Kind::kFilled});
    end_fill();
  }

  // The agent waits no longer: its workers may write into the folder, which is not to be exchanged.
  void give_up_fill() {
    const Failure why{Errc::kPeerSilent, "it took too long, or the round has ended"};
    fill_connecting_.reset();
    filling_ ? drop(filling_, why) : not_filled(why);
  }

  void not_filled(const Failure& why) {
    filling_.reset();
    log::warning("the memory folder of the node that is replaced could not be fetched from " +
                 fill_->from.host + ": " + to_string(why));
    report({.kind = Report::Kind::kNotFilled});
    end_fill();
  }

  void end_fill() {
    fill_.reset();
    remove_tree(options_.base + "/staging-own");
    dirty_ = settled_ = true;
    add_watches();
    connect();
  }

  const MemoryServerOptions& options_;
  const std::string own_;
  boost::asio::io_context loop_{1};
  std::unique_ptr<rendezvous::Listener> listener_;
  stream_descriptor agent_;
  stream_descriptor changes_;
  std::vector<std::shared_ptr<Peer>> peers_;    // All with open links.
  std::map<std::string, TimePoint> committed_;  // The copies here, by name.

  std::string node_;
  std::optional<rendezvous::MemoryPeer> copy_to_;
  std::string own_host_, own_address_;
  std::string daemon_host_;
  int daemon_port_ = 0;         // 0: it does not relay.
  bool one_port_ = false;       // Nothing goes straight to its node.
  bool relays_ = false;         // The copies go through it, or are tried that way.
  std::string direct_failure_;  // Why they do not go straight to copy_to_.
  NodeId relayed_to_;           // As the log has it.
  std::shared_ptr<void> connecting_;
  std::shared_ptr<Peer> out_;  // To copy_to_.
  std::optional<TimePoint> failing_since_;
  bool complained_ = false;  // That it fails.

  std::optional<rendezvous::MemoryFill> fill_;
  std::shared_ptr<void> fill_connecting_;
  std::shared_ptr<Peer> filling_;
  TimePoint filling_began_{};
  bool fill_relayed_ = false;
  TimePoint next_progress_{};

  bool dirty_ = false;    // Something has changed since the last snapshot, ...
  bool settled_ = false;  // ... kSettle ago.
  boost::asio::steady_timer settle_;
  boost::asio::steady_timer retry_;
  Milliseconds retry_after_ = kRetryFirst;
  boost::asio::signal_set leave_signal_;
  boost::asio::steady_timer leave_limit_;
  bool leaves_ = false;
  int snapshots_ = 0;
  std::uint64_t used_ = 0;
  bool warned_of_size_ = false;
  bool warned_of_watches_ = false;
};

}  // namespace

Result<MemoryListener> listen_for_memory_servers() {
  auto socket = rendezvous::listen_socket("", 0);
  if (!socket) return socket.error();
  const int port = rendezvous::local_port(socket->get());
  return MemoryListener{std::move(*socket), port};
}

int serve_memory(const MemoryServerOptions& options) {
  ::prctl(PR_SET_NAME, "ddprun-memory");
  (void)::setpriority(PRIO_PROCESS, 0, kNice);
  (void)raise_soft_limits();
  ::signal(SIGIO, SIG_IGN);  // A lease that is_being_written() holds may be broken.
  return MemoryServer(options).run();
}

}  // namespace ddprun::agent::memory
