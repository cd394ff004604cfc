# shellcheck shell=bash
# What the scripts of deploy/ share: words, checks of the machine, and installing Debian
# packages that are missing. Sourced, not run.

# shellcheck disable=SC2034  # Used by those who source this.
build_packages=(
  g++ cmake ninja-build ccache mold pkg-config
  libboost1.81-dev libcli11-dev libspdlog-dev nlohmann-json3-dev libssl-dev
  libgloo-dev libhwloc-dev libtorch-dev zlib1g-dev dataset-fashion-mnist
)
# For deploy/wheel.sh, which downloads Gloo's source; libgloo0 is needed for Gloo's licence only.
# shellcheck disable=SC2034
wheel_packages=(
  g++ cmake ninja-build ccache mold pkg-config
  libboost1.81-dev libcli11-dev libspdlog-dev nlohmann-json3-dev libssl-dev libhwloc-dev
  libgloo0 python3-venv
)
# For deploy/cross.sh: what runs here, and the arm64 packages that it links.
# shellcheck disable=SC2034
cross_packages=(g++-aarch64-linux-gnu qemu-user cmake ninja-build ccache)
# shellcheck disable=SC2034
cross_libraries=(
  libc6-dev libstdc++-12-dev libboost1.81-dev libcli11-dev libspdlog-dev nlohmann-json3-dev libssl-dev
  libgloo-dev libhwloc-dev zlib1g-dev catch2
)
# shellcheck disable=SC2034
test_packages=(
  catch2 etcd-server libbenchmark-dev python3-torch python3-yaml iproute2 iptables
  spin slurmctld slurmd slurm-client munge mpich openmpi-bin faketime openssh-server openssh-client mandoc openssl
  abigail-tools buildah runc debootstrap
)

# For deploy/package.sh; the second list is to check what it has made.
# shellcheck disable=SC2034
package_packages=(dpkg-dev)
# shellcheck disable=SC2034
package_test_packages=(lintian gcc)

say() { printf '\n== %s\n' "$*"; }
note() { printf '   %s\n' "$*"; }
fail() {
  printf '\n%s: %s\n' "$(basename "$0")" "$1" >&2
  shift
  for line in "$@"; do printf '  %s\n' "$line" >&2; done
  exit 1
}

# A person who can answer: a terminal, and not CI.
can_ask() { [[ ${CI:-} != true && -t 0 && -t 1 ]]; }

missing_packages() {
  # A package that dpkg has never heard of is only named on standard error; so subtract what is there.
  local there
  there=$(dpkg-query -W -f '${db:Status-Status} ${Package}\n' "$@" 2>/dev/null |
    sed -n 's/^installed //p' || true)
  local package
  for package in "$@"; do
    grep -qxF -- "$package" <<<"$there" || printf '%s\n' "$package"
  done
}

as_root=()
lists_are_fresh=unknown
need_root() {
  [[ $EUID -eq 0 ]] && return
  command -v sudo >/dev/null ||
    fail "installing packages needs root, and there is no sudo" "as root: apt-get install $*"
  if ! can_ask && ! sudo -n true 2>/dev/null; then
    fail "installing packages needs root, and sudo would ask for a password" \
      "first: sudo apt-get install --no-install-recommends $*"
  fi
  note "sudo is used for apt-get only; it may ask for your password"
  as_root=(sudo)
}

apt() {
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 \
    -o Dpkg::Use-Pty=0 "$@" </dev/null
}

# A mirror that does not answer is no error yet: another one, or the lists that are here, may do.
refresh_package_lists() {
  note "reading the package lists"
  lists_are_fresh=yes
  apt update --error-on=any >>"$apt_log" 2>&1 || lists_are_fresh=no
}

# cannot_install PACKAGE...: ends with the likeliest reason.
cannot_install() {
  if [[ $lists_are_fresh == no ]]; then
    fail "the package lists could not be read; is there a network? Needed: $*" \
      "$(grep -E '^(E|W|Err)' "$apt_log" | head -n 3)" "all of it is in $apt_log"
  fi
  fail "apt-get cannot install $* (they are in Debian 12)" \
    "$(grep '^E:' "$apt_log" | tail -n 3 | sort -u)" "all of it is in $apt_log"
}

simulate() { apt-get -s --no-install-recommends install "$@" 2>>"$apt_log"; }

# Packages that conflict with ours, such as libboost1.74-dev, would be removed. Nobody asked for that.
confirm_removals() {
  local removals=$1
  [[ -n $removals ]] || return 0
  note "this removes: $removals"
  [[ ${CI:-} == true ]] && return
  can_ask || fail "installing would remove packages, and there is nobody to ask" \
    "to agree: CI=true $0"
  local answer
  read -r -p "   go on? [y/N] " answer
  [[ $answer == [yY]* ]] || fail "nothing was installed or removed"
}

