// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "kernels/base/dtype.h"
#include "tests/kernels/shim/cublasLt.h"
#include "tests/kernels/shim/dlfcn.h"
#include "tests/kernels/shim/simulated_products.h"
#include "tests/kernels/shim/tensor_core.h"
// The loader's own functions here.
#undef dlopen
#undef dlsym
#undef dlclose

struct cublasLtContext {};
struct cublasLtMatmulDescOpaque {
  cublasOperation_t transpose_a = CUBLAS_OP_N;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const void* bias = nullptr;
  cudaDataType_t bias_type = CUDA_R_32F;
  int8_t fast_accumulation = 0;
  const float *a_scale = nullptr, *b_scale = nullptr;
  cublasLtMatmulMatrixScale_t a_scale_mode = CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
  cublasLtMatmulMatrixScale_t b_scale_mode = CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
};
struct cublasLtMatrixLayoutOpaque {
  cudaDataType_t type;
  int64_t rows, columns, stride;
};
struct cublasLtMatmulPreferenceOpaque {
  uint64_t workspace_bytes_max = 0;
  uint32_t reduction_schemes = 7;  // all
};

namespace {

namespace shim = diffserve::shim;

template <typename T>
cublasStatus_t Create(T** object, T value = {}) {
  *object = new T(value);
  return CUBLAS_STATUS_SUCCESS;
}
template <typename T>
cublasStatus_t Destroy(T* object) {
  delete object;
  return CUBLAS_STATUS_SUCCESS;
}
template <typename T>
cublasStatus_t Set(T* to, const void* value, size_t size_bytes) {
  if (size_bytes != sizeof(T)) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(to, value, sizeof(T));
  return CUBLAS_STATUS_SUCCESS;
}

float Read(const void* data, cudaDataType_t type, int64_t i) {
  if (type == CUDA_R_8F_E4M3)
    return diffserve::Fp8E4M3ToFloat(static_cast<const uint8_t*>(data)[i]);
  return type == CUDA_R_32F
             ? static_cast<const float*>(data)[i]
             : diffserve::BFloat16ToFloat(static_cast<const diffserve::BFloat16*>(data)[i]);
}
void Write(void* data, cudaDataType_t type, int64_t i, float value) {
  if (type == CUDA_R_32F) {
    static_cast<float*>(data)[i] = value;
  } else {
    static_cast<diffserve::BFloat16*>(data)[i] = diffserve::FloatToBFloat16(value);
  }
}

constexpr int64_t kColumns = shim::kTensorCoreColumns;
constexpr int64_t kDepthUnit = shim::kHopperFp8Step.depth;

// [columns in kColumns][depth, a multiple of kDepthUnit][kColumns] in float32, zeros outside.
struct Factors {
  Factors(const void* data, const cublasLtMatrixLayoutOpaque& layout)
      : depth((layout.rows + kDepthUnit - 1) / kDepthUnit * kDepthUnit) {
    const int64_t blocks = (layout.columns + kColumns - 1) / kColumns;
    values.resize(static_cast<size_t>(blocks * depth * kColumns));
    for (int64_t column = 0; column < layout.columns; ++column) {
      float* to = values.data() + column / kColumns * depth * kColumns + column % kColumns;
      for (int64_t in = 0; in < layout.rows; ++in)
        to[in * kColumns] = Read(data, layout.type, column * layout.stride + in);
    }
  }
  const float* Block(int64_t first) const { return values.data() + first * depth; }

  int64_t depth;
  std::vector<float> values;
};

// D = A^T B (+ bias) (+ C), with the descriptors' values at the call. Wherever the descriptors and
// the documentation leave cuBLASLt a choice, the coarsest: parts of a split product and a product
// that something is added to are rounded to D's type.
struct Product {
  cublasLtMatmulDescOpaque desc;
  cublasLtMatrixLayoutOpaque a, b, d;
  const void *weight, *x;
  void* y;
  bool accumulate;
  cublasLtMatmulAlgo_t algorithm = {};

