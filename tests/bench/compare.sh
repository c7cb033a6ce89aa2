#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# How fast this tree is beside another commit: builds both, runs `diffserve bench` of the two in
# turns, and prints the ratio of this tree's tokens/s to the commit's. A machine with other work
# says little: look at the spread too.
#   tests/bench/compare.sh [COMMIT] [--model DIR] [--pairs N] [--floor RATIO]
#       COMMIT: default: the last release's tag; DIR: a model (default: tests/bench/models/diff_160m
#       with dummy weights); N: default 7; RATIO: exit code 1 if a figure's median ratio is below it
set -euo pipefail
cd "$(dirname "$0")/../.."
usage() { sed -n '3,/^set /{/^#/p}' "$0" | sed 's/^# \{0,1\}//' >&2; exit 2; }

model=tests/bench/models/diff_160m
pairs=7
floor=0
case "${1:-}" in
  "" | -*) name=$(git describe --tags --match 'v*' --abbrev=0 2>/dev/null) || usage ;;
  *) name=$1; shift ;;
esac
commit=$(git rev-parse --verify --quiet "$name^{commit}") || usage
while [ $# -gt 0 ]; do
  case "$1" in
    --model) model=${2:?} ;;
    --pairs) pairs=${2:?} ;;
    --floor) floor=${2:?} ;;
    *) usage ;;
  esac
  shift 2
done
weights=auto
[ -e "$model/model.safetensors" ] || [ -e "$model/model.safetensors.index.json" ] || weights=dummy

work=$(mktemp -d)
remove() {
  git worktree remove --force "$work/tree" 2>/dev/null || true
  rm -rf "$work"
}
trap remove EXIT
build() {  # build TREE
  echo "building $1" >&2
  (cd "$1" && cmake --preset release && cmake --build build/release --target diffserve) \
    >"$work/build.log" 2>&1 || { tail -n 20 "$work/build.log" >&2; exit 1; }
}
git worktree add --quiet --detach "$work/tree" "$commit"
build "$work/tree"
build .

measure() {  # measure PROGRAM SIDE PAIR
  local dtype
  for dtype in float32 bfloat16; do
    "$1" bench "$model" --load-format $weights --dtype $dtype --json --repeat 1 --prompt 512,2048 \
      --depth 0 --batch 1,16 --generate 64 >"$work/$2.$3.$dtype.json"
  done
}
for ((pair = 0; pair < pairs; ++pair)); do
  echo "pair $((pair + 1)) of $pairs" >&2
  there=("$work/tree/build/release/server/diffserve" there)
  here=(build/release/server/diffserve here)
  if ((pair % 2)); then
    measure "${here[@]}" $pair
    measure "${there[@]}" $pair
  else
    measure "${there[@]}" $pair
    measure "${here[@]}" $pair
  fi
done

python3 - "$work" "$pairs" "$(git rev-parse --short "$commit")" "$floor" <<'PYTHON'
import json
import statistics
import sys

work, pairs, commit, floor = sys.argv[1], int(sys.argv[2]), sys.argv[3], float(sys.argv[4])
slower = []


def figures(side, pair, dtype):
    with open(f"{work}/{side}.{pair}.{dtype}.json") as file:
        report = json.load(file)
    return {figure["name"]: figure["tokens_per_s"]["median"]
            for figure in report["prefill"] + report["decode"]}


print(f"{'':34} {commit:>12} {'this tree':>12}  this / {commit} (median, min..max of {pairs})")
for dtype in ("float32", "bfloat16"):
    there = [figures("there", pair, dtype) for pair in range(pairs)]
    here = [figures("here", pair, dtype) for pair in range(pairs)]
    for name in here[0]:
        ratios = sorted(mine[name] / other[name] for mine, other in zip(here, there))
        speeds = [statistics.median(run[name] for run in side) for side in (there, here)]
        print(f"{dtype:9} {name:24} {speeds[0]:12.1f} {speeds[1]:12.1f}  "
              f"{statistics.median(ratios):.3f} ({ratios[0]:.3f}..{ratios[-1]:.3f})")
        if statistics.median(ratios) < floor:
            slower.append(f"{dtype} {name}")
if slower:
    sys.exit(f"below {floor} of {commit}: {', '.join(slower)}")
PYTHON
