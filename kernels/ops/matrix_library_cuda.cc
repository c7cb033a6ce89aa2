// SPDX-License-Identifier: Apache-2.0
#include <cublasLt.h>
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <map>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/base/cuda/device.h"
#include "kernels/base/cuda/memory.h"
#include "kernels/ops/matrix_library.h"
#include "kernels/process/log.h"

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
  decltype(&cublasLtMatmulAlgoConfigGetAttribute) algorithm_attribute;
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
  DS_RETURN_IF_ERROR(
      Find(library, "cublasLtMatmulAlgoConfigGetAttribute", &f->algorithm_attribute));
  return Find(library, "cublasLtMatmul", &f->matmul);
}

Result<Library> OpenShared(const std::string& path) {
  const std::string name = "libcublasLt.so." + std::to_string(CUBLAS_VER_MAJOR);
  std::vector<std::string> candidates = {path};
  if (path.empty()) candidates = {name, DIFFSERVE_CUBLAS_FOLDER "/" + name};
  std::string tried;
  for (const std::string& candidate : candidates) {
    if (Library library(dlopen(candidate.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE));
        library != nullptr)
      return library;
    const char* reason = dlerror();
    tried += (tried.empty() ? "" : "; ") + std::string(reason == nullptr ? candidate : reason);
  }
  return Status(StatusCode::kNotFound, "cuBLASLt of CUDA " + std::to_string(CUBLAS_VER_MAJOR) +
                                           " cannot be opened (" + tried +
                                           "); `pip install nvidia-cublas` brings it");
}

constexpr int kInvariantRows = 128;  // a batch-invariant layer's kernel is chosen for this number
constexpr int kCandidatesMax = 8;    // kernels that a choice is made from
constexpr uint32_t kAlignment = 16;  // bytes, for every pointer: rows of a batch may start anywhere

