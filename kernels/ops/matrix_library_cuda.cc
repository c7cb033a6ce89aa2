// SPDX-License-Identifier: Apache-2.0
#include <cublasLt.h>
#include <dlfcn.h>

#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/base/cuda/device.h"
#include "kernels/base/cuda/memory.h"
#include "kernels/ops/matrix_library.h"

namespace diffserve::cuda {
namespace {

// The code stays mapped (RTLD_NODELETE): CUDA runs some of it at exit.
struct CloseLibrary {
  void operator()(void* library) const { dlclose(library); }
};
using Library = std::unique_ptr<void, CloseLibrary>;

// The functions in use, looked up by name.
struct Functions {
  decltype(&cublasLtCreate) create;
  decltype(&cublasLtDestroy) destroy;
  decltype(&cublasLtGetStatusString) status_string;
  decltype(&cublasLtMatmulDescCreate) desc_create;
  decltype(&cublasLtMatmulDescDestroy) desc_destroy;
  decltype(&cublasLtMatmulDescSetAttribute) desc_set;
  decltype(&cublasLtMatrixLayoutCreate) layout_create;
  decltype(&cublasLtMatrixLayoutDestroy) layout_destroy;
  decltype(&cublasLtMatmulPreferenceCreate) preference_create;
  decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy;
  decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set;
  decltype(&cublasLtMatmulAlgoGetHeuristic) get_heuristic;
  decltype(&cublasLtMatmulAlgoCheck) check_algorithm;
  decltype(&cublasLtMatmul) matmul;
};

template <typename Function>
Status Find(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  if (*function != nullptr) return Status();
  return Status(StatusCode::kNotFound, std::string("cuBLASLt has no function ") + name);
}

Status FindAll(void* library, Functions* f) {
  DS_RETURN_IF_ERROR(Find(library, "cublasLtCreate", &f->create));
  DS_RETURN_IF_ERROR(Find(library, "cublasLtDestroy", &f->destroy));
  DS_RETURN_IF_ERROR(Find(library, "cublasLtGetStatusString", &f->status_string));
  DS_RETURN_IF_ERROR(Find(library, "cublasLtMatmulDescCreate", &f->desc_create));
  DS_RETURN_IF_ERROR(Find(library, "cublasLtMatmulDescDestroy", &f->desc_destroy));
  DS_RETURN_IF_ERROR(Find(library, "cublasLtMatmulDescSetAttribute", &f->desc_set));
  DS_RETURN_IF_ERROR(Find(library, "cublasLtMatrixLayoutCreate", &f->layout_create));
  DS_RETURN_IF_ERROR(Find(library, "cublasLtMatrixLayoutDestroy", &f->layout_destroy));
  DS_RETURN_IF_ERROR(Find(library, "cublasLtMatmulPreferenceCreate", &f->preference_create));
  DS_RETURN_IF_ERROR(Find(library, "cublasLtMatmulPreferenceDestroy", &f->preference_destroy));
  DS_RETURN_IF_ERROR(Find(library, "cublasLtMatmulPreferenceSetAttribute", &f->preference_set));
  DS_RETURN_IF_ERROR(Find(library, "cublasLtMatmulAlgoGetHeuristic", &f->get_heuristic));
  DS_RETURN_IF_ERROR(Find(library, "cublasLtMatmulAlgoCheck", &f->check_algorithm));
  return Find(library, "cublasLtMatmul", &f->matmul);
}

Result<Library> OpenShared(const std::string& path) {
  const std::string name = "libcublasLt.so." + std::to_string(CUBLAS_VER_MAJOR);
  std::vector<std::string> candidates = {path};
  if (path.empty())
    candidates = {name, DIFFSERVE_CUBLAS_FOLDER "/" + name, "/usr/local/cuda/lib64/" + name};
  std::string tried;
  for (const std::string& candidate : candidates) {
    if (Library library(dlopen(candidate.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE));
        library != nullptr)
      return library;
    const char* reason = dlerror();
    tried += (tried.empty() ? "" : "; ") + std::string(reason == nullptr ? candidate : reason);
  }
  return Status(StatusCode::kNotFound, "cuBLASLt cannot be opened: " + tried);
}

constexpr int kInvariantRows = 128;  // a batch-invariant layer's kernel is chosen for this number
constexpr uint32_t kAlignment = 16;  // bytes, for every pointer: rows of a batch may start anywhere

int YStride(const MatrixProduct& product) {
  return product.y_stride > 0 ? product.y_stride : product.out_features;
}
cudaDataType_t TypeOf(DType dtype) {
  if (dtype == DType::kFp8E4M3) return CUDA_R_8F_E4M3;
  return dtype == DType::kFloat32 ? CUDA_R_32F : CUDA_R_16BF;
}

}  // namespace

class MatrixLibrary::State {
 public:
  static Result<std::unique_ptr<State>> Open(const MatrixLibraryOptions& options) {
    Result<Library> library = OpenShared(options.path);
    if (!library.ok()) return library.status();
    std::unique_ptr<State> state(new State(options, std::move(*library)));
    DS_RETURN_IF_ERROR(FindAll(state->library_.get(), &state->f_));
    DS_RETURN_IF_ERROR(state->ToStatus(state->f_.create(&state->handle_), "cublasLtCreate"));
    Result<DeviceBuffer> workspace = DeviceBuffer::Allocate(options.workspace_bytes);
    if (!workspace.ok()) return workspace.status();
    state->workspace_ = std::move(*workspace);
    return state;
  }

