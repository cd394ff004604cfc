#pragma once
// Carries out what Leadership decides: requests a lease and the leader key from etcd, keeps both,
// and reports when this daemon begins and ceases to lead. Owned by etcd_log.

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <string>
#include <vector>

#include "rendezvous/etcd/etcd_client.h"
#include "rendezvous/etcd/leadership.h"

namespace ddprun::rendezvous {

struct EtcdOptions {
  std::vector<EtcdEndpoint> endpoints;
  EtcdAccess access = {};
  std::string prefix = "/ddprun";
  std::chrono::seconds lease{2};  // etcd may grant more, never less.
  std::string name;               // The leader's name, for people.
};

class EtcdElection {
 public:
  struct Handlers {
    std::function<void(Term)> on_lead;
    std::function<void(const std::string& why)> on_deposed;  // The last call of all.
  };

  EtcdElection(boost::asio::io_context& io, const EtcdOptions& options, Handlers handlers);
  void start() { step(TimePassed{}); }

  bool may_decide(TimePoint now) const { return leadership_.may_decide(now); }
  void fenced() { step(Fenced{}); }
  // Stops leading, without a call of on_deposed; `done` once another daemon may lead.
  void resign(std::function<void()> done);
  const std::string& key() const { return key_; }

 private:
  template <class Read>
  void send(const etcd::Request& request, Read read);
  void step(const LeadershipEvent& event);
  void act(const FindLeader&);
  void act(const GrantLease&);
  void act(const Campaign& campaign);
  void act(const RenewLease& renew);
  void act(const Lead& lead);
  void act(const StepDown& down);
  void act(const ReleaseLease& release);
  void arm();
  void log_once(const std::string& what);

  const EtcdOptions options_;
  const std::string key_;
  Handlers handlers_;
  EtcdClient client_;
  Leadership leadership_;
  boost::asio::steady_timer timer_;
  std::string last_logged_;
  std::function<void()> on_released_;
};

}  // namespace ddprun::rendezvous
