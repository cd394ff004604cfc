#!/bin/bash
# Collects what ddprun is built on for a machine that has nothing of it and no network: headers, and the
# libraries that Debian 12 has only as shared ones. tests/gpu/run.sh --deps FOLDER builds with it.
#   tests/gpu/pack.sh FOLDER     FOLDER must not exist yet; about 30 MB
# Runs on a Debian 12 with the packages of deploy/packages.sh. Works where glibc is 2.36 or later.
set -euo pipefail
cd "$(dirname "$0")/../.."
pack=${1:?where to? pack.sh FOLDER}
[ ! -e "$pack" ] || { echo "pack.sh: $pack is there already" >&2; exit 1; }
dpkg --print-architecture > /dev/null || { echo "pack.sh: this is no Debian" >&2; exit 1; }
mkdir -p "$pack"
arch=$(g++ -print-multiarch)
lib=/usr/lib/$arch

take() {  # PATH...: copied to the same place below the pack
  for path in "$@"; do
    [ -e "$path" ] || { echo "pack.sh: $path is missing (deploy/packages.sh)" >&2; exit 1; }
    mkdir -p "$pack$(dirname "$path")"
    cp -a "$path" "$pack$(dirname "$path")/"
  done
}

# Of Boost what our sources include, by way of other headers too; of the parts that look at the compiler
# whole folders, as another one may take other branches.
included=$(git ls-files '*.cc' '*.h' | xargs -d '\n' grep -hoE '^#include <boost/[^>]+>' | sort -u |
  g++ -std=c++20 -M -x c++ - | grep -oE '/usr/include/boost/[^ \\]+' | sort -u)
for header in $included; do
  mkdir -p "$pack${header%/*}"
  case $header in
    */boost/asio/* | */boost/config/*) find "${header%/*}" -maxdepth 1 -type f ;;
    *) echo "$header" ;;
  esac
done | sort -u > "$pack/headers"
while read -r header; do cp -a "$header" "$pack$header"; done < "$pack/headers"
rm "$pack/headers"

take /usr/include/{gloo,CLI,spdlog,fmt,nlohmann,openssl,catch2,hwloc,hwloc.h,zlib.h,zconf.h}
cp -a "/usr/include/$arch/openssl/." "$pack/usr/include/openssl/"
[ ! -e "/usr/include/$arch/zconf.h" ] || cp -a "/usr/include/$arch/zconf.h" "$pack/usr/include/"
take "$lib"/cmake/{spdlog,fmt,Boost-1.81.0,boost_headers-1.81.0} \
  /usr/share/cmake/{CLI11,nlohmann_json} /usr/lib/cmake/Catch2
take "$lib"/lib{ssl,crypto,z}.a /usr/lib/libCatch2WithMain.a

# Shared libraries, with those that they need and that no machine has of itself, in one folder.
shared=$pack/usr/lib/$arch
add_shared() {  # FILE
  local file name needed
  file=$(readlink -f "$1")
  name=$(objdump -p "$file" | awk '$1 == "SONAME" {print $2}')
  [ ! -e "$shared/$name" ] || return 0
  cp "$file" "$shared/$name"
  for needed in $(objdump -p "$file" | awk '$1 == "NEEDED" {print $2}'); do
    case $needed in
      libc.so.*|libm.so.*|libstdc++.so.*|libgcc_s.so.*|ld-linux*|libpthread.so.*|libdl.so.*|librt.so.*) ;;
      *) add_shared "$(ldconfig -p | awk -v name="$needed" '$1 == name {print $NF; exit}')" ;;
    esac
  done
}
link() {  # FILE: the name that the linker or a cmake configuration looks for
  local name
  name=$(objdump -p "$(readlink -f "$1")" | awk '$1 == "SONAME" {print $2}')
  for also in "$(basename "$1")" "$(basename "$(readlink -f "$1")")"; do
    [ -e "$shared/$also" ] || ln -s "$name" "$shared/$also"
  done
}
for file in /usr/lib/libgloo.so "$lib"/lib{spdlog,fmt}.so; do
  add_shared "$file"
  link "$file"
done

# What cmake is told first (cmake -C).
cat > "$pack/pack.cmake" << END
set(pack "\${CMAKE_CURRENT_LIST_DIR}/usr")
set(lib "\${pack}/lib/$arch")
set(Boost_DIR "\${lib}/cmake/Boost-1.81.0" CACHE PATH "")
set(boost_headers_DIR "\${lib}/cmake/boost_headers-1.81.0" CACHE PATH "")
set(spdlog_DIR "\${lib}/cmake/spdlog" CACHE PATH "")
set(fmt_DIR "\${lib}/cmake/fmt" CACHE PATH "")
set(CLI11_DIR "\${pack}/share/cmake/CLI11" CACHE PATH "")
set(nlohmann_json_DIR "\${pack}/share/cmake/nlohmann_json" CACHE PATH "")
set(Catch2_DIR "\${pack}/lib/cmake/Catch2" CACHE PATH "")
# FindOpenSSL drops what it is told, so it is led.
set(CMAKE_INCLUDE_PATH "\${pack}/include" CACHE PATH "")
set(CMAKE_LIBRARY_PATH "\${lib}" CACHE PATH "")
set(ZLIB_INCLUDE_DIR "\${pack}/include" CACHE PATH "")
set(ZLIB_LIBRARY "\${lib}/libz.a" CACHE FILEPATH "")
set(GLOO_INCLUDE_DIR "\${pack}/include" CACHE PATH "")
set(GLOO_LIBRARY "\${lib}/libgloo.so" CACHE FILEPATH "")
set(HWLOC_INCLUDE_DIR "\${pack}/include" CACHE PATH "")
# For the libraries that these need, too: hence not the newer kind of path.
foreach(kind EXE SHARED)
  set(CMAKE_\${kind}_LINKER_FLAGS "-Wl,--disable-new-dtags,-rpath,\${lib},-rpath-link,\${lib}" CACHE STRING "")
endforeach()
END
du --apparent-size -sh "$pack" | sed 's/^/packed: /'
