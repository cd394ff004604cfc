#include "agent/process/family.h"

#include <algorithm>
#include <map>
#include <set>

namespace ddprun::agent {
namespace {

bool is_stranger(const FamilyHead& head, const FamilyMember& process) {
  const TickSpan& start = head.started;
  const bool another =
      start.until != 0 && (process.started < start.from || process.started > start.until);
  return another || process.session != process.pid;
}

// A fork keeps its parent's arguments. Python's multiprocessing starts an interpreter instead if
// its start method is spawn: python -c "from multiprocessing.spawn import spawn_main; ...".
bool computes_for(const GroupMember& parent, const GroupMember& process) {
  return process.command == parent.command ||
         process.command.find(std::string(1, '\0') + "from multiprocessing.") != std::string::npos;
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

std::vector<int> signal_receivers(int leader, const std::vector<GroupMember>& group) {
  std::map<int, const GroupMember*> by_pid;
  for (const GroupMember& member : group) by_pid[member.pid] = &member;
  const auto receives = [&](const GroupMember& member) {
    const auto parent = by_pid.find(member.parent);
    const bool spared = member.pid != leader && parent != by_pid.end() && parent->second->handles &&
                        computes_for(*parent->second, member);
    return !spared;
  };
  std::vector<int> receivers;
  for (const GroupMember& member : group) {
    if (receives(member)) receivers.push_back(member.pid);
  }
  return receivers;
}

}  // namespace ddprun::agent
