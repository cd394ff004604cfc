#!/usr/bin/env bash
# Builds ddprun for 64-bit ARM (aarch64) on another Debian 12 machine: SDK, libddprun.so and programs. Runs in qemu the
# unit tests that are about numbers and formats, whose results must have the bits that they have here; two ranks that
# exchange arrays through libddprun.so; and of the programs what needs no workers.
#   deploy/cross.sh            all of this
#   deploy/cross.sh --sdk      without the programs
#   deploy/cross.sh --all      whatever else there is too: all tests; takes hours on two processors
# Installs Debian's cross compiler and qemu-user; the arm64 packages are unpacked into build/aarch64-root, and the
# machine's own list of packages does not change. Needs 2 GB of disk, and on two processors less than an hour, of which
# --sdk saves the programs: CI does not run it. What qemu cannot show: the order of accesses to memory, which is the host's
# (docs/shm.md), how fast anything is, and workers: qemu 7.2 refuses the clone() by which agents start them.
set -euo pipefail

programs=(ddprun ddprun-rendezvous ddprunctl)
targets=(ddprun_program ddprun-rendezvous ddprunctl)
for argument in "$@"; do
  case $argument in
    --all) targets=(all) ;;
    --sdk) programs=() targets=() ;;
    -h | --help)
      sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//p}' "$0"
      exit 0
      ;;
    *)
      echo "cross.sh: unknown argument $argument; see deploy/cross.sh --help" >&2
      exit 2
      ;;
  esac
done

cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=deploy/packages.sh
source deploy/packages.sh

root=$PWD/build/aarch64-root
# Of numbers, formats and the protocol of shared memory; none starts ddprun.
tests=(bits_test elastic_test worker_sdk_parts_test frames_test shm_backend_test)

# What the build links, by a package manager that knows nothing of this machine's packages.
fetch_root() {
  [[ -e $root/done ]] && return
  local state=$PWD/build/aarch64-apt package
  rm -rf "$root" "$state"
  mkdir -p "$root"/usr/{lib,bin,sbin} "$state"/{state/lists,cache/archives}/partial
  : >"$state/status"
  cat >"$state/apt.conf" <<CONF
APT::Architecture "arm64";
APT::Architectures { "arm64"; };
APT::Install-Recommends "false";
APT::Sandbox::User "root";
Dir::State "$state/state";
Dir::State::status "$state/status";
Dir::Cache "$state/cache";
CONF
  apt_log=$PWD/build/aarch64-apt.log
  note "downloading arm64 packages"
  { APT_CONFIG=$state/apt.conf apt-get update && APT_CONFIG=$state/apt.conf apt-get install -y --download-only \
    "${cross_libraries[@]}"; } >"$apt_log" 2>&1 || fail "apt-get cannot download them" "$(tail -n 5 "$apt_log")"
  for package in lib bin sbin; do ln -s "usr/$package" "$root/$package"; done
  for package in "$state"/cache/archives/*.deb; do
    dpkg-deb --fsys-tarfile "$package" | tar -x --keep-directory-symlink -C "$root"
  done
  make_links_relative
  rm -rf "$state"
  touch "$root/done"
}

# A link to /lib/... means the root's.
make_links_relative() {
  local link target
  while read -r link; do
    target=$root$(readlink "$link")
    ln -sfn "$(realpath -m --relative-to="$(dirname "$link")" "$target")" "$link"
  done < <(find "$root" -type l -lname '/*')
}

say "packages"
install_missing "${cross_packages[@]}"
fetch_root

say "building"
need_disk_gb . 2 "the root and build files"
cmake --preset aarch64 >build/configure-aarch64.log 2>&1 || fail "cmake failed" "$(tail -n 20 build/configure-aarch64.log)"
jobs=$(build_jobs)
nice -n 10 cmake --build --preset aarch64 -j "$jobs" --target ddprun_c "${targets[@]}" "${tests[@]}"

emulated() { qemu-aarch64 -L "$root" "$@"; }
failed=()
say "tests, in qemu"
for test in "${tests[@]}"; do
  note "$test"
  # Where qemu keeps a program's variables /proc does not show.
  emulated "build/aarch64/tests/$test" '~Secrets: a variable*' || failed+=("$test")
done

# check WHAT TEXT COMMAND...: the command ends well and says the text.
check() {
  local said
  if said=$("${@:3}" 2>&1) && [[ $said == *"$2"* ]]; then
    note "$1"
  else
    printf '%s\n' "$said" | head -n 20
    failed+=("$1")
  fi
}

# Two processes that meet in a file, for nothing launches them here.
two_ranks() {
  local folder rank got=0 program=build/aarch64/two_ranks
  folder=$(mktemp -d)
  aarch64-linux-gnu-gcc --sysroot="$root" -Wall -Werror -Iworker_sdk/include -o "$program" deploy/package/two_ranks.c \
    build/aarch64/worker_sdk/libddprun.so "-Wl,-rpath,$PWD/build/aarch64/worker_sdk" -Wl,--allow-shlib-undefined || return 1
  for rank in 1 0; do
    RANK=$rank WORLD_SIZE=2 timeout 120 qemu-aarch64 -L "$root" "$program" "file://$folder/meeting" &
  done
  wait -n && wait -n || got=1
  rm -rf "$folder"
  return "$got"
}

say "libddprun.so, in qemu"
check "two ranks add arrays" "sum 3" two_ranks

if [[ ${#programs[@]} -gt 0 ]]; then
  say "programs, in qemu"
  version=$(sed -n 's/^project(ddprun VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)
  bin=build/aarch64/bin
  for program in "${programs[@]}"; do
    check "$program --version" "$version" emulated "$bin/$program" --version
  done
  check "ddprun --dry-run" "WORLD_SIZE" emulated "$bin/ddprun" --standalone --nproc-per-node 2 --dry-run /bin/true
  check "ddprun --print-completion" "--nproc-per-node" emulated "$bin/ddprun" --print-completion bash
fi
[[ ${#failed[@]} -eq 0 ]] || fail "failed: ${failed[*]}"
