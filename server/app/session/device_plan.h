// SPDX-License-Identifier: Apache-2.0
// Which device a planned session runs on.
#pragma once

#include "server/app/session/model_session.h"

namespace diffserve {

// Fills what the plan says of the device, and its summary. Error: no such GPU, or none with kernels
// for the model, if the CPU is not allowed.
Status ChooseDevice(const DeviceChoice& asked, SessionPlan* plan);

}  // namespace diffserve
