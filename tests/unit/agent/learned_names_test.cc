#include "agent/workers/learned_names.h"

#include <stdlib.h>

#include <boost/asio/io_context.hpp>
#include <catch2/catch.hpp>
#include <random>
#include <string>

#include "agent/workers/import_notes.h"
#include "tests/fuzz/agent/learned_fuzz.h"

namespace ddprun::agent {
namespace {

using namespace std::chrono_literals;
using Words = std::vector<std::string>;

const std::string kHead = "ddprun preload 2\npython3 train.py\n";

TEST_CASE("only commands of Python have a list, whatever their words") {
  boost::asio::io_context loop;
  ::setenv("XDG_CACHE_HOME", "/nonexistent", 1);
  CHECK(ImportNotes(loop, "notes", {"./prog", "x", "-m"}).variables_of_worker().empty());
  CHECK(ImportNotes(loop, "", {"python3", "-u", "train.py"}).variables_of_worker().empty());
  CHECK_FALSE(
      ImportNotes(loop, "notes", {"python3", "-u", "train.py"}).variables_of_worker().empty());
  ::unsetenv("XDG_CACHE_HOME");
}

TEST_CASE("what is noted is added in its order, once") {
  LearnedNames list = LearnedNames::parse(kHead + "torch\n");
  CHECK(list.add("torch\ntorch.nn\nnumpy\ntorch.nn\n") == 2);
  CHECK(list.names() == Words{"torch", "torch.nn", "numpy"});
  CHECK(list.add("numpy\n") == 0);
}

TEST_CASE("an import that has failed is not learned") {
  LearnedNames list;
  CHECK(list.add("apex\napex.amp\nnumpy\n-apex\n-apex.amp\n") == 1);
  CHECK(list.names() == Words{"numpy"});
}

TEST_CASE("the last line of a worker that was killed may be cut") {
  LearnedNames list;
  CHECK(list.add("numpy\ntorch.nn.par") == 1);
  CHECK(list.names() == Words{"numpy"});
}

TEST_CASE("what must not be imported before a fork is not learned again") {
  LearnedNames list = LearnedNames::parse(kHead + "torch\nwandb\n!wandb\n");
  CHECK(list.names() == Words{"torch"});
  CHECK(list.add("wandb\n") == 0);
  CHECK(list.text("python3 train.py") == kHead + "torch\n!wandb\n");
}

TEST_CASE("the seconds of slow packages are kept, for the doctor") {
  const std::string text = kHead + "torch\n!wandb\n~torch 2.31\n~numpy 1.04\n";
  LearnedNames list = LearnedNames::parse(text);
  CHECK(list.slow() == Words{"torch 2.31", "numpy 1.04"});
  CHECK(list.forbidden() == Words{"wandb"});
  CHECK(list.names() == Words{"torch"});
  CHECK(list.text("python3 train.py") == text);
  for (const char* bad : {"~torch", "~torch two", "~ 2.3", "~a b 2.3", "~torch 1234567890123"}) {
    CHECK(LearnedNames::parse(kHead + bad + "\n").slow().empty());
  }
}

TEST_CASE("variables that had changed before an import are kept, once") {
  LearnedNames list;
  CHECK(list.add("=OMP_NUM_THREADS\ntorch\n=OMP_NUM_THREADS\n=odd name\n") == 1);
  LearnedNames read = LearnedNames::parse(list.text("p"));
  CHECK(read.add("=HF_HOME\n") == 0);
  CHECK(read.text("p") == "ddprun preload 2\np\ntorch\n=OMP_NUM_THREADS\n=HF_HOME\n");
}

TEST_CASE("a list is read as it was written") {
  LearnedNames list;
  list.add("torch\nnumpy\n");
  CHECK_FALSE(LearnedNames::parse(list.text("p")).whole());
  list.mark_whole();
  const LearnedNames read = LearnedNames::parse(list.text("a program\nwith a line end"));
  CHECK(read.whole());
  CHECK(read.names() == list.names());
}

TEST_CASE("a damaged list is none, and a line that is no name is left out") {
  for (const std::string& text :
       {std::string(), std::string("\xff\0", 2), std::string("ddprun preload 1\np\ntorch\n"),
        std::string("ddprun preload 2"), std::string("torch\n")}) {
    CHECK(LearnedNames::parse(text).names().empty());
  }
  const std::string odd = "1a\na b\n.a\n!\n-a\n" + std::string(201, 'x') + "\na\xc3\xbc\nb\n";
  CHECK(LearnedNames::parse(kHead + odd).names() == Words{"b"});
}

TEST_CASE("a list has a limit") {
  std::string notes;
  for (std::size_t i = 0; i < LearnedNames::kNamesMax + 5; ++i) {
    notes += "m" + std::to_string(i) + "\n";
  }
  LearnedNames list;
  CHECK(list.add(notes) == LearnedNames::kNamesMax);
  CHECK(LearnedNames::parse(kHead + notes).names().size() == LearnedNames::kNamesMax);
}

TEST_CASE("notes are read when none was added since the last look, and again if more come") {
  NotesWatch watch;
  CHECK_FALSE(watch.look(0));
  CHECK_FALSE(watch.look(100));
  CHECK_FALSE(watch.look(200));
  CHECK(watch.look(200));
  CHECK_FALSE(watch.look(200));
  CHECK_FALSE(watch.look(300));
  CHECK(watch.look(300));
}

TEST_CASE("notes are looked at less and less often while none is added") {
  NotesWatch watch;
  CHECK(watch.next() == 2s);
  watch.look(100), watch.look(100);
  CHECK(watch.next() == 2s);
  for (int i = 0; i < 3; ++i) watch.look(100);
  CHECK(watch.next() == 16s);
  for (int i = 0; i < 30; ++i) watch.look(100);
  CHECK(watch.next() == 300s);
}

TEST_CASE("any bytes are a list and notes that can be kept", "[fuzz]") {
  const std::string real = kHead + "torch\n!wandb\ntorch.nn\n.\ntorch.nn\n-torch.nn\nnumpy\nx";
  std::mt19937 random(7);
  for (int i = 0; i < 20'000; ++i) {
    std::string bytes = real;
    for (unsigned n = random() % 8; n > 0; --n) {
      const std::size_t at = random() % bytes.size();
      random() % 2 == 0 ? void(bytes[at] = static_cast<char>(random()))
                        : void(bytes.insert(at, 1, "\n!-.a"[random() % 5]));
    }
    fuzz::fuzz_learned(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
  }
  SUCCEED("every promise of learned_fuzz.cc held");
}

}  // namespace
}  // namespace ddprun::agent
