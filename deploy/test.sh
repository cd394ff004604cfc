#!/usr/bin/env bash
# Everything that CI checks, in one command: installs what is missing, builds and runs the tests plainly, under
# AddressSanitizer + UndefinedBehaviorSanitizer, and under ThreadSanitizer; then builds the wheel and the Debian
# package, and uses both.
#
#   deploy/test.sh            all four
#   deploy/test.sh --quick    the plain build only (preset dev)
#   deploy/test.sh asan       one stage or several: dev, asan, tsan, packages, tidy
#   deploy/test.sh --all      with sanitizers, all tests that run with them, not only those of memory, threads and
#                             protocols; for the night
#   deploy/test.sh --tidy     clang-tidy, cppcheck and shellcheck over the tree; slow, not part of CI
set -euo pipefail

stages=() all_tests=OFF
for argument in "$@"; do
  case $argument in
    --quick) stages+=(dev) ;;
    --tidy) stages+=(tidy) ;;
    --all) all_tests=ON ;;
    dev | asan | tsan | packages | tidy) stages+=("$argument") ;;
    -h | --help)
      sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//p}' "$0"
      exit 0
      ;;
    *)
      echo "test.sh: unknown argument $argument; see deploy/test.sh --help" >&2
      exit 2
      ;;
  esac
done
[[ ${#stages[@]} -gt 0 ]] || stages=(dev asan tsan packages)

cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=deploy/packages.sh
source deploy/packages.sh

# Debian's default clang-tidy 14 cannot read coroutines with g++ 12's library; 19 can.
tidy_packages=(clang-tidy-19 cppcheck shellcheck)

passed=0 failed=0 skipped=0
summary=()
reports=() # JUnit files of stages with a failed test.

# count FILE: adds a JUnit file that ctest wrote to the totals.
count() {
  local suite failures skips disabled
  suite=$(tr '\n' ' ' <"$1" | grep -o '<testsuite [^>]*>')
  of_suite() { grep -o "$1=\"[0-9]*\"" <<<"$suite" | tr -dc 0-9; }
  failures=$(of_suite failures)
  disabled=$(of_suite disabled)
  skips=$(($(of_suite skipped) + disabled))
  failed=$((failed + failures))
  skipped=$((skipped + skips))
  passed=$((passed + $(of_suite tests) - failures - skips))
}

# The number of random bits in a mapping's address that newer kernels use is too much for g++ 12's tsan.
without_random_addresses() {
  if setarch "$(uname -m)" -R true 2>/dev/null; then
    setarch "$(uname -m)" -R "$@"
  else
    "$@"
  fi
}

run_tests() {
  local preset=$1 report=$PWD/build/$1/tests.xml status=0
  # Most tests wait more than they compute; tests/order.cmake has those that take more than one place.
  local ctest=(ctest --test-dir "build/$preset" --output-on-failure -j "$(($(nproc) * 2))"
    --no-tests=error --output-junit "$report")
  rm -f "$report"
  if [[ $preset == tsan ]]; then
    without_random_addresses "${ctest[@]}" || status=$?
  else
    "${ctest[@]}" || status=$?
  fi
  if [[ -s $report ]]; then
    count "$report"
    ((status == 0)) || reports+=("$report")
  else
    failed=$((failed + 1))
  fi
  return "$status"
}

# failures_of FILE: the tests that failed and the end of what each printed. Said last, as that is where one looks,
# and all that is left of an output somebody has cut.
failures_of() {
  awk -v keep=60 '
    function flush_test(  i) {
      printf "\n-- %s: %s\n", stage, name
      for (i = count > keep ? count - keep : 0; i < count; i++) print lines[i]
    }
    /<testcase / { failed = /status="fail"/; name = $0; sub(/.*<testcase name="/, "", name); sub(/".*/, "", name) }
    failed && /<system-out>/ { printing = 1; count = 0; sub(/.*<system-out>/, "") }
    printing {
      ends = sub(/<\/system-out>.*/, "")
      gsub(/&lt;/, "<"); gsub(/&gt;/, ">"); gsub(/&quot;/, "\""); gsub(/&apos;/, "\047"); gsub(/&amp;/, "\\&")
      lines[count++] = $0
      if (ends) { flush_test(); printing = 0 }
    }' stage="$(basename "$(dirname "$1")")" "$1"
}

no_index=77 # wheel.sh's status where no index answers pip: the wheel needs its tools and Gloo's source from there.

# The wheel and the package come from one folder, build/package: most of it is compiled once.
build_stage() {
  case $1 in
    packages) bash deploy/wheel.sh || return; bash deploy/package.sh ;;
    asan | tsan) build_preset "$1" -DDDPRUN_ALL_TESTS=$all_tests ;;
    # In a fresh tree all is compiled, which several files at a time make half as long.
    dev) if [[ -f build/dev/build.ninja ]]; then build_preset dev; else build_preset dev -DDDPRUN_UNITY=ON; fi ;;
    *) build_preset "$1" ;;
  esac
}

