#!/bin/sh
# cpack makes a .deb that holds what is installed, and depends on what it needs. Usage: package.sh BUILD
set -eu
build=$1
for program in cpack dpkg-deb dpkg-shlibdeps file; do
    command -v $program >/dev/null || { echo "skipped: needs $program"; exit 77; }
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$build"
cpack -G DEB -B "$work" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
package=$(echo "$work"/remat_*.deb)
dpkg-deb -c "$package" >"$work/files"
dpkg-deb -f "$package" >"$work/fields"
for file in bin/remat include/remat.h include/remat_op.h libremat.a libremat.so pkgconfig/remat.pc RematConfig.cmake man1/remat.1 \
    bash-completion/completions/remat zsh/vendor-completions/_remat doc/remat/copyright doc/remat/README.md \
    doc/remat/docs/promises.md doc/remat/examples/01_fit_a_line.c; do
    grep -q " \./usr/.*$file" "$work/files" || { echo "the package has no $file"; exit 1; }
done
! grep -v ' \./\(usr/.*\)\?$' "$work/files" || { echo "the package has files outside /usr"; exit 1; }
for needed in libc6 libjansson4 zlib1g; do
    grep -q "^Depends:.*$needed" "$work/fields" || { cat "$work/fields"; echo "the package does not depend on $needed"; exit 1; }
done
echo "the package is whole: $(sed -n 's/^Depends: //p' "$work/fields")"
