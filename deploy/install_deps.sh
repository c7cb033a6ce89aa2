#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The one list of what a Debian 12 machine needs to build and run diffserve. Run as root; does
# nothing if all of it is there. Other systems and processors are refused, unless they have it all.
#   deploy/install_deps.sh          to build and serve
#   deploy/install_deps.sh --test   and what the tests use: promtool, Prometheus, libfaketime, zsh,
#                                   fish, and a Python virtual environment in .venv, with JSON
#                                   Schema's and Jinja2's own test suites beside it
#   deploy/install_deps.sh --browser   and Chromium, for tests/ui
#   deploy/install_deps.sh --package   and what deploy/wheel.sh and deploy/tarball.sh use
#   deploy/install_deps.sh --fuzz   and what libFuzzer (the preset `fuzz`) needs: clang's runtime
#                                   libraries
#   deploy/install_deps.sh --coverage   and what the preset `coverage` needs: the same and llvm-cov
#   deploy/install_deps.sh --arm64   and the cross compiler and QEMU of the preset `arm64`, whose
#                                   libraries deploy/arm64_sysroot.sh has
set -euo pipefail
cd "$(dirname "$0")/.."

packages=(
  build-essential cmake ninja-build pkg-config git ca-certificates curl ccache clang-19 cbindgen
  libgrpc++-dev libprotobuf-dev protobuf-compiler protobuf-compiler-grpc
  nlohmann-json3-dev prometheus-cpp-dev libboost1.81-dev libssl-dev libzmq3-dev cppzmq-dev \
    libcurl4-openssl-dev zlib1g-dev libedit-dev \
    libxxhash-dev libgtest-dev libgmock-dev libbenchmark-dev
)
with_tests=false
for option in "$@"; do
  case "$option" in
    --test)
      with_tests=true
      packages+=(python3 python3-venv prometheus libfaketime zsh fish)
      ;;
    --browser) packages+=(chromium chromium-driver fonts-dejavu-core) ;;
    --package) packages+=(patchelf python3-hatchling) ;;
    --fuzz) packages+=(libclang-rt-19-dev) ;;
    --coverage) packages+=(libclang-rt-19-dev llvm-19) ;;
    --arm64) packages+=(g++-aarch64-linux-gnu qemu-user-static) ;;
    *)
      echo "usage: deploy/install_deps.sh [--test] [--browser] [--package] [--fuzz]" \
        "[--coverage] [--arm64]" >&2
      exit 2
      ;;
  esac
done

# A Rust toolchain of the machine's own will do if it is new enough for the crates in
# engine/text/crates.
minimum_rust=1.85
rust_version=$( (cargo --version 2>/dev/null || true) | awk '{print $2}')
if [ -z "$rust_version" ] ||
  [ "$(printf '%s\n' "$minimum_rust" "$rust_version" | sort -V | head -n 1)" != "$minimum_rust" ]
then
  packages+=(cargo-web rustc-web)
fi

missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' ||
    missing+=("$package")
done
# shellcheck source=/dev/null
system="$(. /etc/os-release 2>/dev/null && echo "${ID:-} ${VERSION_ID:-}") $(uname -m)"
if [ ${#missing[@]} -gt 0 ] && [ "$system" != "debian 12 x86_64" ]; then
  echo "deploy/install_deps.sh: this is $system; packages are installed on debian 12 x86_64 only." \
    "On any x86-64 system with Docker, deploy/image.sh makes an image and deploy/image.sh wheel" \
    "a Python wheel; .devcontainer is for developers (docs/install.md)" >&2
  exit 1
fi
if [ ${#missing[@]} -gt 0 ]; then
  echo "installing: ${missing[*]}"
  apt-get update -q
  DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}"
fi

if $with_tests; then
  stamp=.venv/.requirements
  if ! cmp -s tests/e2e/requirements.txt "$stamp"; then
    python3 -m venv .venv
    .venv/bin/pip install -q --disable-pip-version-check --no-compile --no-deps \
      -r tests/e2e/requirements.txt
    cp tests/e2e/requirements.txt "$stamp"
  fi
  # The sources of a package, which have its own tests. What builds it may come built.
  download_sources() {  # download_sources PACKAGE FOLDER REQUIREMENTS
    cmp -s "$3" "$2/.requirements" && return
    .venv/bin/pip download -q --disable-pip-version-check --no-deps --no-binary "$1" -d "$2" -r "$3"
    cp "$3" "$2/.requirements"
  }
  download_sources jsonschema .venv/json-schema-suite tests/schema/requirements.txt
  download_sources jinja2 .venv/jinja2-suite tests/templates/requirements.txt
fi
