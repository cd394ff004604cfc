#pragma once
// The journal in etcd, for daemons on several hosts of which one leads at a time. Each write names
// the term of this daemon's leadership, and etcd refuses it once another one leads.
//
// PREFIX/leader names the leader. It is created under the leader's lease; its revision is the term.
//
// PREFIX/data/TERM/SEQUENCE are parts of the journal's bytes, in their order.
//
// PREFIX/manifest names the part with which the journal begins; older ones are deleted with the
// same write.
//
// A leader begins its term with a snapshot, so that no journal has parts of two terms. A snapshot
// that does not fit into one write becomes the journal's beginning with its last one.

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <deque>
#include <memory>

#include "rendezvous/etcd/etcd_election.h"
#include "rendezvous/journal/journal.h"

namespace ddprun::rendezvous {

class EtcdLog : public RecordLog {
 public:
  struct Handlers {
    std::function<void(Journal)> on_lead;                 // Once; what former leaders wrote.
    std::function<void(const std::string& why)> on_over;  // This daemon must not go on.
  };

  EtcdLog(boost::asio::io_context& io, const EtcdOptions& options);
  void start(Handlers handlers);

  void append(std::string records, std::function<void()> done) override;
  void replace(std::string snapshot) override;
  bool wants_snapshot() const override;
  std::optional<std::string> trouble() const override { return trouble_; }
  // By what this daemon leads, and since when; once it does.
  const std::string& leader_key() const { return election_.key(); }
  Term term() const { return term_; }

  bool may_decide(TimePoint now) const override { return election_.may_decide(now); }
  void leave(std::function<void()> done) override { election_.resign(std::move(done)); }

 private:
  struct Operation {
    std::string bytes;
    std::size_t written = 0;
    bool snapshot = false;
    std::vector<std::function<void()>> done;
  };

  using Take = std::function<Result<void>(const std::string& body)>;

  void send(const etcd::Request& request, const Take& then);
  void load(Term term);
  void load_parts(const std::string& first);
  void take_part(const etcd::Range& range);
  void write();
  void write_manifest();
  void commit(const etcd::Request& request, std::function<void()> then);
  std::string take_bytes(std::size_t& finished);
  void finish(std::size_t count);
  std::string data_key(Term term, std::int64_t sequence) const;

  const EtcdOptions options_;
  Handlers handlers_;
  EtcdElection election_;
  EtcdClient client_;
  boost::asio::steady_timer retry_;
  Term term_ = 0;
  std::int64_t sequence_ = 0;  // Of the next part.
  std::int64_t first_ = 0;     // Of the snapshot that is being written.
  std::string loaded_, loaded_end_;
  std::deque<Operation> operations_;
  bool begun_ = false;  // The term's first snapshot has been requested.
  bool writing_ = false;
  std::size_t size_ = 0, snapshot_size_ = 0;
  std::optional<std::string> trouble_;
};

}  // namespace ddprun::rendezvous
