#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes a site with a search of all pages in build/site, and fails at a link or an anchor that leads
# nowhere. The last line is "N passed, N failed", of pages.
set -euo pipefail
cd "$(dirname "$0")/.."
tests/clients/install.sh build/site_tools docs/site_requirements.txt
pages=build/site_pages
rm -rf "$pages"
mkdir -p "$pages"
mapfile -t markdown < <(git -c safe.directory='*' ls-files '*.md' ':!.github')
cp --parents -t "$pages" "${markdown[@]}" LICENSE NOTICE CITATION.cff docs/openapi.yaml
# Pictures and other files that pages show.
git -c safe.directory='*' ls-files '*.svg' '*.png' | xargs cp --parents -t "$pages"
export NO_MKDOCS_2_WARNING=1
build/site_tools/bin/mkdocs build --strict --clean --config-file docs/mkdocs.yml
built=$(find build/site -name index.html | wc -l)
[ "$built" -ge "${#markdown[@]}" ] ||
  { echo "$built pages of ${#markdown[@]} were made"; echo "0 passed, 1 failed"; exit 1; }
echo "$built passed, 0 failed"
