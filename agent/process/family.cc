#include "agent/process/family.h"

#include <algorithm>
#include <map>
#include <set>

namespace ddprun::agent {
namespace {

bool is_stranger(const FamilyHead& head, const FamilyMember& process) {
  const TickSpan& born = head.started;
  const bool another =
      born.until != 0 && (process.started < born.from || process.started > born.until);
  return another || process.session != process.pid;
}

}  // namespace

std::vector<FamilyMember> families_of(const std::vector<FamilyHead>& heads,
                                      const std::vector<FamilyMember>& all,
                                      const std::function<bool(int pid)>& is_hidden) {
  std::map<int, const FamilyHead*> by_pid;
  for (const FamilyHead& head : heads) by_pid[head.pid] = &head;
  for (const FamilyMember& process : all) {
    const auto head = by_pid.find(process.pid);
    if (head != by_pid.end() && is_stranger(*head->second, process)) by_pid.erase(head);
  }
  std::set<int> taken;
  for (const FamilyMember& process : all) {
    for (const int number : {process.pid, process.group, process.session}) {
      const auto head = by_pid.find(number);
      if (head == by_pid.end()) continue;
      if (!head->second->reaped || is_hidden(process.pid)) taken.insert(process.pid);
    }
  }
  for (std::size_t before = 0; before != taken.size();) {
    before = taken.size();
    for (const FamilyMember& process : all) {
      if (taken.contains(process.parent)) taken.insert(process.pid);
    }
  }
  std::vector<FamilyMember> found;
  std::copy_if(all.begin(), all.end(), std::back_inserter(found), [&](const FamilyMember& member) {
    return taken.contains(member.pid) && !member.dead;
  });
  return found;
}

}  // namespace ddprun::agent