  // As cuBLASLt wants it, and no more than the backend uses.
  bool IsFp8() const {
    const int64_t d_bytes = d.type == CUDA_R_32F ? 4 : 2;
    return a.type == CUDA_R_8F_E4M3 && a.rows % 16 == 0 && a.columns % 16 == 0 &&
           a.stride % 16 == 0 && b.stride % 16 == 0 && d.stride * d_bytes % 16 == 0 &&
           desc.epilogue == CUBLASLT_EPILOGUE_DEFAULT && (!accumulate || d.type == CUDA_R_32F) &&
           (HasScales() || (d.type == CUDA_R_32F && !accumulate));
  }
  // One scale per column of A and one per column of B. cuBLASLt has this for 8-bit inputs on
  // compute capability 9.0 only.
  bool HasScales() const {
    return desc.a_scale_mode == CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F &&
           desc.b_scale_mode == CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F &&
           desc.a_scale != nullptr && desc.b_scale != nullptr;
  }
  bool ScalesAreAllowed() const {
    if (HasScales()) return a.type == CUDA_R_8F_E4M3;
    return desc.a_scale_mode == CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F &&
           desc.b_scale_mode == CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F &&
           desc.a_scale == nullptr && desc.b_scale == nullptr;
  }
  bool IsSupported() const {
    return !HasScales() || shim::simulated_device.compute_capability_major == 9;
  }
  bool IsConsistent() const {
    return desc.transpose_a == CUBLAS_OP_T && a.rows == b.rows && a.columns == d.rows &&
           b.columns == d.columns && a.stride >= a.rows && b.stride >= b.rows &&
           d.stride >= d.rows && a.type == b.type && (a.type == CUDA_R_16BF || IsFp8()) &&
           ScalesAreAllowed() &&
           (desc.epilogue != CUBLASLT_EPILOGUE_BIAS || desc.bias_type == d.type);
  }

  cudaError_t Compute() const {
    shim::multiply_adds += b.columns * a.rows * a.columns;
    shim::simulated_products.rows_multiplied += b.columns;
    const Factors factors(weight, a);
    std::vector<float> row_of_x(static_cast<size_t>(factors.depth));
    for (int64_t row = 0; row < b.columns; ++row) {
      for (int64_t in = 0; in < a.rows; ++in)
        row_of_x[static_cast<size_t>(in)] = Read(x, b.type, row * b.stride + in);
      for (int64_t first = 0; first < a.columns; first += kColumns) {
        float sums[kColumns] = {};
        AddParts(row_of_x.data(), factors.Block(first), factors.depth / kDepthUnit, sums);
        for (int64_t i = 0; i < std::min(kColumns, a.columns - first); ++i)
          Finish(row, first + i, sums[i]);
      }
    }
    return cudaSuccess;
  }

 private:
  void AddParts(const float* x_row, const float* factors, int64_t steps, float* sums) const {
    const int64_t part = (steps + algorithm.split_k - 1) / algorithm.split_k;
    for (int64_t begin = 0; begin < steps; begin += part) {
      float partial[kColumns] = {};
      const int64_t count = std::min(part, steps - begin);
      const float* from_x = x_row + begin * kDepthUnit;
      const float* from_factors = factors + begin * kDepthUnit * kColumns;
      IsFp8() ? AddFp8(from_x, from_factors, count, partial)
              : AddBFloat16(from_x, from_factors, count, partial);
      for (int64_t i = 0; i < kColumns; ++i)
        sums[i] += algorithm.rounds_parts ? InTypeOfD(partial[i]) : partial[i];
    }
  }

  static void AddBFloat16(const float* x_row, const float* factors, int64_t steps, float* sums) {
    constexpr int64_t kDepth = shim::kAmpereStep.depth;
    for (int64_t k = 0; k < steps * kDepthUnit; k += kDepth)
      shim::AddProducts<shim::kAmpereStep>(x_row + k, factors + k * kColumns, kColumns, sums);
  }

  // Without fast accumulation the tensor core's sums are promoted to float32 every 128 products:
  // the documentation says "periodically", and this is what NVIDIA's CUTLASS does.
  void AddFp8(const float* x_row, const float* factors, int64_t steps, float* sums) const {
    const int64_t chain = desc.fast_accumulation != 0 ? steps : 4;
    for (int64_t begin = 0; begin < steps; begin += chain) {
      float partial[kColumns] = {};
      for (int64_t step = begin; step < std::min(begin + chain, steps); ++step) {
        shim::AddProducts<shim::kHopperFp8Step>(
            x_row + step * kDepthUnit, factors + step * kDepthUnit * kColumns, kColumns, partial);
      }
      for (int64_t i = 0; i < kColumns; ++i) sums[i] += partial[i];
    }
  }