# install_missing PACKAGE...: returns at once if all are there.
install_missing() {
  if ! { command -v apt-get && command -v dpkg-query; } >/dev/null; then
    fail "this is not a Debian system; install what these Debian 12 packages hold, then build:" \
      "$*" "cmake --preset release && cmake --build --preset release"
  fi
  local missing plan
  mapfile -t missing < <(missing_packages "$@")
  if [[ ${#missing[@]} -eq 0 ]]; then
    note "all ${#} Debian packages are installed"
    return
  fi
  note "missing: ${missing[*]}"
  need_disk_gb / 4 "Debian packages"
  need_root "${missing[@]}"
  mkdir -p build
  apt_log=$PWD/build/apt.log
  : >"$apt_log"
  if ! plan=$(simulate "${missing[@]}"); then
    refresh_package_lists
    plan=$(simulate "${missing[@]}") || cannot_install "${missing[@]}"
  fi
  confirm_removals "$(sed -n 's/^Remv \([^ ]*\).*/\1/p' <<<"$plan" | tr '\n' ' ')"
  note "installing $(grep -c '^Inst' <<<"$plan") packages; this may take minutes"
  local install=(install -y --no-install-recommends "${missing[@]}")
  if ! apt "${install[@]}" >>"$apt_log" 2>&1; then
    refresh_package_lists # Lists that are too old name files that are gone.
    apt "${install[@]}" >>"$apt_log" 2>&1 || cannot_install "${missing[@]}"
  fi
  mapfile -t missing < <(missing_packages "$@")
  [[ ${#missing[@]} -eq 0 ]] || fail "still missing after apt-get: ${missing[*]}"
}

# need_disk_gb PATH GIGABYTES WHAT-FOR
need_disk_gb() {
  local free_kb
  free_kb=$(df -Pk "$1" | awk 'NR == 2 {print $4}')
  ((free_kb >= $2 * 1000 * 1000)) ||
    fail "$3 need about $2 GB on the disk of $1; $((free_kb / 1000000)) GB are free"
}

# Megabytes that this machine, or the container it is, can still give us.
memory_mb() {
  local free limit used
  free=$(awk '$1 == "MemAvailable:" {print int($2 / 1024)}' /proc/meminfo)
  limit=$(cat /sys/fs/cgroup/memory.max 2>/dev/null || echo max)
  used=$(cat /sys/fs/cgroup/memory.current 2>/dev/null || echo 0)
  if [[ $limit != max ]] && (((limit - used) / 1048576 < free)); then
    free=$(((limit - used) / 1048576))
  fi
  echo "$free"
}

# One compiler of a libtorch or Asio file takes up to 1.5 GB.
build_jobs() {
  local memory jobs by_memory
  memory=$(memory_mb)
  ((memory >= 1500)) || fail "building needs 1.5 GB of free memory; this machine has $memory MB"
  jobs=$(nproc)
  by_memory=$((memory / 1500))
  echo $((by_memory < jobs ? by_memory : jobs))
}

# report_has_steps TEXT STEPS: the table that --report prints has two ranks, each with so many steps.
report_has_steps() {
  local rows
  rows=$(/usr/bin/awk '/^rank +wall s/ {table = 1; next} table && $1 !~ /^[0-9]+$/ {exit} table {printf "%s ", $3}' <<<"$1")
  [[ $rows == "$2 $2 " ]] || fail "--report has not $2 steps of two ranks, but: $rows" "$1"
}

# progress LOG: of a build whose output is its input. Copies all of it to LOG, and prints how far ninja is, each tenth
# and at least each minute, so that a long compilation is not taken for a hang.
progress() {
  local log=$1 line begun=$SECONDS said=0 at='' status percent
  : >"$log"
  while true; do
    status=0
    IFS= read -r -t "${PROGRESS_SECONDS:-60}" line || status=$?
    if ((status > 128)); then
      note "${at:-configuring}, $((SECONDS - begun)) s"
      continue
    fi
    if [[ -n $line ]]; then printf '%s\n' "$line" >>"$log"; fi
    if [[ $line =~ \[([0-9]+)/([0-9]+) ]]; then
      percent=$((100 * BASH_REMATCH[1] / BASH_REMATCH[2]))
      at="$percent % (${BASH_REMATCH[1]} of ${BASH_REMATCH[2]})"
      if ((percent / 10 > said / 10)); then note "$at, $((SECONDS - begun)) s"; fi
      said=$percent
    fi
    ((status == 0)) || break # The end of the input.
  done
}

# build_preset PRESET [cmake option...]: configures where that was not done, then builds.
build_preset() {
  local preset=$1 jobs
  shift
  need_disk_gb . 2 "build files"
  jobs=$(build_jobs) || exit 1
  local ninja=build/$preset/build.ninja
  if [[ ! -f $ninja || CMakePresets.json -nt $ninja || $# -gt 0 ]]; then
    note "configuring build/$preset"
    mkdir -p build
    cmake --preset "$preset" "$@" >"build/configure-$preset.log" 2>&1 || {
      tail -n 30 "build/configure-$preset.log" >&2
      return 1
    }
  fi
  note "building build/$preset with $jobs jobs"
  NINJA_STATUS='   [%f/%t %es] ' cmake --build --preset "$preset" -j "$jobs"
}
