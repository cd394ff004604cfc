#!/usr/bin/env bash
# deploy/*.sh on a machine made of stand-ins: a PATH whose apt-get, dpkg-query, sudo and cmake only write down
# what they are asked, in a folder with spaces in its name. Nothing is installed or built.
# usage: deploy_test.sh SOURCE_ROOT
set -uo pipefail

root=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tree="$work/a folder with spaces"
fakes="$work/fakes"
passed=0 failed=0

mkdir -p "$tree/deploy" "$fakes"
cp "$root"/deploy/{cross,packages,quickstart,test}.sh "$tree/deploy/"
mkdir "$tree/deploy/wheel" "$tree/deploy/package"

fake() { # NAME, body on standard input
  { printf '#!/usr/bin/env bash\n'; cat; } >"$fakes/$1"
  chmod +x "$fakes/$1"
}

# Each case starts on a machine where all is installed and everything works.
reset() {
  rm -rf "$tree/build"
  : >"$work/calls"
  echo everything >"$work/installed"
  export CALLS=$work/calls INSTALLED=$work/installed
  unset CI
  fake dpkg-query <<'BODY'
shift 3
for package in "$@"; do
  if grep -qxF -e "$package" -e everything "$INSTALLED"; then echo "installed $package"; fi
done
BODY
  fake apt-get <<'BODY'
echo "apt-get $*" >>"$CALLS"
case " $* " in *" -s "*) echo "Inst something" ;; *" install "*) echo everything >>"$INSTALLED" ;; esac
BODY
  fake sudo <<'BODY'
echo "sudo $*" >>"$CALLS"
[[ $1 != -n ]] || exit 0
"$@"
BODY
  fake cmake <<'BODY'
echo "cmake $*" >>"$CALLS"
if [[ $1 == --preset ]]; then mkdir -p "build/$2/bin" && touch "build/$2/build.ninja"; exit; fi
printf '#!/usr/bin/env bash\necho "ddprun runs: $*"\n' >"build/$3/bin/ddprun"
chmod +x "build/$3/bin/ddprun"
BODY
  fake ctest <<'BODY'
while [[ $1 != --output-junit ]]; do shift; done
printf '<testsuite name="x"\n\ttests="7"\n\tfailures="%s"\n\tdisabled="0"\n\tskipped="2"\n>\n' \
  "${FAILURES:-0}" >"$2"
cat >>"$2" <<'CASES'
  <testcase name="green_test" status="run">
    <system-out>all is well</system-out>
  </testcase>
  <testcase name="red_test" status="fail">
    <failure message=""/>
    <system-out>
expected &quot;a&quot; &lt; b &amp;&amp; c
</system-out>
  </testcase>
CASES
exit "${FAILURES:-0}"
BODY
  fake setarch <<<'shift 2; "$@"'
  for script in wheel package wheel/check_wheel package/use_package; do
    printf 'echo "%s.sh $*" >>"$CALLS"\n' "$script" >"$tree/deploy/$script.sh"
  done
  fake id <<<'echo 0'
}

run() { # SCRIPT ARGUMENT...: leaves its output in $output and its code in $code.
  output=$(cd / && PATH="$fakes:$PATH" bash "$tree/deploy/$1" "${@:2}" 2>&1 </dev/null)
  code=$?
}

expect() { # WHAT, then a condition as a command
  local what=$1
  shift
  if "$@"; then
    passed=$((passed + 1))
  else
    failed=$((failed + 1))
    printf 'FAILED: %s\n  code %s, output:\n%s\n  calls:\n%s\n' "$what" "$code" "$output" \
      "$(cat "$work/calls")"
  fi
}
says() { grep -qF -- "$1" <<<"$output"; }
called() { grep -qF -- "$1" "$work/calls"; }
silent_about() { ! grep -qF -- "$1" "$work/calls"; }
ended() { [[ $code -eq $1 ]]; }

reset
run quickstart.sh --epochs 3 "two words"
expect "quickstart: trains" ended 0
expect "quickstart: hands its arguments on" \
  says "ddprun runs: --standalone --nproc-per-node 2 train --epochs 3 two words"
expect "quickstart: leaves apt-get alone where all is installed" silent_about apt-get
run quickstart.sh
expect "quickstart: a second run does not configure again" \
  [ "$(grep -c -- '^cmake --preset' "$work/calls")" -eq 1 ]

reset
: >"$work/installed"
if [[ $EUID -eq 0 ]]; then
  run quickstart.sh
  expect "quickstart: installs what is missing" called "install -y --no-install-recommends g++ cmake"
  expect "quickstart: says what" says "missing: g++ cmake"
  expect "quickstart: root needs no sudo" silent_about sudo
fi

reset
: >"$work/installed"
fake apt-get <<'BODY'
echo "apt-get $*" >>"$CALLS"
echo "E: Could not resolve host" >&2
exit 100
BODY
run quickstart.sh
expect "quickstart: no network is an error" ended 1
expect "quickstart: and is said" says "is there a network?"
expect "quickstart: with apt-get's own words" says "E: Could not resolve host"