# build_ahead STAGE: builds it while the tests before it run, for most of these wait most of the time.
ahead='' ahead_pid=
build_ahead() {
  ahead=$1
  mkdir -p build
  note "building build/$ahead beside these tests"
  set -m # A process group of its own, to end it by.
  (
    renice -n 19 "$BASHPID" >/dev/null 2>&1 || true
    build_stage "$ahead"
  ) >"build/build-$ahead.log" 2>&1 &
  ahead_pid=$!
  set +m
}

# shellcheck disable=SC2317  # Called by the trap.
stop_building_ahead() {
  [[ -n $ahead_pid ]] || return 0
  kill -TERM -- "-$ahead_pid" 2>/dev/null || true
  wait "$ahead_pid" 2>/dev/null || true
}
trap stop_building_ahead EXIT

built() {
  local preset=$1
  if [[ $ahead != "$preset" ]]; then
    build_stage "$preset"
    return
  fi
  ahead=''
  local status=0
  wait "$ahead_pid" || status=$?
  ahead_pid=
  if ((status != 0)); then tail -n 60 "build/build-$preset.log" >&2; fi
  return "$status"
}

# build_and_test STAGE [STAGE that follows]
build_and_test() {
  local preset=$1 next=${2-}
  local status=0
  built "$preset" || status=$?
  if ((status == no_index)); then
    note "no package index answers pip: nothing is built, and nothing of this stage is checked"
    skipped=$((skipped + 1))
    return
  fi
  if ((status != 0)); then
    failed=$((failed + 1))
    return 1
  fi
  if [[ -n $next ]]; then build_ahead "$next"; fi
  if [[ $preset == packages ]]; then use_packages; else run_tests "$preset"; fi
}

use_packages() {
  local status=0
  check "the wheel in fresh environments" bash deploy/wheel/check_wheel.sh build/wheels/*.whl || status=1
  check "the package and the archive" bash deploy/package/use_package.sh build/packages/*.deb build/packages/*.tar.gz ||
    status=1
  return "$status"
}

# Each counts as one test.
check() {
  note "$1"
  shift
  if "$@"; then passed=$((passed + 1)); else failed=$((failed + 1)) && return 1; fi
}

# shellcheck disable=SC2317  # Called through check().
clang_tidy_all() {
  # Only our own files: not Catch2's, not what CMake generated.
  find common rendezvous agent launcher worker_sdk examples -name '*.cc' -print0 2>/dev/null |
    while IFS= read -r -d '' file; do
      if grep -qF "/$file\"" build/dev/compile_commands.json; then printf '%s\0' "$file"; fi
    done |
    xargs -0 -P "$(nproc)" -n 1 clang-tidy-19 -p build/dev --quiet \
      --extra-arg=-Wno-unknown-warning-option
}

# Suppressed is what cppcheck 2.10 gets wrong: it knows neither []<class T>, nor values that are moved on, nor
# brace initialisation of integers. What it cannot read at all, clang-tidy reads.
# shellcheck disable=SC2317
cppcheck_all() {
  local folders=()
  for folder in common rendezvous agent launcher worker_sdk examples; do
    [[ -d $folder ]] && folders+=("$folder")
  done
  cppcheck --quiet --std=c++20 --language=c++ --enable=warning,performance,portability \
    --inline-suppr --error-exitcode=1 -j "$(nproc)" -I . -I worker_sdk/include \
    --suppress=missingInclude --suppress=missingIncludeSystem --suppress=unknownMacro \
    --suppress=passedByValue --suppress=virtualCallInConstructor \
    --suppress=AssignmentAddressToInteger --suppress=syntaxError \
    "${folders[@]}"
}

lint() {
  local status=0
  install_missing "${tidy_packages[@]}"
  build_preset dev -DDDPRUN_UNITY=OFF || return 1 # For compile_commands.json, and generated headers.
  check "shellcheck" shellcheck -x deploy/*.sh .ci/run || status=1
  check "cppcheck" cppcheck_all || status=1
  check "clang-tidy" clang_tidy_all || status=1
  return "$status"
}

say "packages"
needed=("${build_packages[@]}" "${test_packages[@]}")
if [[ " ${stages[*]} " == *" packages "* ]]; then needed+=("${wheel_packages[@]}" "${package_packages[@]}" "${package_test_packages[@]}"); fi
install_missing "${needed[@]}"

result=0
for index in "${!stages[@]}"; do
  stage=${stages[index]} next=${stages[index + 1]-}
  [[ $next != tidy ]] || next=''
  say "$stage"
  begun=$SECONDS
  outcome=ok
  if [[ $stage == tidy ]]; then lint || outcome=FAILED; else build_and_test "$stage" "$next" || outcome=FAILED; fi
  [[ $outcome == ok ]] || result=1
  summary+=("$(printf '%-8s %-6s %4d s' "$stage" "$outcome" $((SECONDS - begun)))")
done

if ((${#reports[@]} > 0)); then
  say "what failed, and the end of its output"
  for report in "${reports[@]}"; do failures_of "$report"; done
fi

say "summary"
for line in "${summary[@]}"; do note "$line"; done
((failed == 0)) || result=1
echo
echo "total: $passed passed, $failed failed, $skipped skipped"
exit "$result"
