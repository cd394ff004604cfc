#!/usr/bin/env bash
# Uses a Debian package and an archive of ddprun from folders of their own, without installing them and without root:
# use_package.sh DEB ARCHIVE. Starts workers, two nodes with a daemon, a C program on the library, and --report for a
# script of PyTorch's that knows nothing of ddprun, if python3 has torch. check_package.sh also installs the package.
set -euo pipefail
# shellcheck source=deploy/packages.sh
source "$(dirname "${BASH_SOURCE[0]}")/../packages.sh"

deb=$(realpath "$1") archive=$(realpath "$2")
here=$(realpath "$(dirname "${BASH_SOURCE[0]}")")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
export XDG_STATE_HOME=$work/state OMP_NUM_THREADS=1
unset PYTHONPATH DDPRUN_LIB DDPRUN_BIN VIRTUAL_ENV

expect() { # TEXT COMMAND...: leaves what it has said in $said
  said=$("${@:2}" 2>&1) || fail "${*:2} failed" "$said"
  [[ $said == *"$1"* ]] || fail "${*:2} did not say \"$1\"" "$said"
}

# use PREFIX
# shellcheck disable=SC2016  # The workers' shells expand them.
use() {
  local prefix=$1 library
  expect "ranks 0 and 1 of 2" "$prefix/bin/ddprun" --nproc-per-node 2 sh -c \
    'case $RANK in 0) echo "ranks 0 and 1 of $WORLD_SIZE" ;; esac'
  expect "node 1 of 2" "$prefix/bin/ddprun" --local-nodes 2 --nproc-per-node 1 sh -c \
    'case $RANK in 1) echo "node $GROUP_RANK of $GROUP_WORLD_SIZE" ;; esac'
  expect ddprunctl "$prefix/bin/ddprunctl" --version
  library=$(echo "$prefix"/lib/*/libddprun.so)
  [[ -e $library ]] || library=$(echo "$prefix"/lib*/libddprun.so)
  gcc -std=c99 -Wall -Werror -I "$prefix/include" -o two_ranks "$here/two_ranks.c" "$library" \
    "-Wl,-rpath,$(dirname "$library")"
  expect "sum 3" "$prefix/bin/ddprun" --nproc-per-node 2 ./two_ranks
  printf 'import sys\nprint("trains", "ddprun_watch" in sys.modules)\n' >plain.py
  expect "trains True" env PYTHON_EXEC=/usr/bin/python3 "$prefix/bin/ddprun" --report --nproc-per-node 2 plain.py
  if ! /usr/bin/python3 -c 'import torch' 2>/dev/null; then
    note "without --report of a script of PyTorch's: python3 has no torch"
    return
  fi
  expect "rank 1 of 2 has trained" env PYTHON_EXEC=/usr/bin/python3 "$prefix/bin/ddprun" --nproc-per-node 2 \
    --report --report-html page.html "$here/unchanged.py"
  report_has_steps "$said" 40
  [[ -s page.html ]] || fail "--report-html has written no page"
}

mkdir deb archive
dpkg-deb --extract "$deb" deb
use "$work/deb/usr"
note "the package's files: used"
tar -xzf "$archive" -C archive --strip-components=1
use "$work/archive"
note "the archive: used"
