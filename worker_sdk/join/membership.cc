#include "worker_sdk/join/membership.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

#include "common/archive/packed.h"
#include "worker_sdk/shm/shm_team.h"

namespace ddprun::worker_sdk {
namespace {

// Ranks may be threads of one process, as in tests.
struct EndedLives {
  std::mutex mutex;
  std::map<std::string, int> count;
};

EndedLives& all_lives() {
  static EndedLives* const lives = new EndedLives;  // Groups may end after static objects.
  return *lives;
}

std::string key_of(const Plan& plan) {
  const Rendezvous& at = plan.rendezvous;
  const int port = at.is_searched ? 0 : at.port;  // Each life may be at another one.
  return at.host + ":" + std::to_string(port) + " " + at.path + " " + plan.identity.run_id +
         " restart " + std::to_string(plan.identity.restart_count) + " rank " +
         std::to_string(plan.identity.rank);
}

}  // namespace

int ended_lives(const Plan& plan) {
  EndedLives& lives = all_lives();
  const std::lock_guard lock(lives.mutex);
  const auto found = lives.count.find(key_of(plan));
  return found == lives.count.end() ? 0 : found->second;
}

std::string life_prefix(const Plan& plan) {
  const int lives = plan.rendezvous.hosted_by_rank_0 ? 0 : ended_lives(plan);
  return lives == 0 ? "" : "/life " + std::to_string(lives + 1);
}

std::shared_ptr<void> begin_life(const Plan& plan) {
  return std::shared_ptr<void>(nullptr, [key = key_of(plan)](void*) {
    EndedLives& lives = all_lives();
    const std::lock_guard lock(lives.mutex);
    ++lives.count[key];
  });
}

namespace {

void blame(Table& table, int rank, const std::string& error) {
  table.backend.clear();
  table.culprit = rank;
  table.error = error;
}

std::string requested(const Table& table, int rank) {
  const Introduction& hello = table.hellos[static_cast<std::size_t>(rank)];
  return "rank " + std::to_string(rank) + " on " + hello.host + " requests the backend " +
         hello.backend;
}

std::string of_another_version(std::size_t rank, const Failure& why) {
  return "rank " + std::to_string(rank) + " is of another version: " + why.context;
}

}  // namespace

void fields(auto& a, archive::Is<Introduction> auto& m) {
  a("host", m.host), a("domain", m.domain), a("network", m.network), a("pid", m.pid);
  a("address", m.address), a("backend", m.backend);
}
void fields(auto& a, archive::Is<Table> auto& m) {
  a("backend", m.backend), a("culprit", m.culprit), a("error", m.error), a("hellos", m.hellos);
}
void fields(auto& a, archive::Is<SegmentName> auto& m) {
  a("pid", m.pid), a("fd", m.fd), a("inode", m.inode), a("bytes", m.bytes);
}
void fields(auto& a, archive::Is<Attachment> auto& m) {
  a("problem", m.problem), a("ended", m.ended);
}

std::string encode(const Introduction& hello) { return archive::packed<archive::Counted>(hello); }
std::string encode(const Table& table) { return archive::packed<archive::Counted>(table); }
std::string encode(const SegmentName& segment) {
  return archive::packed<archive::Counted>(segment);
}
std::string encode(const Attachment& attachment) {
  return archive::packed<archive::Counted>(attachment);
}
Result<Introduction> decode_introduction(std::string_view text) {
  return archive::unpacked<archive::Counted, Introduction>(text, "an introduction");
}
Result<Table> decode_table(std::string_view text) {
  return archive::unpacked<archive::Counted, Table>(text, "the table of ranks");
}
Result<SegmentName> decode_segment(std::string_view text) {
  return archive::unpacked<archive::Counted, SegmentName>(text, "the name of shared memory");
}
Result<Attachment> decode_attachment(std::string_view text) {
  return archive::unpacked<archive::Counted, Attachment>(text, "an attachment");
}

std::vector<std::vector<int>> hosts_of(const std::vector<Introduction>& hellos) {
  std::vector<std::vector<int>> hosts;
  std::map<std::string_view, std::size_t> seen;
  for (std::size_t r = 0; r < hellos.size(); ++r) {
    const auto [at, is_new] = seen.try_emplace(hellos[r].domain, hosts.size());
    if (is_new) hosts.emplace_back();
    hosts[at->second].push_back(static_cast<int>(r));
  }
  return hosts;
}

Table decide(std::vector<Introduction> hellos) {
  Table table;
  table.hellos = std::move(hellos);
  const Introduction& first = table.hellos.front();
  int stranger = -1;  // The first rank that cannot share memory with rank 0.
  for (std::size_t r = 0; r < table.hellos.size(); ++r) {
    const int rank = static_cast<int>(r);
    if (table.hellos[r].backend != first.backend) {
      blame(table, rank, requested(table, rank) + ", but " + requested(table, 0));
      return table;
    }
    if (stranger < 0 && table.hellos[r].domain != first.domain) stranger = rank;
  }
  std::size_t most = 0;  // Ranks on one host.
  for (const auto& host : hosts_of(table.hellos)) most = std::max(most, host.size());
  const bool too_many = most > static_cast<std::size_t>(kShmRanksMax);
  table.backend = first.backend;
  const bool any = first.backend == "auto" || first.backend == "cpu";
  if (any && stranger < 0) table.backend = "shm";
  if (any && stranger >= 0) table.backend = most > 1 ? "cpu" : "gloo";
  if (first.backend == "auto" && too_many) table.backend = "gloo";
  if (table.backend == "shm" && stranger >= 0) {
    blame(table, stranger,
          "the backend shm needs all ranks on one host, in the same namespaces and "
          "of the same user, which rank " +
              std::to_string(stranger) + " on " +
              table.hellos[static_cast<std::size_t>(stranger)].host + " is not");
  } else if ((table.backend == "shm" || table.backend == "cpu") && too_many) {
    blame(table, -1,
          "the backend " + first.backend + " is for at most " + std::to_string(kShmRanksMax) +
              " ranks on a host");
  }
  return table;
}

Table decide(const std::vector<std::string>& statements) {
  std::vector<Introduction> hellos;
  for (const std::string& text : statements) {
    auto hello = decode_introduction(text);
    if (!hello) {
      Table table;
      blame(table, static_cast<int>(hellos.size()),
            of_another_version(hellos.size(), hello.error()));
      return table;
    }
    hellos.push_back(std::move(*hello));
  }
  return decide(std::move(hellos));
}

Sharing decide_sharing(const std::vector<std::string>& statements, std::string_view backend) {
  Sharing sharing;
  sharing.shares = true;
  for (std::size_t r = 0; r < statements.size(); ++r) {
    const int rank = static_cast<int>(r);
    const auto attachment = decode_attachment(statements[r]);
    if (!attachment) {
      return {false, ErrorKind::mismatch, rank, of_another_version(r, attachment.error())};
    }
    if (attachment->ended >= 0) {
      return {false, ErrorKind::peer_lost, attachment->ended,
              "rank " + std::to_string(attachment->ended) + " ended before all had joined"};
    }
    if (attachment->problem.empty() || !sharing.shares) continue;
    sharing.shares = false;
    if (backend == "auto") continue;
    sharing.culprit = rank;
    sharing.error = "rank " + std::to_string(rank) + " cannot share memory: " + attachment->problem;
  }
  return sharing;
}

LocalPlace local_place(const std::vector<Introduction>& hellos, int rank) {
  const std::string& domain = hellos[static_cast<std::size_t>(rank)].domain;
  LocalPlace place{0, 0};
  for (int r = 0; r < static_cast<int>(hellos.size()); ++r) {
    if (hellos[static_cast<std::size_t>(r)].domain != domain) continue;
    ++place.size;
    if (r < rank) ++place.rank;
  }
  return place;
}

}  // namespace ddprun::worker_sdk
