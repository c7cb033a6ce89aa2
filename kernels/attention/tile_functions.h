// SPDX-License-Identifier: Apache-2.0
// The register tiles of each codec by number of queries. Only *.isa.cc files include this.
#pragma once

#include "kernels/attention/code_tiles.h"
#include "kernels/attention/diff_attention_tiles.h"

namespace diffserve::DS_ISA {

template <typename Codec>
struct TileFunctions {
  void (*one_run)(const QueryRunTile<Codec>&);
  void (*several_runs)(const QueryRunTile<Codec>&);  // RunsAtOnce
  void (*values)(const ValueTile<Codec>&);
};
template <typename Codec, int R>
constexpr TileFunctions<Codec> kFunctions = {Scores<Codec, R, 1>, Scores<Codec, R, RunsAtOnce(R)>,
                                             AddValues<Codec, R>};
template <typename Codec, int R>
  requires kHasScales<Codec>
constexpr TileFunctions<Codec> kFunctions<Codec, R> = {
    CodeScores<Codec, R, 1>, CodeScores<Codec, R, RunsAtOnce(R)>, AddCodeValues<Codec, R>};
// The functions, by number of queries.
template <typename Codec>
constexpr TileFunctions<Codec> kTileFunctions[kTile + 1] = {
    {},
    kFunctions<Codec, 1>,
    kFunctions<Codec, 2>,
    kFunctions<Codec, 3>,
    kFunctions<Codec, 4>,
    kFunctions<Codec, 5>,
    kFunctions<Codec, 6>,
};

}  // namespace diffserve::DS_ISA