reset
: >"$work/installed"
fake apt-get <<'BODY'
echo "apt-get $*" >>"$CALLS"
case " $* " in *" -s "*) echo "Remv libboost1.74-dev [1]" && echo "Inst g++" ;; *) exit 0 ;; esac
BODY
run quickstart.sh
expect "quickstart: removes nothing without being told to" ended 1
expect "quickstart: names what would go" says "this removes: libboost1.74-dev"
expect "quickstart: and did not install" silent_about "install -y"

reset
: >"$work/installed"
fake df <<<'echo header; echo "/dev/x 9 9 100000 1% /"'
run quickstart.sh
expect "quickstart: too little disk is an error" ended 1
expect "quickstart: and says how much" says "0 GB are free"
rm "$fakes/df"

reset
fake cmake <<<'echo "the compiler is broken" >&2; exit 1'
run quickstart.sh
expect "quickstart: a failed build fails" ended 1
expect "quickstart: and shows why" says "the compiler is broken"

reset
run test.sh --quick
expect "test: passes" ended 0
expect "test: --quick builds dev only" silent_about asan
expect "test: closes with the counts" says "total: 5 passed, 0 failed, 2 skipped"

reset
CI=true run test.sh
expect "test: four stages" ended 0
expect "test: adds them up" says "total: 17 passed, 0 failed, 6 skipped"
expect "test: sums up each stage" says "packages ok"
expect "test: builds a stage beside the tests of the one before" says "building build/tsan beside these tests"
expect "test: builds the wheel and the package" [ "$(grep -c '^wheel.sh\|^package.sh' "$work/calls")" -eq 2 ]
expect "test: and uses both" [ "$(grep -c 'check_wheel.sh\|use_package.sh' "$work/calls")" -eq 2 ]

reset
echo 'exit 1' >"$tree/deploy/package.sh"
run test.sh packages
expect "test: a package that does not build fails the run" ended 1
expect "test: and nothing uses it" silent_about use_package

reset
echo 'exit 1' >"$tree/deploy/wheel/check_wheel.sh"
run test.sh packages
expect "test: a wheel that does not work fails the run" ended 1
expect "test: and the package is used all the same" called use_package
expect "test: and each counts" says "total: 1 passed, 1 failed, 0 skipped"

reset
fake cmake <<'BODY'
[[ $* != *asan* ]] || { echo "the compiler is broken" >&2; exit 1; }
if [[ $1 == --preset ]]; then mkdir -p "build/$2" && touch "build/$2/build.ninja"; fi
BODY
run test.sh
expect "test: a failed build beside tests fails the run" ended 1
expect "test: and shows why" says "the compiler is broken"
expect "test: and fails its stage only" says "total: 12 passed, 1 failed, 4 skipped"

reset
export FAILURES=3
run test.sh asan
unset FAILURES
expect "test: a failing test fails the run" ended 1
expect "test: and is counted" says "total: 2 passed, 3 failed, 2 skipped"
expect "test: and is named at the end" says "-- asan: red_test"
expect "test: with what it printed" says 'expected "a" < b && c'
expect "test: and no other's" [ "$(grep -c 'all is well' <<<"$output")" -eq 0 ]

reset
fake cmake <<<'exit 1'
run test.sh dev
expect "test: a failed build fails the run" ended 1
expect "test: and counts" says "total: 0 passed, 1 failed, 0 skipped"

reset
fake ctest <<<'exit 8'
run test.sh dev
expect "test: a runner that leaves no report fails the run" ended 1

run test.sh --nonsense
expect "test: an unknown argument is a usage error" ended 2
run test.sh --help
expect "test: help" says "deploy/test.sh --quick"
run quickstart.sh --help
expect "quickstart: help" says "deploy/quickstart.sh --epochs 3"

# What a build prints becomes a line each tenth, and one where nothing came for a while.
output=$(cd "$tree" && PROGRESS_SECONDS=1 bash -c 'source deploy/packages.sh
  { for i in 1 2 3 4 30 31 60; do echo "  [$i/60 1.2s] Building $i"; done; echo "x: error: no"; } | progress log' 2>&1)
code=$?
expect "progress: each tenth" [ "$(grep -c '%' <<<"$output")" -eq 2 ]
expect "progress: says how far" says "100 % (60 of 60)"
expect "progress: all is in the log" grep -qx 'x: error: no' "$tree/log"
output=$(cd "$tree" && PROGRESS_SECONDS=0.1 bash -c 'source deploy/packages.sh
  mkfifo pipe; progress log <pipe | { read -r first; echo "$first"; exec 9>&-; } & exec 9>pipe; wait' 2>&1)
expect "progress: a build that prints nothing is not silent" says "configuring"

run cross.sh --nonsense
expect "cross: an unknown argument is a usage error" ended 2
run cross.sh --help
expect "cross: help" says "deploy/cross.sh --all"

echo "$passed passed, $failed failed"
[[ $failed -eq 0 ]]
