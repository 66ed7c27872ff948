#!/bin/sh
# Installs Remat into an empty folder and builds consumer.c against it, by pkg-config and by find_package, outside the repository.
# Usage: check.sh SOURCE BUILD CC [FLAGS of the build's sanitizer]
set -eu
source=$1 build=$2 cc=$3
shift 3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cmake --install "$build" --prefix "$work/first" >/dev/null
mv "$work/first" "$work/tree" # installed files must not depend on their first location
sh "$source/tests/install/search_paths.sh" "$build" "$work/tree"
sh "$source/tests/docs/check_links.sh" "$work/tree/share/doc/remat"
mkdir "$work/own"
cp "$source/tests/install/consumer.c" "$source/tests/install/CMakeLists.txt" "$source/examples/06_two_ranks.c" \
    "$source/examples/08_write_an_op.c" "$source"/examples/softsign*.[ch] \
    "$source/examples/common.h" "$work/own"
cd "$work/own"

pc=$(find "$work/tree" -name remat.pc)
export PKG_CONFIG_PATH="${pc%/*}"
export LD_LIBRARY_PATH="${PKG_CONFIG_PATH%/*}" # where -lremat finds libremat.so, if it exists
# shellcheck disable=SC2046
$cc "$@" consumer.c $(pkg-config --cflags --libs remat) -o by_pkg_config
./by_pkg_config
# shellcheck disable=SC2046
$cc "$@" consumer.c $(pkg-config --static --cflags --libs remat) -o by_pkg_config_static
./by_pkg_config_static
# shellcheck disable=SC2046
$cc "$@" 06_two_ranks.c $(pkg-config --cflags --libs remat) -o ranks_by_pkg_config
# The line of examples/README.md: with -rpath the program needs no variable.
# shellcheck disable=SC2046
$cc "$@" consumer.c $(pkg-config --cflags --libs remat) -Wl,-rpath,"$LD_LIBRARY_PATH" -o by_rpath
(unset LD_LIBRARY_PATH && ./by_rpath)
# A custom op: it behaves as the example says, including the mistake that remat_op_check must find.
# shellcheck disable=SC2046
$cc "$@" 08_write_an_op.c softsign.c softsign_f64.c $(pkg-config --cflags --libs remat) -o op_by_pkg_config
sh "$source/examples/check.sh" ./op_by_pkg_config 08_write_an_op.c

# The library does not change its program: it links no allocator, loads no BLAS before it is needed, and exports only its own names.
! ldd by_pkg_config by_pkg_config_static ranks_by_pkg_config | grep -E 'jemalloc|blas' ||
    { echo "programs are linked to unrequested libraries"; exit 1; }
names() { nm --defined-only "$@" | awk 'NF == 3 && $2 ~ /[A-Z]/ && $2 != "A" { print $3 }' | grep -v '^remat_'; }
! names -g "${PKG_CONFIG_PATH%/*}/libremat.a" || { echo "libremat.a exports these names"; exit 1; }
[ ! -e "${PKG_CONFIG_PATH%/*}/libremat.so" ] || ! names -D "${PKG_CONFIG_PATH%/*}/libremat.so" ||
    { echo "libremat.so exports these names"; exit 1; }

# The header alone compiles as C++ without warnings, including the initial value of a config.
cat >header.cpp <<'END'
#include <remat_op.h>
remat_status describe(remat_graph *g, remat_session **s) {
    const int64_t shape[] = {4, 2};
    remat_config config = REMAT_CONFIG_INIT;
    remat_value x = remat_input(g, "x", REMAT_F32, REMAT_STATIC, 2, shape);
    remat_value y = remat_linear(g, x, remat_param(g, "w", 2, shape, remat_init_uniform(1)), REMAT_NONE);
    remat_op op = remat_op();
    remat_apply(g, &op, &y, 1, NULL, &y);
    return remat_session_create(g, remat_mse(g, y, x), &config, s);
}
END
! command -v c++ >/dev/null || c++ -Wall -Wextra -Wpedantic -Werror -fsyntax-only -I"$work/tree/include" header.cpp

cmake -S . -B build -DCMAKE_PREFIX_PATH="$work/tree" -DCMAKE_C_COMPILER="$cc" -DCMAKE_C_FLAGS="$*" >configure.log ||
    { cat configure.log; exit 1; }
cmake --build build >build.log || { cat build.log; exit 1; }
./build/consumer
[ ! -x build/consumer_shared ] || ./build/consumer_shared
for program in build/own_op build/own_op_shared; do
    [ ! -x "$program" ] || sh "$source/examples/check.sh" "./$program" 08_write_an_op.c
done

"$work/tree/bin/remat" info >/dev/null
for file in include/remat.h include/remat_op.h libremat.a RematConfig.cmake; do
    [ "$(find "$work/tree" -path "*/$file")" ] || { echo "not installed: $file"; exit 1; }
done
for module in mpi gloo; do
    [ ! -e "$build/remat_$module.so" ] || [ "$(find "$work/tree" -path "*/remat/remat_$module.so")" ] ||
        { echo "not installed: remat_$module.so"; exit 1; }
done

# Ranks: with the built-in engine, and with modules found in the installation.
in_ranks() { sh "$source/examples/check_ranks.sh" "$work/tree/bin/remat" "$1" 06_two_ranks.c 3 $2; }
in_mpi() {
    OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 LSAN_OPTIONS=detect_leaks=0 \
        mpirun --oversubscribe -np 2 "$1" mpi >mpi.log 2>&1 && [ "$(grep -c '^rank [01] of 2: loss' mpi.log)" -eq 2 ] ||
        { echo "$1 under mpirun:"; cat mpi.log; exit 1; }
}
REMAT_MODULES=${PKG_CONFIG_PATH%/*}/remat
export REMAT_MODULES
for program in ranks_by_pkg_config build/two_ranks build/two_ranks_shared; do
    [ ! -x "$program" ] || in_ranks "./$program" ""
    [ ! -x "$program" ] || [ ! -e "$REMAT_MODULES/remat_gloo.so" ] || in_ranks "./$program" gloo
    [ ! -x "$program" ] || [ ! -e "$REMAT_MODULES/remat_mpi.so" ] || ! command -v mpirun >/dev/null || in_mpi "./$program"
done
! grep -rn "$source\|$build" "$work/tree/lib"*/cmake "$pc" || { echo "the installed files name the build tree"; exit 1; }
echo "the installed Remat works"
