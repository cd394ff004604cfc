#pragma once
// Fork servers of runs that have ended (--preload-keep): each as bytes in memory, in a file without
// a name, that a process called ddprun-kept holds. There is no list of them and no socket: they are
// found in /proc, whose files the kernel gives to the same user only. When a holder ends is the
// time of its file's last change, which each run that uses it moves on; runs that use it at the
// moment lock the file.
//
// The agent finds and uses them; the launcher starts holders (launcher/guard/holder.h); ddprunctl
// lists and ends them.

#include <chrono>
#include <cstdint>
#include <ctime>
#include <string>
#include <string_view>
#include <vector>

#include "common/error.h"
#include "common/system/descriptors.h"

namespace ddprun::agent {

constexpr const char* kHolderName = "ddprun-kept";
constexpr int kHolderFile = 3;  // The number of the file in a holder.

// What it is for. The first bytes of the file; all else in it is the fork server's own
// (python/startup/ddprun_preload/_image.py).
struct KeptFacts {
  std::string key;      // Of what has to be equal: kept_key().
  std::string program;  // Interpreter and program.
  int modules = 0;
  bool operator==(const KeptFacts&) const = default;
};
constexpr std::size_t kKeptFactsMax = std::size_t{64} << 10;

// At most kKeptFactsMax bytes; a longer program is cut.
std::string encode(KeptFacts facts);
// Bytes that follow the facts are ignored. Its file is of the same user, but maybe of another
// release: anything but facts is Errc::kBadMessage.
Result<KeptFacts> decode_kept_facts(std::string_view bytes);

struct KeptImage {
  int holder = 0;    // A process.
  UniqueFd process;  // The same, held.
  UniqueFd file;
  KeptFacts facts;
  std::uint64_t bytes = 0;  // Of memory.
  std::time_t until = 0;    // It is held; if it is in use then, for longer.
};

// Those of this user, the newest last.
std::vector<KeptImage> kept_images();
bool is_in_use(const KeptImage& image);

// Before another one with this key is held: ends the one that it replaces, and the oldest ones
// beyond kKeptMax in all, unless they are in use.
constexpr std::size_t kKeptMax = 4;
void make_room_for(const std::string& key);

// A file for another one; it cannot be opened by others.
Result<UniqueFd> make_image_file();
// Completes the file of a fork server that has been saved: nothing in it changes any more.
Result<void> seal_image(int file, const KeptFacts& facts);
bool is_sealed(int file);
Result<KeptFacts> facts_of(int file);

// Has it end so much later than now.
Result<void> keep_for(int file, std::chrono::minutes time);
std::time_t kept_until(int file);

// For the end of a run: that something is kept, until when, and how to end it.
std::string kept_sentence(int holder, int file);

}  // namespace ddprun::agent
