#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes build/arm64-root, what a build for 64-bit ARM on Debian 12 of x86-64 needs beside the
# packages of `deploy/install_deps.sh --arm64`: Debian's libraries for arm64, unpacked and not
# installed, and in rust/ a Rust compiler with both standard libraries. Does nothing if it is
# there. apt checks the packages' signatures as always.
#   deploy/arm64_sysroot.sh
set -euo pipefail
cd "$(dirname "$0")/.."

packages=(
  libc6-dev libstdc++-12-dev libgrpc++-dev libprotobuf-dev prometheus-cpp-dev libboost1.81-dev
  libssl-dev libzmq3-dev cppzmq-dev libcurl4-openssl-dev zlib1g-dev libedit-dev libxxhash-dev
  libgtest-dev libgmock-dev libbenchmark-dev nlohmann-json3-dev libstd-rust-web-dev
)
root=$PWD/build/arm64-root
made=$root/.made
wanted="${packages[*]} 3"
if [ -f "$made" ] && [ "$(cat "$made")" = "$wanted" ]; then exit 0; fi
rm -rf "$root"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# A system of its own for apt, in which nothing is installed.
mkdir -p "$work"/{state/lists/partial,cache/archives/partial,parts,rust}
touch "$work/status"
cat > "$work/apt.conf" <<CONF
APT::Architecture "arm64";
APT::Architectures { "arm64"; };
APT::Install-Recommends "false";
APT::Sandbox::User "$(id -un)";
Dir::State "$work/state";
Dir::State::status "$work/status";
Dir::Cache "$work/cache";
Dir::Etc::Parts "$work/parts";
CONF
echo "arm64_sysroot: downloading Debian's arm64 packages"
APT_CONFIG=$work/apt.conf apt-get update -q > "$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }
APT_CONFIG=$work/apt.conf apt-get install -y -q --download-only "${packages[@]}" \
  > "$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }

mkdir -p "$root/usr/lib"
ln -s usr/lib "$root/lib"  # as on every installed Debian 12
for package in "$work"/cache/archives/*.deb; do
  dpkg-deb --fsys-tarfile "$package" | tar -xv --keep-directory-symlink --no-same-owner -C "$root" |
    awk -v of="$(dpkg-deb -W --showformat '${Package} ${Version}' "$package")" \
      '/\.so/ { sub("^[.](/usr)?", ""); print $0, of }'
done > "$root/.libraries"  # lines "LIBRARY PACKAGE VERSION", without /usr
for package in "$work"/cache/archives/*.deb; do
  dpkg-deb -W --showformat '${Package} ${Version}\n' "$package"
done > "$root/.packages"
# A link that begins at the root would lead to this machine's files.
find "$root" -type l -lname '/*' -print0 | while IFS= read -r -d '' link; do
  ln -sfnr "$root$(readlink "$link")" "$link"
done
# What runs while building is this machine's own.
for program in /usr/bin/protoc /usr/bin/grpc_*_plugin; do ln -sf "$program" "$root/usr/bin/"; done

# rustup's compiler has no standard library for arm64 here, and Debian's must be of one version.
echo "arm64_sysroot: downloading Debian's Rust compiler"
depends() {  # depends PACKAGE PATTERN: the dependency of a downloaded package that matches
  dpkg-deb -f "$work/cache/archives/$1"_*.deb Depends | grep -o "$2" | head -n 1
}
version=$(dpkg-deb -f "$work"/cache/archives/libstd-rust-web-dev_*.deb Version)
std=$(depends libstd-rust-web-dev 'libstd-rust-web-[0-9.]*')
llvm=$(depends "$std" 'libllvm[0-9]*')
(cd "$work/rust" && apt-get download -q "rustc-web=$version" "libstd-rust-web-dev=$version" \
  "$std=$version" "$llvm" libz3-4) > "$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }
mkdir "$root/rust"
for package in "$work"/rust/*.deb; do dpkg-deb -x "$package" "$root/rust"; done
mv "$root/usr/lib/rustlib/aarch64-unknown-linux-gnu" "$root/rust/usr/lib/rustlib/"
cat > "$root/rust/rustc" <<'RUSTC'
#!/bin/sh
here=$(dirname "$0")
LD_LIBRARY_PATH=$here/usr/lib/x86_64-linux-gnu exec "$here/usr/bin/rustc" "$@"
RUSTC
chmod +x "$root/rust/rustc"
"$root/rust/rustc" --version
echo "$wanted" > "$made"
