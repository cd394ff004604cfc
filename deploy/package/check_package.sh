#!/usr/bin/env bash
# Uses a Debian package and an archive of ddprun as their users do: check_package.sh DEB ARCHIVE. Makes a Debian 12 of
# essential packages in a temporary folder, in which there is neither a compiler nor Python; installs the package there,
# runs two workers, a daemon with a run of two nodes, and a C program on the library; removes it, and compares the files
# with those before. Then the same from the archive, unpacked in two folders one after the other, and the package in a
# Debian 11, whose C library is older, as long as the mirror has it. Needs root.
set -euo pipefail
# shellcheck source=deploy/packages.sh
source "$(dirname "${BASH_SOURCE[0]}")/../packages.sh"

deb=$(realpath "$1") archive=$(realpath "$2")
here=$(realpath "$(dirname "${BASH_SOURCE[0]}")")
[[ $EUID -eq 0 ]] || fail "a root folder of its own needs root"
install_missing debootstrap gcc
work=$(mktemp -d)
root=$work/root
cleanup() {
  unmount
  rm -rf --one-file-system "$work"
}
trap cleanup EXIT

unmount() {
  for mount in proc dev/shm dev; do umount "$root/$mount" 2>/dev/null || true; done
}
make_root() { # SUITE
  debootstrap --variant=minbase --include=ca-certificates "$1" "$root" >"$work/log" 2>&1 || return
  mount -t proc proc "$root/proc"
  mount --bind /dev "$root/dev"
  mount -t tmpfs shm "$root/dev/shm"
}
note "making a fresh Debian 12"
make_root bookworm || fail "debootstrap failed" "$(tail -n 5 "$work/log")"

# The records of the runs are the user's (docs/operations.md): they stay when a package goes.
inside() {
  chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TMPDIR=/tmp XDG_STATE_HOME=/tmp/state "$@"
}
expect() { # TEXT COMMAND...
  local said
  said=$("${@:2}" 2>&1) || fail "${*:2} failed" "$said"
  [[ $said == *"$1"* ]] || fail "${*:2} did not say \"$1\"" "$said"
}
files() { (cd "$root" && find . -xdev -not -path './var/lib/dpkg/*' -not -path './var/log/*' | sort); }
for compiler in cc gcc g++ clang python3; do
  ! inside sh -c "command -v $compiler" >/dev/null || fail "$compiler is in the fresh Debian"
done

# use BIN: two ranks, then two nodes with a daemon.
# shellcheck disable=SC2016  # The workers' shells expand them.
use() {
  local bin=$1
  expect "ranks 0 and 1 of 2" inside "$bin/ddprun" --nproc-per-node 2 sh -c \
    'case $RANK in 0) echo "ranks 0 and 1 of $WORLD_SIZE" ;; esac'
  expect "node 1 of 2" inside "$bin/ddprun" --local-nodes 2 --nproc-per-node 1 sh -c \
    'case $RANK in 1) echo "node $GROUP_RANK of $GROUP_WORLD_SIZE" ;; esac'
  inside "$bin/ddprunctl" --version >/dev/null || fail "ddprunctl does not run"
}

files >"$work/before"
cp "$deb" "$root/tmp/ddprun.deb"
expect "Setting up ddprun" inside dpkg --install /tmp/ddprun.deb
rm "$root/tmp/ddprun.deb"
version=$(dpkg-deb --field "$deb" Version)
for program in ddprun ddprun-rendezvous ddprunctl; do expect "$version" inside "$program" --version; done
use /usr/bin

# Compiled outside, against what the package installed, and run inside.
include=$root/usr/include library=$(echo "$root"/usr/lib/*/libddprun.so)
gcc -std=c99 -Wall -Werror -I "$include" -o "$root/tmp/two_ranks" "$here/two_ranks.c" "$library" \
  "-Wl,-rpath-link,$(dirname "$library")"
expect "sum 3" inside ddprun --nproc-per-node 2 /tmp/two_ranks
rm "$root/tmp/two_ranks"

expect "Removing ddprun" inside dpkg --purge ddprun
rm -rf "$root"/tmp/*
files >"$work/after"
cmp -s "$work/before" "$work/after" || fail "the package leaves files" "$(diff "$work/before" "$work/after")"
note "the package: installed, used and removed without a file left"

for folder in /opt/first /opt/second; do
  mkdir -p "$root$folder"
  tar -xzf "$archive" -C "$root$folder" --strip-components=1
  use "$folder/bin"
  rm -rf "${root:?}$folder"
done
note "the archive: used from two folders"

unmount
rm -rf --one-file-system "$root"
note "making a fresh Debian 11"
if ! make_root bullseye; then
  note "without Debian 11: $(tail -n 1 "$work/log")"
  exit 0
fi
cp "$deb" "$root/tmp/ddprun.deb"
expect "Setting up ddprun" inside dpkg --install /tmp/ddprun.deb
use /usr/bin
note "the package: used with the C library of Debian 11"