  ~State() {
    Forget();
    if (handle_ != nullptr) f_.destroy(handle_);
  }

  Status Multiply(const MatrixProduct& product, const Stream& stream) {
    DS_CHECK(product.y_dtype != DType::kFloat16, "products are float32 or bfloat16");
    if (product.num_rows == 0) return Status();
    const Shape shape = {product.input_dtype,    product.num_rows, product.in_features,
                         product.out_features,   YStride(product), product.y_dtype,
                         product.bias != nullptr};
    auto found = prepared_.find(shape);
    if (found == prepared_.end()) {
      if (prepared_.size() >= static_cast<size_t>(options_.shapes_max)) Forget();
      Prepared prepared;
      if (Status status = Make(product, &prepared); !status.ok()) {
        Destroy(prepared);
        return status;
      }
      found = prepared_.emplace(shape, prepared).first;
    }
    return Launch(found->second, product, stream);
  }

 private:
  using Shape = std::tuple<DType, int, int, int, int, DType, bool>;

  // cuBLASLt counts columns first: its D is y^T [out_features, rows], A is W transposed back, B is
  // x^T.
  struct Prepared {
    cublasLtMatmulDesc_t desc = nullptr;
    cublasLtMatrixLayout_t a = nullptr, b = nullptr, d = nullptr;
    cublasLtMatmulAlgo_t algorithm = {};
  };

  State(const MatrixLibraryOptions& options, Library library)
      : options_(options), library_(std::move(library)) {}

  Status ToStatus(cublasStatus_t status, const char* call) const {
    if (status == CUBLAS_STATUS_SUCCESS) return Status();
    // The status does not say whether the context is alive; CUDA does.
    const Result<DeviceMemory> memory = MemoryOfDevice();
    const bool lost = !memory.ok() && IsContextLost(memory.status());
    return Status(lost ? StatusCode::kUnavailable : StatusCode::kInternal,
                  std::string(call) + ": " + f_.status_string(status));
  }

  template <typename Value>
  Status Set(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute,
             const Value& value) const {
    return ToStatus(f_.desc_set(desc, attribute, &value, sizeof(value)),
                    "cublasLtMatmulDescSetAttribute");
  }

  Status Make(const MatrixProduct& product, Prepared* prepared) const {
    const auto in = static_cast<uint64_t>(product.in_features),
               out = static_cast<uint64_t>(product.out_features);
    DS_RETURN_IF_ERROR(ToStatus(f_.desc_create(&prepared->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F),
                                "cublasLtMatmulDescCreate"));
    DS_RETURN_IF_ERROR(Set(prepared->desc, CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T));
    if (product.bias != nullptr) {
      DS_RETURN_IF_ERROR(
          Set(prepared->desc, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS));
      DS_RETURN_IF_ERROR(
          Set(prepared->desc, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, TypeOf(product.y_dtype)));
      DS_RETURN_IF_ERROR(Set(prepared->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, product.bias));
    }
    DS_RETURN_IF_ERROR(ToStatus(
        f_.layout_create(&prepared->a, TypeOf(product.input_dtype), in, out, product.in_features),
        "cublasLtMatrixLayoutCreate"));
    if (!options_.batch_invariant || product.num_rows == kInvariantRows) {
      DS_RETURN_IF_ERROR(LayRows(product, product.num_rows, prepared));
      return Choose(product, prepared);
    }
    DS_RETURN_IF_ERROR(LayRows(product, kInvariantRows, prepared));
    DS_RETURN_IF_ERROR(Choose(product, prepared));
    f_.layout_destroy(std::exchange(prepared->b, nullptr));
    f_.layout_destroy(std::exchange(prepared->d, nullptr));
    DS_RETURN_IF_ERROR(LayRows(product, product.num_rows, prepared));
    cublasLtMatmulHeuristicResult_t found = {};
    return ToStatus(f_.check_algorithm(handle_, prepared->desc, prepared->a, prepared->b,
                                       prepared->d, prepared->d, &prepared->algorithm, &found),
                    "cublasLtMatmulAlgoCheck");
  }

