#!/usr/bin/env bash
# Builds the Debian package and the archive of ddprun's programs and C library:
# build/packages/ddprun_VERSION_ARCHITECTURE.deb and ddprun-VERSION-linux-MACHINE.tar.gz. They need libc alone, of 2.28
# or later (cmake/old_glibc.cmake).
#   deploy/package.sh            builds both
#   deploy/package.sh --check    also installs, uses and removes the package in a fresh Debian 12 that has nothing but
#                                its essential packages (debootstrap, root), and uses the archive there from two folders
# Needs a network for pip, which downloads Gloo's source into build/gloo. Shares build/package with deploy/wheel.sh.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source deploy/packages.sh
source deploy/gloo.sh

read_arguments "$@"

say "packages"
wanted=("${wheel_packages[@]}" "${package_packages[@]}")
if [[ $check == yes ]]; then wanted+=("${package_test_packages[@]}"); fi
install_missing "${wanted[@]}"
make_tools
say "Gloo"
download_gloo

say "building"
glibc=2.28 # As in pyproject.toml.
folder=build/package
need_disk_gb . 2 "build files"
begun=$SECONDS
# Of a wheel that was built here: in a package the library has its links.
CC=${CC:-cc} CXX=${CXX:-c++} cmake -S . -B "$folder" -G Ninja -U 'SKBUILD*' -DCMAKE_INSTALL_PREFIX=/usr -DCMAKE_BUILD_TYPE=RelWithDebInfo \
  "-DCMAKE_CXX_FLAGS_RELWITHDEBINFO=-O2 -g1 -DNDEBUG" -DDDPRUN_BUILD_TESTS=OFF -DDDPRUN_BUILD_EXAMPLES=OFF \
  -DDDPRUN_UNITY=ON -DDDPRUN_STATIC_RUNTIME=ON -DDDPRUN_GLIBC=$glibc -DDDPRUN_MOLD=OFF -DDDPRUN_GPU_KERNELS=OFF -DCMAKE_DISABLE_FIND_PACKAGE_Torch=ON \
  -DDDPRUN_GLOO_SOURCE="$PWD/build/gloo" >build/package.log 2>&1 ||
  fail "cmake failed" "$(tail -n 30 build/package.log)"
jobs=$(build_jobs)
note "with $jobs jobs; all that it prints is in build/package.log"
cmake --build "$folder" -j "$jobs" 2>&1 | progress build/package.log ||
  fail "the build failed" "$(grep -E 'error|FAILED' build/package.log | head -n 5)" "$(tail -n 30 build/package.log)"
note "built in $((SECONDS - begun)) s"
rm -rf build/packages
(cd "$folder" && cpack -B ../packages) >build/cpack.log 2>&1 || fail "cpack failed" "$(tail -n 30 build/cpack.log)"
rm -rf build/packages/_CPack_Packages
deb=$(echo build/packages/*.deb) archive=$(echo build/packages/*.tar.gz)
for file in "$deb" "$archive"; do note "$file: $(du -k "$file" | cut -f1) KB"; done

say "what is in them"
needed=$(dpkg-deb --field "$deb" Depends)
[[ $needed == "libc6 (>= $glibc)" ]] || fail "the package needs more than libc6 of version $glibc: $needed"
note "the package depends on $needed"
newest=$(tar -xOf "$archive" --wildcards '*/bin/*' '*.so*' 2>/dev/null | grep -ao 'GLIBC_2\.[0-9.]*' | sort -Vu | tail -n 1)
[[ $(printf '%s\n' "$newest" "GLIBC_$glibc" | sort -V | tail -n 1) == "GLIBC_$glibc" ]] ||
  fail "the archive needs $newest"
note "the archive needs $newest"
if command -v lintian >/dev/null; then
  lintian --fail-on error,warning "$deb" || fail "lintian finds what stands above"
  note "lintian finds nothing"
fi

if [[ $check == yes ]]; then
  say "using them"
  bash deploy/package/use_package.sh "$deb" "$archive"
  bash deploy/package/check_package.sh "$deb" "$archive"
fi
note "install it: apt-get install ./$deb"
