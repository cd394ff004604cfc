# shellcheck shell=bash
# What wheel.sh and package.sh share: arguments, pip's tools, and Gloo's source. Sourced after packages.sh.

# Sets $check, to yes or no. --help prints what the script begins with.
# shellcheck disable=SC2034
read_arguments() {
  check=no
  case ${1:-} in
    --check) check=yes ;;
    -h | --help)
      sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//p}' "deploy/$(basename "$0")"
      exit 0
      ;;
    '') ;;
    *) fail "unknown argument $1" "usage: deploy/$(basename "$0") [--check]" ;;
  esac
}

# A virtual environment of our own, named by $tools.
make_tools() {
  python3 -c 'import venv, ensurepip' 2>/dev/null ||
    fail "python3 cannot make virtual environments" "on Debian: apt-get install python3-venv"
  tools=build/wheel-tools
  if [[ ! -x $tools/bin/pip ]]; then python3 -m venv "$tools"; fi
}

# Takes Gloo's source from the package that gloo_source.txt pins. pip verifies its SHA-256, then runs its setup.py
# for the metadata, which needs setuptools and wheel.
download_gloo() {
  local pin=deploy/wheel/gloo_source.txt folder=build/gloo-download
  if cmp -s "$pin" build/gloo/source.txt; then
    note "build/gloo is there"
    return
  fi
  note "downloading Gloo's source into build/gloo"
  rm -rf "$folder" build/gloo
  mkdir -p "$folder/gloo"
  {
    "$tools/bin/pip" install --quiet --disable-pip-version-check 'setuptools<81' wheel packaging &&
      "$tools/bin/pip" download --quiet --disable-pip-version-check --no-deps --no-binary :all: \
        --no-build-isolation --dest "$folder" --requirement "$pin"
  } >build/gloo.log 2>&1 ||
    fail "Gloo's source could not be downloaded; is there a network?" "$(tail -n 5 build/gloo.log)" \
      "the package is named in $pin; all of pip's output is in build/gloo.log"
  tar -xzf "$folder"/*.tar.gz -C "$folder/gloo" --strip-components=3 --wildcards '*/third_party/gloo'
  # That package leaves out the file LICENSE to which Gloo's sources refer; Debian's has its text.
  cp /usr/share/doc/libgloo0/copyright "$folder/gloo/LICENSE"
  cp "$pin" "$folder/gloo/source.txt"
  mv "$folder/gloo" build/gloo
  rm -rf "$folder"
}