  Status LayRows(const MatrixProduct& product, int num_rows, Prepared* prepared) const {
    const auto rows = static_cast<uint64_t>(num_rows);
    const auto in = static_cast<uint64_t>(product.in_features),
               out = static_cast<uint64_t>(product.out_features);
    constexpr const char* kCall = "cublasLtMatrixLayoutCreate";
    DS_RETURN_IF_ERROR(ToStatus(
        f_.layout_create(&prepared->b, TypeOf(product.input_dtype), in, rows, product.in_features),
        kCall));
    return ToStatus(
        f_.layout_create(&prepared->d, TypeOf(product.y_dtype), out, rows, YStride(product)),
        kCall);
  }

  Status Choose(const MatrixProduct& product, Prepared* prepared) const {
    cublasLtMatmulPreference_t preference = nullptr;
    DS_RETURN_IF_ERROR(
        ToStatus(f_.preference_create(&preference), "cublasLtMatmulPreferenceCreate"));
    const uint64_t workspace_bytes = workspace_.size_bytes();
    const uint32_t schemes = options_.batch_invariant ? CUBLASLT_REDUCTION_SCHEME_NONE
                                                      : CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    cublasStatus_t status = f_.preference_set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                              &workspace_bytes, sizeof(uint64_t));
    if (status == CUBLAS_STATUS_SUCCESS) {
      status = f_.preference_set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes,
                                 sizeof(schemes));
    }
    for (const auto attribute :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
      if (status == CUBLAS_STATUS_SUCCESS)
        status = f_.preference_set(preference, attribute, &kAlignment, sizeof(kAlignment));
    }
    cublasLtMatmulHeuristicResult_t best = {};
    int count = 0;
    if (status == CUBLAS_STATUS_SUCCESS) {
      status = f_.get_heuristic(handle_, prepared->desc, prepared->a, prepared->b, prepared->d,
                                prepared->d, preference, 1, &best, &count);
    }
    f_.preference_destroy(preference);
    if (status == CUBLAS_STATUS_NOT_SUPPORTED || (status == CUBLAS_STATUS_SUCCESS && count == 0)) {
      return Status(StatusCode::kUnimplemented, "cuBLASLt has no kernel for rows x in x out = " +
                                                    std::to_string(product.num_rows) + " x " +
                                                    std::to_string(product.in_features) + " x " +
                                                    std::to_string(product.out_features));
    }
    prepared->algorithm = best.algo;
    return ToStatus(status, "cublasLtMatmulAlgoGetHeuristic");
  }

  Status Launch(const Prepared& prepared, const MatrixProduct& product,
                const Stream& stream) const {
    if (product.bias != nullptr)
      DS_RETURN_IF_ERROR(Set(prepared.desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, product.bias));
    const float alpha = 1, beta = product.accumulate ? 1 : 0;
    return ToStatus(
        f_.matmul(handle_, prepared.desc, &alpha, product.weight, prepared.a, product.x, prepared.b,
                  &beta, product.y, prepared.d, product.y, prepared.d, &prepared.algorithm,
                  workspace_.data(), workspace_.size_bytes(), stream.handle()),
        "cublasLtMatmul");
  }

  void Destroy(const Prepared& prepared) const {
    if (prepared.d != nullptr) f_.layout_destroy(prepared.d);
    if (prepared.b != nullptr) f_.layout_destroy(prepared.b);
    if (prepared.a != nullptr) f_.layout_destroy(prepared.a);
    if (prepared.desc != nullptr) f_.desc_destroy(prepared.desc);
  }

  void Forget() {
    for (const auto& [shape, prepared] : prepared_) Destroy(prepared);
    prepared_.clear();
  }

  MatrixLibraryOptions options_;
  Library library_;
  Functions f_ = {};
  cublasLtHandle_t handle_ = nullptr;
  DeviceBuffer workspace_;
  std::map<Shape, Prepared> prepared_;
};

MatrixLibrary::MatrixLibrary(std::unique_ptr<State> state, DeviceBuffer scratch,
                             bool batch_invariant)
    : state_(std::move(state)), scratch_(std::move(scratch)), batch_invariant_(batch_invariant) {}
MatrixLibrary::~MatrixLibrary() = default;

Result<std::unique_ptr<MatrixLibrary>> MatrixLibrary::Open(const MatrixLibraryOptions& options) {
  Result<std::unique_ptr<State>> state = State::Open(options);
  if (!state.ok()) return state.status();
  Result<DeviceBuffer> scratch = DeviceBuffer::Allocate(options.scratch_bytes);
  if (!scratch.ok()) return scratch.status();
  return std::unique_ptr<MatrixLibrary>(
      new MatrixLibrary(std::move(*state), std::move(*scratch), options.batch_invariant));
}

Status MatrixLibrary::Multiply(const MatrixProduct& product, const Stream& stream) {
  return state_->Multiply(product, stream);
}

}  // namespace diffserve::cuda
