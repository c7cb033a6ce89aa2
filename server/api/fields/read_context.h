// SPDX-License-Identifier: Apache-2.0
// ReadContext: what a reader of bodies knows of the server.
#pragma once

#include "server/serving/frontend.h"

namespace diffserve {

struct ReadContext {
  const FrontendOptions* options = nullptr;
  SamplingSpec default_sampling;
};

}  // namespace diffserve
