#!/usr/bin/env bash
# Uses a wheel as its users do: check_wheel.sh WHEEL. In a fresh virtual environment, with a PATH that has no
# compiler, it installs the wheel without an index, runs README's commands and two ranks that exchange arrays,
# uninstalls, and compares the environment's files with those before. In one with Debian's torch, if that is installed, it
# watches a script that knows nothing of ddprun with --report. Then, in another fresh environment, installs the
# wheel with numpy, or with what DDPRUN_CHECK_TORCH names (torch, torch==2.8.0; PIP_INDEX_URL as pip has it), and trains
# a small model for one epoch. Prints seconds and megabytes. Needs a network for numpy or torch only.
set -euo pipefail
# shellcheck source=deploy/packages.sh
source "$(dirname "${BASH_SOURCE[0]}")/../packages.sh"

wheel=$(realpath "$1")
trainer=$(realpath "$(dirname "${BASH_SOURCE[0]}")/first_epoch.py")
script=$(realpath "$(dirname "${BASH_SOURCE[0]}")/../package/unchanged.py")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# What every system has, and nothing that compiles.
mkdir "$work/tools"
for tool in env sh bash uname cat sleep rm basename; do ln -s "$(command -v "$tool")" "$work/tools/"; done
"${PYTHON:-python3}" -m venv "$work/env"
cd "$work"
export PATH=$work/env/bin:$work/tools
unset PYTHONPATH DDPRUN_LIB DDPRUN_BIN PYTHON_EXEC VIRTUAL_ENV
for compiler in cc gcc g++ c++ clang cmake ninja; do
  ! command -v "$compiler" >/dev/null || fail "$compiler is in the PATH of the check"
done

# Not folders: pip leaves empty ones, such as share/man, behind for every package.
files() { /usr/bin/find env -not -type d -not -path '*/pip*/__pycache__/*' | /usr/bin/sort; }
since() { /usr/bin/awk "BEGIN {printf \"%.2f\", $EPOCHREALTIME - $1}"; } # EPOCHREALTIME: seconds until now
seconds() { # WHAT COMMAND...: says how long it took
  local begun=$EPOCHREALTIME
  "${@:2}"
  note "$1: $(since "$begun") s"
}
expect() { # TEXT COMMAND...
  local said
  said=$("${@:2}" 2>&1) || fail "${*:2} failed" "$said"
  [[ $said == *"$1"* ]] || fail "${*:2} did not say \"$1\"" "$said"
}

files >before
before=$(/usr/bin/du -sk env | /usr/bin/cut -f1)
seconds "pip install" env pip install --quiet --no-index --disable-pip-version-check "$wheel"
installed=$(($(/usr/bin/du -sk env | /usr/bin/cut -f1) - before))
note "installed: $((installed / 1000)) MB"

version=$(basename "$wheel" | /usr/bin/cut -d- -f2)
for program in ddprun ddprun-rendezvous ddprunctl "python3 -m ddprun"; do
  # shellcheck disable=SC2086  # Words.
  expect "$version" $program --version
done
expect "$version" python3 -c 'import ddprun; print(ddprun.__version__)'

# The environment's interpreter, though its bin comes last.
cat >who.py <<'PY'
import sys
print(sys.prefix)
PY
expect "$work/env" env PATH="/usr/bin:$work/env/bin" env/bin/ddprun --nproc-per-node 1 who.py

cat >exchange.py <<'PY'
import array
import ddprun

if __name__ == "__main__":
    with ddprun.init() as group:
        values = array.array("f", [group.rank + 1.0] * 8)
        group.all_reduce(values)
        print(f"rank {group.rank} of {group.world_size} on {group.backend}: {values[0]}")
PY
seconds "two ranks that exchange arrays" expect "rank 1 of 2 on shm: 3.0" ddprun --nproc-per-node 2 exchange.py
expect "rank 1 of 2 on shm: 3.0" python3 -m ddprun --nproc-per-node 2 exchange.py
# What Python compiles of it beside the programs goes with them below.
expect "rank 1 of 2 on shm: 3.0" ddprun --report --nproc-per-node 2 exchange.py
# Hosts of their own, so that Gloo carries the arrays.
expect "rank 1 of 2 on gloo: 3.0" env DDPRUN_BACKEND=gloo ddprun --nproc-per-node 2 exchange.py

cat >fail.py <<'PY'
import sys
import ddprun

def work(limit):
    with ddprun.init() as group:
        if group.rank == limit:
            sys.exit(7)
        return group.rank * 10

if __name__ == "__main__":
    print(ddprun.launch(work, (5,), nproc=2))
    try:
        ddprun.launch(work, (1,), nproc=2)
    except ddprun.RunError as error:
        print("rank", error.rank, "fault", error.fault, "code", error.exit_code)
PY
expect "[0, 10]" python3 fail.py
expect "rank 1 fault exit code 7" python3 fail.py
expect "libddprun.so" python3 -c 'import ddprun; print(*ddprun.prefix().iterdir())'

seconds "pip uninstall" env pip uninstall --quiet --yes --disable-pip-version-check ddprun
files >after
/usr/bin/diff before after || fail "pip uninstall left these files (>)"
note "the wheel works without a compiler, and leaves nothing behind"

# In an environment, where bin/python is the interpreter; with a script that knows nothing of ddprun.
if ! /usr/bin/python3 -c 'import torch' 2>/dev/null; then
  note "without --report of a script of PyTorch's: /usr/bin/python3 has no torch"
else
  say "--report of a script of PyTorch's"
  /usr/bin/python3 -m venv --system-site-packages "$work/torch"
  "$work/torch/bin/pip" install --quiet --no-index --disable-pip-version-check "$wheel"
  for flags in "" "--on-stall log"; do
    # shellcheck disable=SC2086  # Words, or none.
    said=$(OMP_NUM_THREADS=1 "$work/torch/bin/ddprun" --nproc-per-node 2 --report --report-html page.html $flags \
      "$script" 2>&1) || fail "the script failed" "$said"
    report_has_steps "$said" 40
    [[ -s page.html ]] || fail "--report-html has written no page" "$said"
  done
  note "its steps are in the table"
fi

say "the first epoch"
library=${DDPRUN_CHECK_TORCH:-numpy}
"${PYTHON:-python3}" -m venv "$work/trains"
export PATH=$work/trains/bin:$work/tools
before=$(/usr/bin/du -sk trains | /usr/bin/cut -f1)
begun=$EPOCHREALTIME
seconds "pip install of ddprun and $library, downloaded anew" env pip install --quiet --no-cache-dir \
  --disable-pip-version-check "$wheel" "$library"
expect "trained with ${library%%[^a-z]*}" ddprun --nproc-per-node 2 "$trainer"
note "from pip install to the end of the first epoch, 2 ranks: $(since "$begun") s"
note "installed: $(($(/usr/bin/du -sk trains | /usr/bin/cut -f1) / 1000 - before / 1000)) MB"
