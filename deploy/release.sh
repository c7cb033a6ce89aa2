# SPDX-License-Identifier: Apache-2.0
# Builds the server of this checkout for packages, to be sourced from the repository's root. Leaves
# `version`, and SOURCE_DATE_EPOCH, the time that packages give to their files.
version=$(sed -n 's/^project(diffserve VERSION \([0-9.]*\) .*/\1/p' CMakeLists.txt)
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct 2>/dev/null || echo 0)
export SOURCE_DATE_EPOCH
cmake --preset release >/dev/null
cmake --build build/release --target diffserve