int64_t YStride(const MatrixProduct& product) {
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
    DS_CHECK(product.y_dtype == DType::kFloat32 || (product.y_dtype == DType::kBFloat16 &&
                                                    product.bias == nullptr && !product.accumulate),
             "y is float32, or bfloat16 to which nothing is added");
    if (product.num_rows == 0) return Status();
    const Shape shape = {product.input_dtype,  product.num_rows,        product.in_features,
                         product.out_features, product.x_stride,        YStride(product),
                         product.y_dtype,      product.bias != nullptr, product.x_scale != nullptr};
    auto found = prepared_.find(shape);
    if (found == prepared_.end()) {
      if (prepared_.size() >= static_cast<size_t>(options_.shapes_max)) Forget();
      Prepared prepared;
      if (Status status = Make(product, stream, &prepared); !status.ok()) {
        Destroy(prepared);
        return status;
      }
      found = prepared_.emplace(shape, prepared).first;
    }
    return Run(found->second, product, stream);
  }

  // Whether there is a kernel for fp8 inputs with scales, for both types of y.
  bool ScalesRows() const {
    const auto* const scale = workspace_.as<float>();  // never read
    for (const DType y_dtype : {DType::kFloat32, DType::kBFloat16}) {
      const MatrixProduct product = {.input_dtype = DType::kFp8E4M3,
                                     .in_features = 256,
                                     .out_features = 256,
                                     .x_stride = 256,
                                     .num_rows = kInvariantRows,
                                     .y_dtype = y_dtype,
                                     .weight_scale = scale,
                                     .x_scale = scale};
      Prepared prepared;
      Status status = Describe(product, &prepared);
      if (status.ok()) status = LayRows(product, product.num_rows, &prepared);
      if (status.ok()) status = Choose(product, &prepared);
      Destroy(prepared);
      if (!status.ok()) return false;
    }
    return true;
  }

 private:
  using Shape = std::tuple<DType, int, int, int, int64_t, int64_t, DType, bool, bool>;

  // cuBLASLt counts columns first: its D is y^T [out_features, rows], A is W transposed back, B is
  // x^T. `is_padded`: B and D have kInvariantRows rows, whatever the number of the product's.
  struct Prepared {
    cublasLtMatmulDesc_t desc = nullptr;
    cublasLtMatrixLayout_t a = nullptr, b = nullptr, d = nullptr;
    cublasLtMatmulAlgo_t algorithm = {};
    bool is_padded = false;
  };

  State(const MatrixLibraryOptions& options, Library library)
      : options_(options), library_(std::move(library)) {}

  Status ToStatus(cublasStatus_t status, const char* call) const {
    if (status == CUBLAS_STATUS_SUCCESS) return Status();
    // The status does not say whether the context is alive; CUDA does.
    const Result<DeviceMemory> memory = MemoryOfDevice();
    if (!memory.ok() && IsDeviceLost(memory.status())) return memory.status();
    return Status(StatusCode::kInternal, std::string(call) + ": " + f_.status_string(status));
  }

  template <typename Value>
  Status Set(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute,
             const Value& value) const {
    return ToStatus(f_.desc_set(desc, attribute, &value, sizeof(value)),
                    "cublasLtMatmulDescSetAttribute");
  }

  // All but the rows and the kernel.
  Status Describe(const MatrixProduct& product, Prepared* prepared) const {
    const auto in = static_cast<uint64_t>(product.in_features),
               out = static_cast<uint64_t>(product.out_features);
    DS_RETURN_IF_ERROR(ToStatus(f_.desc_create(&prepared->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F),
                                "cublasLtMatmulDescCreate"));
    DS_RETURN_IF_ERROR(Set(prepared->desc, CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T));
    // An fp8 product's short sums in the tensor cores are added in float32. Inside one of them
    // Hopper keeps 14 bits whatever is asked.
    if (product.input_dtype == DType::kFp8E4M3)
      DS_RETURN_IF_ERROR(Set(prepared->desc, CUBLASLT_MATMUL_DESC_FAST_ACCUM, int8_t{0}));
    if (product.x_scale != nullptr) {
      for (const auto mode : {CUBLASLT_MATMUL_DESC_A_SCALE_MODE, CUBLASLT_MATMUL_DESC_B_SCALE_MODE})
        DS_RETURN_IF_ERROR(Set(prepared->desc, mode, CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F));
      DS_RETURN_IF_ERROR(SetScales(*prepared, product));
    }
    if (product.bias != nullptr) {
      DS_RETURN_IF_ERROR(
          Set(prepared->desc, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS));
      DS_RETURN_IF_ERROR(Set(prepared->desc, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, CUDA_R_32F));
      DS_RETURN_IF_ERROR(Set(prepared->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, product.bias));
    }
    return ToStatus(
        f_.layout_create(&prepared->a, TypeOf(product.input_dtype), in, out, product.in_features),
        "cublasLtMatrixLayoutCreate");
  }

  Status Make(const MatrixProduct& product, const Stream& stream, Prepared* prepared) {
    DS_RETURN_IF_ERROR(Describe(product, prepared));
    if (!options_.batch_invariant || product.num_rows == kInvariantRows) {
      DS_RETURN_IF_ERROR(LayRows(product, product.num_rows, prepared));
      return Choose(product, prepared);
    }
    DS_RETURN_IF_ERROR(LayRows(product, kInvariantRows, prepared));
    DS_RETURN_IF_ERROR(Choose(product, prepared));
    DS_RETURN_IF_ERROR(LayRows(product, product.num_rows, prepared));
    cublasLtMatmulHeuristicResult_t found = {};
    const cublasStatus_t status = f_.check_algorithm(handle_, prepared->desc, prepared->a,
                                                     prepared->b, prepared->d, prepared->d,
                                                     &prepared->algorithm, &found);
    if (status == CUBLAS_STATUS_SUCCESS && found.workspaceSize <= workspace_.size_bytes())
      return Status();
    Log(LogLevel::kWarning, "matrix_rows_padded",
        {{"shape", SizesOf(product)},
         {"reason", f_.status_string(status)},
         {"workspace_bytes", std::to_string(found.workspaceSize)}});
    return Pad(product, stream, prepared);
  }

  Status SetScales(const Prepared& prepared, const MatrixProduct& product) const {
    DS_RETURN_IF_ERROR(
        Set(prepared.desc, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, product.weight_scale));
    return Set(prepared.desc, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, product.x_scale);
  }

  // The layers' one kernel does not take this number of rows by itself: it gets kInvariantRows at a
  // time, the last of them from memory of our own.
  Status Pad(const MatrixProduct& product, const Stream& stream, Prepared* prepared) {
    prepared->is_padded = true;
    DS_RETURN_IF_ERROR(LayRows(product, kInvariantRows, prepared));
    const size_t x_bytes = XBytes(product, product.x_stride) * kInvariantRows;
    const size_t y_bytes = StrideBytesOfY(product) * kInvariantRows;
    for (const auto& [buffer, bytes] : {std::pair(&padded_x_, x_bytes), {&padded_y_, y_bytes}}) {
      if (buffer->size_bytes() >= bytes) continue;
      DS_RETURN_IF_ERROR(stream.Synchronize());
      *buffer = DeviceBuffer();
      DS_RETURN_IF_ERROR(Assign(buffer, DeviceBuffer::Allocate(bytes)));
    }
    return Status();
  }

  static size_t XBytes(const MatrixProduct& product, int64_t elements) {
    return static_cast<size_t>(elements) * SizeOf(product.input_dtype);
  }
  static size_t StrideBytesOfY(const MatrixProduct& product) {
    return static_cast<size_t>(YStride(product)) * SizeOf(product.y_dtype);
  }
  static std::string SizesOf(const MatrixProduct& product) {
    return std::to_string(product.num_rows) + " x " + std::to_string(product.in_features) + " x " +
           std::to_string(product.out_features);
  }

  Status LayRows(const MatrixProduct& product, int num_rows, Prepared* prepared) const {
    for (cublasLtMatrixLayout_t* layout : {&prepared->b, &prepared->d}) {
      if (*layout != nullptr) f_.layout_destroy(std::exchange(*layout, nullptr));
    }
    const auto rows = static_cast<uint64_t>(num_rows);
    const auto in = static_cast<uint64_t>(product.in_features),
               out = static_cast<uint64_t>(product.out_features);
    constexpr const char* kCall = "cublasLtMatrixLayoutCreate";
    DS_RETURN_IF_ERROR(ToStatus(
        f_.layout_create(&prepared->b, TypeOf(product.input_dtype), in, rows, product.x_stride),
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
    std::array<cublasLtMatmulHeuristicResult_t, kCandidatesMax> candidates = {};
    int count = 0;
    if (status == CUBLAS_STATUS_SUCCESS) {
      status = f_.get_heuristic(
          handle_, prepared->desc, prepared->a, prepared->b, prepared->d, prepared->d, preference,
          options_.batch_invariant ? kCandidatesMax : 1, candidates.data(), &count);
    }
    f_.preference_destroy(preference);
    if (status != CUBLAS_STATUS_SUCCESS && status != CUBLAS_STATUS_NOT_SUPPORTED)
      return ToStatus(status, "cublasLtMatmulAlgoGetHeuristic");
    for (const auto& candidate : std::span(candidates).first(static_cast<size_t>(count))) {
      if (!Fits(candidate)) continue;
      prepared->algorithm = candidate.algo;
      LogChoice(product, candidate);
      return Status();
    }
    return Status(StatusCode::kUnimplemented,
                  "cuBLASLt has no kernel for rows x in x out = " + SizesOf(product) + ", of " +
                      std::to_string(count) + " that it names");
  }

  // A kernel that splits a product over in_features adds in another order for each number of rows.
  bool Fits(const cublasLtMatmulHeuristicResult_t& candidate) const {
    if (candidate.state != CUBLAS_STATUS_SUCCESS ||
        candidate.workspaceSize > workspace_.size_bytes()) {
      return false;
    }
    return !options_.batch_invariant ||
           AttributeOf(candidate.algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM) <= 1;
  }

  // A number of 32 bits; -1 if the library does not tell.
  int AttributeOf(const cublasLtMatmulAlgo_t& algorithm,
                  cublasLtMatmulAlgoConfigAttributes_t attribute) const {
    int32_t value = -1;
    size_t written = 0;
    const cublasStatus_t status = f_.algorithm_attribute(&algorithm, attribute, &value,
                                                         sizeof(value), &written);
    return status == CUBLAS_STATUS_SUCCESS ? value : -1;
  }

  void LogChoice(const MatrixProduct& product,
                 const cublasLtMatmulHeuristicResult_t& choice) const {
    const auto attribute = [&](cublasLtMatmulAlgoConfigAttributes_t name) {
      return std::to_string(AttributeOf(choice.algo, name));
    };
    Log(LogLevel::kDebug, "matrix_kernel_chosen",
        {{"shape", SizesOf(product)},
         {"tile", attribute(CUBLASLT_ALGO_CONFIG_TILE_ID)},
         {"stages", attribute(CUBLASLT_ALGO_CONFIG_STAGES_ID)},
         {"split_k", attribute(CUBLASLT_ALGO_CONFIG_SPLITK_NUM)},
         {"workspace_bytes", std::to_string(choice.workspaceSize)}});
  }

  Status Run(const Prepared& prepared, const MatrixProduct& product, const Stream& stream) const {
    if (!prepared.is_padded) return Launch(prepared, product, stream);
    for (int first = 0; first < product.num_rows; first += kInvariantRows) {
      MatrixProduct rows = product;
      rows.x = static_cast<const std::byte*>(product.x) +
               static_cast<size_t>(first) * XBytes(product, product.x_stride);
      rows.y = static_cast<std::byte*>(product.y) +
               static_cast<size_t>(first) * StrideBytesOfY(product);
      if (product.x_scale != nullptr) rows.x_scale = product.x_scale + first;
      rows.num_rows = std::min(product.num_rows - first, kInvariantRows);
      DS_RETURN_IF_ERROR(rows.num_rows == kInvariantRows ? Launch(prepared, rows, stream)
                                                         : LaunchPadded(prepared, rows, stream));
    }
    return Status();
  }

  Status LaunchPadded(const Prepared& prepared, const MatrixProduct& product,
                      const Stream& stream) const {
    MatrixProduct padded = product;
    padded.x = padded_x_.data();
    padded.y = padded_y_.data();
    const size_t x_stride = XBytes(product, product.x_stride);
    const auto num_rows = static_cast<size_t>(product.num_rows);
    DS_RETURN_IF_ERROR(CopyRowsOnDevice({.from = product.x,
                                         .from_stride = x_stride,
                                         .to = padded_x_.data(),
                                         .to_stride = x_stride,
                                         .row_bytes = XBytes(product, product.in_features),
                                         .num_rows = num_rows},
                                        stream));
    const size_t y_stride = StrideBytesOfY(product);
    const auto copy_y = [&](const void* from, void* to) {
      return CopyRowsOnDevice(
          {.from = from,
           .from_stride = y_stride,
           .to = to,
           .to_stride = y_stride,
           .row_bytes = static_cast<size_t>(product.out_features) * SizeOf(product.y_dtype),
           .num_rows = num_rows},
          stream);
    };
    if (product.accumulate) DS_RETURN_IF_ERROR(copy_y(product.y, padded_y_.data()));
    DS_RETURN_IF_ERROR(Launch(prepared, padded, stream));
    return copy_y(padded_y_.data(), product.y);
  }

  Status Launch(const Prepared& prepared, const MatrixProduct& product,
                const Stream& stream) const {
    if (product.bias != nullptr)
      DS_RETURN_IF_ERROR(Set(prepared.desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, product.bias));
    if (product.x_scale != nullptr) DS_RETURN_IF_ERROR(SetScales(prepared, product));
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
  DeviceBuffer padded_x_, padded_y_;  // of the largest padded product
  std::map<Shape, Prepared> prepared_;
};

MatrixLibrary::MatrixLibrary(const MatrixLibraryOptions& options, std::unique_ptr<State> state,
                             DeviceBuffer scratch)
    : options_(options),
      scales_rows_(options.has_fp8_weights && state->ScalesRows()),
      state_(std::move(state)),
      scratch_(std::move(scratch)) {}
MatrixLibrary::~MatrixLibrary() = default;

Result<std::unique_ptr<MatrixLibrary>> MatrixLibrary::Open(const MatrixLibraryOptions& options) {
  Result<std::unique_ptr<State>> state = State::Open(options);
  if (!state.ok()) return state.status();
  Result<DeviceBuffer> scratch = DeviceBuffer::Allocate(options.scratch_bytes);
  if (!scratch.ok()) return scratch.status();
  return std::unique_ptr<MatrixLibrary>(
      new MatrixLibrary(options, std::move(*state), std::move(*scratch)));
}

Result<DeviceInfo> OpenUsableDevice(int ordinal) {
  Result<DeviceInfo> device = OpenDevice(ordinal);
  if (!device.ok()) return device;
  if (const Result<Library> library = OpenShared(""); !library.ok()) return library.status();
  return device;
}

size_t MatrixLibraryVersion() {
  const Result<Library> library = OpenShared("");
  decltype(&cublasLtGetVersion) version = nullptr;
  if (!library.ok() || !Find(library->get(), "cublasLtGetVersion", &version).ok()) return 0;
  return version();
}

Status MatrixLibrary::Multiply(const MatrixProduct& product, const Stream& stream) {
  return state_->Multiply(product, stream);
}

}  // namespace diffserve::cuda
