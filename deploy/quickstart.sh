#!/usr/bin/env bash
# From a fresh clone to a trained model in one command: installs the Debian packages that are missing, builds
# ddprun, and trains on Fashion-MNIST with two workers. Arguments go to the training program:
#
#   deploy/quickstart.sh               two epochs
#   deploy/quickstart.sh --epochs 3    see build/release/bin/train --help
#
# A second run finds everything done and starts training within seconds.
set -euo pipefail

if [[ ${1:-} == -h || ${1:-} == --help ]]; then
  sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//p}' "$0"
  exit 0
fi

cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=deploy/packages.sh
source deploy/packages.sh

say "1/3 packages"
install_missing "${build_packages[@]}"

say "2/3 build"
build_preset release || fail "the build failed; the first error stands above"

say "3/3 train"
echo "   \$ build/release/bin/ddprun --standalone --nproc-per-node 2 train${*:+ $*}"
echo
exec build/release/bin/ddprun --standalone --nproc-per-node 2 train "$@"
