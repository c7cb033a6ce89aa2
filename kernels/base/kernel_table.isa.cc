// SPDX-License-Identifier: Apache-2.0
#include "kernels/base/kernel_table.h"

#include "kernels/base/simd.h"

namespace diffserve::DS_ISA {

LinearInput LinearInputOf(WeightFormat format);
void PackLinearInput(const LinearInputSlice& slice);
void Linear(const LinearSlice& slice);
bool PackQuantizedPanel(const QuantizedPanel& to);
void RmsNorm(const RmsNormArgs<float>& args, int begin, int end);
void LayerNorm(const LayerNormArgs<float>& args, int begin, int end);
void SiluMul(const SiluMulArgs<float>& args, int begin, int end);
void PolyNormMul(const PolyNormMulArgs<float>& args, int begin, int end);
void Sigmoid(float* x, int64_t count);
void RotateAndAppend(const RopeRow& row);
extern const SampleLoops kSampleLoops;
void CausalConv(const CausalConvArgs<float>& args, int begin, int end);
void SelectiveScan(const SelectiveScanArgs<float>& args, int begin, int end);
void GatedMemory(const GatedMemoryArgs<float>& args, int begin, int end);
void Attention(const AttentionCall& call, const AttentionTask& task, float* workspace);
double Flops(Arithmetic arithmetic, int64_t iterations);
float ReadAll(const float* p, int64_t count);

// No initialiser may run at start-up: it would hold this level's instructions on every machine.
extern const KernelTable kKernels;
constinit const KernelTable kKernels = {
    .panel_columns = kPanelColumns,
    .linear_input = LinearInputOf,
    .pack_linear_input = PackLinearInput,
    .linear = Linear,
    .pack_quantized_panel = PackQuantizedPanel,
    .rms_norm = RmsNorm,
    .layer_norm = LayerNorm,
    .silu_mul = SiluMul,
    .poly_norm_mul = PolyNormMul,
    .sigmoid = Sigmoid,
    .rope_row = RotateAndAppend,
    .sample = &kSampleLoops,
    .causal_conv = CausalConv,
    .selective_scan = SelectiveScan,
    .gated_memory = GatedMemory,
    .attention = Attention,
    .flops = Flops,
    .read_all = ReadAll,
};

}  // namespace diffserve::DS_ISA