  float InTypeOfD(float value) const {
    return d.type == CUDA_R_32F ? value
                                : diffserve::BFloat16ToFloat(diffserve::FloatToBFloat16(value));
  }

  void Finish(int64_t row, int64_t column, float sum) const {
    const int64_t at = row * d.stride + column;
    if (HasScales()) sum *= desc.a_scale[column] * desc.b_scale[row];
    sum = InTypeOfD(sum);
    if (desc.epilogue == CUBLASLT_EPILOGUE_BIAS) sum += Read(desc.bias, desc.bias_type, column);
    if (accumulate) sum += Read(y, d.type, at);
    Write(y, d.type, at, sum);
  }
};

// The library's functions by name.
const std::map<std::string, void*>& Functions() {
  const auto address = [](auto* function) { return reinterpret_cast<void*>(function); };
  static const std::map<std::string, void*> functions = {
      {"cublasLtCreate", address(&cublasLtCreate)},
      {"cublasLtDestroy", address(&cublasLtDestroy)},
      {"cublasLtGetStatusString", address(&cublasLtGetStatusString)},
      {"cublasLtGetVersion", address(&cublasLtGetVersion)},
      {"cublasLtMatmulDescCreate", address(&cublasLtMatmulDescCreate)},
      {"cublasLtMatmulDescDestroy", address(&cublasLtMatmulDescDestroy)},
      {"cublasLtMatmulDescSetAttribute", address(&cublasLtMatmulDescSetAttribute)},
      {"cublasLtMatrixLayoutCreate", address(&cublasLtMatrixLayoutCreate)},
      {"cublasLtMatrixLayoutDestroy", address(&cublasLtMatrixLayoutDestroy)},
      {"cublasLtMatmulPreferenceCreate", address(&cublasLtMatmulPreferenceCreate)},
      {"cublasLtMatmulPreferenceDestroy", address(&cublasLtMatmulPreferenceDestroy)},
      {"cublasLtMatmulPreferenceSetAttribute", address(&cublasLtMatmulPreferenceSetAttribute)},
      {"cublasLtMatmulAlgoGetHeuristic", address(&cublasLtMatmulAlgoGetHeuristic)},
      {"cublasLtMatmulAlgoCheck", address(&cublasLtMatmulAlgoCheck)},
      {"cublasLtMatmulAlgoConfigGetAttribute", address(&cublasLtMatmulAlgoConfigGetAttribute)},
      {"cublasLtMatmul", address(&cublasLtMatmul)}};
  return functions;
}

char cublas;  // its address stands for the open library

}  // namespace

