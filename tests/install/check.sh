#!/bin/sh
# Installs Remat into an empty folder and builds consumer.c against what lies there, by pkg-config and by find_package,
# from outside the repository. Usage: check.sh SOURCE BUILD CC [FLAGS of the build's sanitizer]
set -eu
source=$1 build=$2 cc=$3
shift 3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cmake --install "$build" --prefix "$work/first" >/dev/null
mv "$work/first" "$work/tree" # nothing may remember where it was installed first
mkdir "$work/own"
cp "$source/tests/install/consumer.c" "$source/tests/install/CMakeLists.txt" "$work/own"
cd "$work/own"

pc=$(find "$work/tree" -name remat.pc)
export PKG_CONFIG_PATH="${pc%/*}"
# shellcheck disable=SC2046
$cc "$@" consumer.c $(pkg-config --cflags --libs remat) -o by_pkg_config
./by_pkg_config
# shellcheck disable=SC2046
$cc "$@" consumer.c $(pkg-config --static --cflags --libs remat) -o by_pkg_config_static
./by_pkg_config_static

# The header alone is also C++.
printf '#include <remat.h>\nint main() { return remat_init_zero().scale != 0; }\n' >header.cpp
! command -v c++ >/dev/null || c++ -Wall -Wextra -Werror -fsyntax-only -I"$work/tree/include" header.cpp

cmake -S . -B build -DCMAKE_PREFIX_PATH="$work/tree" -DCMAKE_C_COMPILER="$cc" -DCMAKE_C_FLAGS="$*" >configure.log ||
    { cat configure.log; exit 1; }
cmake --build build >build.log || { cat build.log; exit 1; }
./build/consumer
[ ! -x build/consumer_shared ] || ./build/consumer_shared

"$work/tree/bin/remat" info >/dev/null
for file in include/remat.h libremat.a RematConfig.cmake; do
    [ "$(find "$work/tree" -path "*/$file")" ] || { echo "not installed: $file"; exit 1; }
done
for module in mpi gloo; do
    [ ! -e "$build/dist/remat_$module.so" ] || [ "$(find "$work/tree" -path "*/remat/remat_$module.so")" ] ||
        { echo "not installed: remat_$module.so"; exit 1; }
done
! grep -rn "$source\|$build" "$work/tree/lib"*/cmake "$pc" || { echo "the installed files name the build tree"; exit 1; }
echo "the installed Remat works"
