#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes the files of a release page for CPUs from a clone that is tagged as a release and looks at
# them; the scripts that prove each file are checks of their own (docs/install.md). As root on
# Debian 12. The last line is "N passed, N failed".
set -uo pipefail
cd "$(dirname "$0")/../.."
. deploy/checks.sh
tests/clients/install.sh build/release_tools tests/release/requirements.txt || exit 1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
release=$(deploy/version.sh --release)
commit=$(git -c safe.directory='*' rev-parse --short=12 HEAD)

# ---- The version
matches "a commit that is no release is one before the next" \
  "^${release%.*}\.$((${release##*.} + 1))\.dev0\+g$commit$|^$release$" "$(deploy/version.sh)"
for file in CITATION.cff deploy/helm/diffserve/Chart.yaml docs/openapi.yaml CHANGELOG.md \
  deploy/kubernetes/kserve.yaml; do
  matches "$file has the version" "(^|[^0-9.])${release//./\\.}([^0-9.]|$)" "$(cat $file)"
done
git -c safe.directory='*' clone --quiet . "$work/tree"
git ls-files -z --cached --others --exclude-standard | xargs -0 cp --parents -t "$work/tree"
git -C "$work/tree" tag "v$release"
expect "the tagged commit is the release" "$release" "$("$work/tree/deploy/version.sh")"
expect "without .git the version names no commit" \
  "${release%.*}.$((${release##*.} + 1)).dev0+gunknown" \
  "$(mkdir "$work/bare" && cp --parents CMakeLists.txt deploy/version.sh "$work/bare" &&
    "$work/bare/deploy/version.sh")"

# ---- The files
(cd "$work/tree" && deploy/make_release.sh "$work/page") >"$work/log" 2>&1
expect "the files are made" 0 $?
[ -d "$work/page" ] || { tail -n 20 "$work/log"; finish; exit 1; }
wheel=diffserve-$release-py3-none-manylinux_2_36_x86_64.whl
expect "the page has these files" "NOTES.md SHA256SUMS diffserve-$release-linux-x86_64.tar.gz\
 $wheel diffserve-$release.cdx.json diffserve_${release}_amd64.deb" \
  "$(cd "$work/page" && LC_ALL=C ls | xargs)"
expect "the sums are those of all other files" "5 OK" \
  "$(cd "$work/page" && sha256sum --check SHA256SUMS 2>&1 | grep -c ': OK$') OK"
matches "the notes are the release's" '^### ' "$(cat "$work/page/NOTES.md")"
expect "the notes end before the release before" "" "$(grep '^## \[' "$work/page/NOTES.md")"
python3 -m zipfile -e "$work/page/$wheel" "$work/wheel"
chmod +x "$work/wheel/diffserve/bin/diffserve"
matches "the program is the release" "^version: ${release//./\\.}$" \
  "$("$work/wheel/diffserve/bin/diffserve" --version)"
expect "the server in it is compiled by the preset release" "OFF" \
  "$(sed -n 's/^DIFFSERVE_QUICK_BUILD:BOOL=//p' "$work/tree/build/release/CMakeCache.txt")"

# ---- The bill of materials
bill=$work/page/diffserve-$release.cdx.json
build/release_tools/bin/python - "$bill" <<'PYTHON'
import sys
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

problem = JsonStrictValidator(SchemaVersion.V1_5).validate_str(open(sys.argv[1]).read())
if problem:
    sys.exit(str(problem)[:2000])
PYTHON
expect "the bill is valid CycloneDX 1.5" 0 $?
expect "the bill is the release's" "diffserve $release" \
  "$(jq -r '.metadata.component | "\(.name) \(.version)"' "$bill")"
expect "the bill lists what THIRD_PARTY.md lists" \
  "$(sed -n 's/^| \[\{0,1\}\([A-Za-z0-9_.+-]*\)[] ].*/\1/p' THIRD_PARTY.md | grep -v '^name$' |
    LC_ALL=C sort | xargs)" "$(jq -r '.components[].name' "$bill" | LC_ALL=C sort | xargs)"
expect "each component has a version and a licence" "" "$(jq -r '.components[] |
  select(.version == "" or (.licenses | length) == 0) | .name' "$bill")"
(cd "$work/tree" && deploy/sbom.py build/release/server/diffserve "$work/again.json")
expect "the same commit gives the same bill" "$(sha256sum <"$bill")" \
  "$(sha256sum <"$work/again.json")"

# ---- The workflow
expect "the workflow makes each part that the script has" \
  "image image_cuda notes package sums tarball tarball_arm64 tarball_cuda wheel wheel_arm64\
 wheel_cuda" \
  "$(.venv/bin/python - <<'PYTHON'
import yaml

jobs = yaml.safe_load(open(".github/workflows/release.yml"))["jobs"]
parts = [part for job in jobs.values() for part in job.get("strategy", {}).get(
    "matrix", {}).get("part", [])]
commands = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
made = next(line for line in commands if "notes" in line).split()[2:]
print(*sorted(parts + made))
PYTHON
  )"
finish