namespace diffserve::shim {

void* OpenLibrary(const char* path, int flags) {
  const std::string name = path;
  if (!simulated_products.is_installed && name.find("libcublasLt.so") != std::string::npos)
    return nullptr;
  return name.starts_with("libcublasLt.so") ? &cublas : dlopen(path, flags);
}
void* FindFunction(void* library, const char* name) {
  if (library != &cublas) return dlsym(library, name);
  const auto found = Functions().find(name);
  return found == Functions().end() ? nullptr : found->second;
}
int CloseLibrary(void* library) { return library == &cublas ? 0 : dlclose(library); }

}  // namespace diffserve::shim

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) { return Create(handle); }
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) { return Destroy(handle); }
const char* cublasLtGetStatusString(cublasStatus_t status) {
  return status == CUBLAS_STATUS_SUCCESS         ? "CUBLAS_STATUS_SUCCESS"
         : status == CUBLAS_STATUS_NOT_SUPPORTED ? "CUBLAS_STATUS_NOT_SUPPORTED"
                                                 : "another cublasStatus_t";
}
size_t cublasLtGetVersion() { return 130000; }
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* desc, cublasComputeType_t,
                                        cudaDataType_t) {
  return Create(desc);
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) { return Destroy(desc); }
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, size_t size_bytes) {
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return Set(&desc->transpose_a, value, size_bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      return Set(&desc->epilogue, value, size_bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      return Set(&desc->bias, value, size_bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
      return Set(&desc->bias_type, value, size_bytes);
    case CUBLASLT_MATMUL_DESC_FAST_ACCUM:
      return Set(&desc->fast_accumulation, value, size_bytes);
    case CUBLASLT_MATMUL_DESC_A_SCALE_POINTER:
      return Set(&desc->a_scale, value, size_bytes);
    case CUBLASLT_MATMUL_DESC_B_SCALE_POINTER:
      return Set(&desc->b_scale, value, size_bytes);
    case CUBLASLT_MATMUL_DESC_A_SCALE_MODE:
      return Set(&desc->a_scale_mode, value, size_bytes);
    case CUBLASLT_MATMUL_DESC_B_SCALE_MODE:
      return Set(&desc->b_scale_mode, value, size_bytes);
  }
  return CUBLAS_STATUS_INVALID_VALUE;
}
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType_t type,
                                          uint64_t rows, uint64_t columns, int64_t stride) {
  return Create(layout, {type, static_cast<int64_t>(rows), static_cast<int64_t>(columns), stride});
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  return Destroy(layout);
}
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  return Create(preference);
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  return Destroy(preference);
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, size_t size_bytes) {
  if (attribute == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES)
    return Set(&preference->workspace_bytes_max, value, size_bytes);
  if (attribute == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK)
    return Set(&preference->reduction_schemes, value, size_bytes);
  return size_bytes == sizeof(uint32_t) ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

// The first candidate may split the product; the second never does. Parts are added in D's type if
// that is allowed.
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t* results,
                                              int* found) {
  const Product product = {*desc, *a, *b, *d, nullptr, nullptr, nullptr, false};
  if (!product.IsConsistent()) return CUBLAS_STATUS_INVALID_VALUE;
  if (!product.IsSupported()) return CUBLAS_STATUS_NOT_SUPPORTED;
  const size_t workspace = shim::simulated_products.workspace_bytes_of_candidates;
  ++shim::simulated_products.choices_made;
  constexpr uint32_t kInTypeOfD = CUBLASLT_REDUCTION_SCHEME_INPLACE |
                                  CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE;
  *found = 0;
  if (workspace > preference->workspace_bytes_max) return CUBLAS_STATUS_NOT_SUPPORTED;
  for (int split_k : {shim::simulated_products.split_k_of_first_candidate, 1}) {
    if (*found == wanted) break;
    results[(*found)++] = {{split_k, (preference->reduction_schemes & kInTypeOfD) != 0},
                           workspace,
                           CUBLAS_STATUS_SUCCESS};
  }
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t,
                                       cublasLtMatrixLayout_t, cublasLtMatrixLayout_t b,
                                       cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                       const cublasLtMatmulAlgo_t* algorithm,
                                       cublasLtMatmulHeuristicResult_t* result) {
  if (b->columns == shim::simulated_products.rows_refused) return CUBLAS_STATUS_NOT_SUPPORTED;
  *result = {*algorithm, shim::simulated_products.workspace_bytes_of_candidates,
             CUBLAS_STATUS_SUCCESS};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t* algorithm,
                                                    cublasLtMatmulAlgoConfigAttributes_t attribute,
                                                    void* value, size_t size_bytes,
                                                    size_t* written) {
  if (size_bytes != sizeof(int32_t)) return CUBLAS_STATUS_INVALID_VALUE;
  const int32_t known = attribute == CUBLASLT_ALGO_CONFIG_SPLITK_NUM ? algorithm->split_k : 0;
  std::memcpy(value, &known, sizeof(known));
  *written = sizeof(known);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t desc, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                              cublasLtMatrixLayout_t b_layout, const void* beta, const void* c,
                              cublasLtMatrixLayout_t, void* d, cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t* algorithm, void*, size_t workspace_bytes,
                              cudaStream_t stream) {
  const Product product = {*desc,     *a_layout, *b_layout, *d_layout,
                           a,         b,         d,         *static_cast<const float*>(beta) == 1,
                           *algorithm};
  if (*static_cast<const float*>(alpha) != 1 || c != d ||
      workspace_bytes < shim::simulated_products.workspace_bytes_of_candidates ||
      b_layout->columns == shim::simulated_products.rows_refused || !product.IsConsistent() ||
      !product.IsSupported()) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  const cudaError_t error = shim::Enqueue(
      stream,
      [product] { return shim::simulated_device.runs_kernels ? product.Compute() : cudaSuccess; },
      /*is_kernel=*/true);
  return error == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}
