#!/bin/bash
# Does the library hold code for sm_80 and sm_90? As cuobjdump lists it.
#   gpu_code_test.sh LIBRARY KERNEL_IMAGE CUOBJDUMP
# Exit status 77: it cannot be told here; the reason is said.
set -eu
library=$1 image=$2 cuobjdump=$3

skip() { echo "skipped: $*"; exit 77; }
[ -n "$image" ] || skip "built without nvcc, so there are no GPU kernels in $library"
[ -x "$cuobjdump" ] || skip "there is no cuobjdump"

list=$("$cuobjdump" --list-elf "$library")
for card in sm_80 sm_90; do
  grep -q "$card\.cubin" <<< "$list" || { echo "no code for $card in $library:"; echo "$list"; exit 1; }
  echo "$card: $(grep "$card\.cubin" <<< "$list")"
done
