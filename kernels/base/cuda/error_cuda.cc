// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "kernels/base/cuda/error.cuh"

namespace diffserve::cuda {

bool IsSticky(cudaError_t error) {
  switch (error) {
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorContained:
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorContextIsDestroyed:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorMpsClientTerminated:
    case cudaErrorExternalDevice:
    case cudaErrorTensorMemoryLeak:
    case cudaErrorUnknown:
      return true;
    default:
      return false;
  }
}

Status ToStatus(cudaError_t error, std::string_view call) {
  if (error == cudaSuccess) return Status();
  static_cast<void>(cudaGetLastError());
  std::string message = std::string(call) + ": " + cudaGetErrorString(error) + " (" +
                        cudaGetErrorName(error) + ")";
  if (IsSticky(error))
    return Status(StatusCode::kDeviceLost,
                  message + "; this or an earlier kernel has lost the CUDA context");
  switch (error) {
    case cudaErrorMemoryAllocation:
      return Status(StatusCode::kResourceExhausted, std::move(message));
    case cudaErrorInsufficientDriver:
    case cudaErrorStubLibrary:
    case cudaErrorSystemDriverMismatch:
    case cudaErrorCompatNotSupportedOnDevice:
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorUnsupportedPtxVersion:
      return Status(StatusCode::kNotFound, std::move(message));
    case cudaErrorNoDevice:
    case cudaErrorDevicesUnavailable:
    case cudaErrorSystemNotReady:
    case cudaErrorMpsRpcFailure:
    case cudaErrorMpsServerNotReady:
      return Status(StatusCode::kDeviceLost, std::move(message));
    default:
      return Status(StatusCode::kInternal, std::move(message));
  }
}

Status StatusOfCudaError(int error, std::string_view call) {
  return ToStatus(static_cast<cudaError_t>(error), call);
}

}  // namespace diffserve::cuda
