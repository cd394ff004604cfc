#!/usr/bin/env bash
# Builds ddprun's SDK for 64-bit ARM (aarch64) on another Debian 12 machine, and runs the unit tests that are about
# numbers and formats in qemu: their results must have the bits that they have here.
#   deploy/cross.sh            the SDK and these tests
#   deploy/cross.sh --all      whatever else there is too: programs, all tests; takes hours on two processors
# Installs Debian's cross compiler and qemu-user; the arm64 packages are unpacked into build/aarch64-root, and the
# machine's own list of packages does not change. Needs 1 GB of disk, and on two processors half an hour: CI does
# not run it. What qemu cannot show: the order of accesses to memory, which is the host's (docs/shm.md), and how fast
# anything is.
set -euo pipefail

targets=()
for argument in "$@"; do
  case $argument in
    --all) targets=(all) ;;
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
need_disk_gb . 1 "the root and build files"
cmake --preset aarch64 >build/configure-aarch64.log 2>&1 || fail "cmake failed" "$(tail -n 20 build/configure-aarch64.log)"
jobs=$(build_jobs)
nice -n 10 cmake --build --preset aarch64 -j "$jobs" --target "${targets[@]}" "${tests[@]}"

say "tests, in qemu"
failed=()
for test in "${tests[@]}"; do
  note "$test"
  # Where qemu keeps a program's variables /proc does not show.
  qemu-aarch64 -L "$root" "build/aarch64/tests/$test" '~Secrets: a variable*' || failed+=("$test")
done
[[ ${#failed[@]} -eq 0 ]] || fail "failed: ${failed[*]}"
