// SPDX-License-Identifier: Apache-2.0
// `diffserve devices`: the GPUs that CUDA shows. serve --models starts it to learn of them, so that
// it needs no CUDA context of its own.
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "kernels/base/cuda/device.h"
#include "server/app/commands/commands.h"
#include "server/json/json_writer.h"

namespace diffserve {
namespace {

std::optional<std::string> RefusalOf(const cuda::DeviceInfo& device) {
  const Status usable = cuda::CheckDevice(device);
  return usable.ok() ? std::nullopt : std::optional(usable.message());
}

void PrintText(const std::vector<cuda::DeviceInfo>& devices) {
  for (const cuda::DeviceInfo& device : devices) {
    const std::optional<std::string> refusal = RefusalOf(device);
    std::printf("%-8s %s  %s%s\n", cuda::NameOfDevice(device.ordinal).c_str(),
                cuda::Describe(device).c_str(), device.uuid.c_str(),
                refusal ? ("  not used: " + *refusal).c_str() : "");
  }
}

void PrintJson(const std::vector<cuda::DeviceInfo>& devices, const std::string& reason) {
  const std::string text = JsonObjectOf([&](JsonWriter& json) {
    json.Key("gpus").Begin('[');
    for (const cuda::DeviceInfo& device : devices) {
      json.Begin('{').Add("device", cuda::NameOfDevice(device.ordinal)).Add("name", device.name);
      json.Add("uuid", device.uuid).Add("compute_capability", device.compute_capability);
      json.Add("memory_mib", device.memory_bytes >> 20).Add("refusal", RefusalOf(device)).End('}');
    }
    json.End(']').Add("reason", reason.empty() ? std::nullopt : std::optional(reason));
  });
  std::printf("%s\n", text.c_str());
}

}  // namespace

Status RunDevices(bool json) {
  const Result<std::vector<cuda::DeviceInfo>> found = cuda::ListDevices();
  const std::vector<cuda::DeviceInfo> devices = found.ok() ? *found
                                                           : std::vector<cuda::DeviceInfo>();
  const std::string reason = found.status().message();
  if (json) {
    PrintJson(devices, reason);
  } else if (devices.empty()) {
    std::printf("no GPU: %s\n", reason.c_str());
  } else {
    PrintText(devices);
  }
  return {};
}

}  // namespace diffserve
