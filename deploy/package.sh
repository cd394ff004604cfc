#!/usr/bin/env bash
# Builds the Debian package and the archive of ddprun's programs and C library:
# build/packages/ddprun_VERSION_ARCHITECTURE.deb and ddprun-VERSION-linux-MACHINE.tar.gz. They need libc alone.
#   deploy/package.sh            builds both
#   deploy/package.sh --check    also installs, uses and removes the package in a fresh Debian 12 that has nothing but
#                                its essential packages (debootstrap, root), and uses the archive there from two folders
# Needs a network for pip, which downloads Gloo's source into build/gloo.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source deploy/packages.sh
source deploy/gloo.sh

read_arguments "$@"

say "packages"
install_missing "${wheel_packages[@]}" dpkg-dev
make_tools
say "Gloo"
download_gloo

say "building"
folder=build/package
need_disk_gb . 2 "build files"
cmake -S . -B "$folder" -G Ninja -DCMAKE_INSTALL_PREFIX=/usr -DCMAKE_BUILD_TYPE=RelWithDebInfo \
  "-DCMAKE_CXX_FLAGS_RELWITHDEBINFO=-O2 -g1 -DNDEBUG" -DDDPRUN_BUILD_TESTS=OFF -DDDPRUN_BUILD_EXAMPLES=OFF \
  -DDDPRUN_UNITY=ON -DDDPRUN_STATIC_RUNTIME=ON -DDDPRUN_MOLD=OFF -DDDPRUN_GPU_KERNELS=OFF -DCMAKE_DISABLE_FIND_PACKAGE_Torch=ON \
  -DDDPRUN_GLOO_SOURCE="$PWD/build/gloo" >build/package.log 2>&1 ||
  fail "cmake failed" "$(tail -n 30 build/package.log)"
NINJA_STATUS='   [%f/%t %es] ' cmake --build "$folder" -j "$(build_jobs)"
rm -rf build/packages
(cd "$folder" && cpack -B ../packages) >build/package.log 2>&1 ||
  fail "cpack failed" "$(tail -n 30 build/package.log)"
rm -rf build/packages/_CPack_Packages
deb=$(echo build/packages/*.deb) archive=$(echo build/packages/*.tar.gz)
for file in "$deb" "$archive"; do note "$file: $(du -k "$file" | cut -f1) KB"; done

say "what is in them"
needed=$(dpkg-deb --field "$deb" Depends)
[[ $needed =~ ^libc6\ \([^,]*\)$ ]] || fail "the package needs more than libc6: $needed"
note "the package depends on $needed"

if [[ $check == yes ]]; then
  say "using them"
  bash deploy/package/check_package.sh "$deb" "$archive"
fi
note "install it: apt-get install ./$deb"
