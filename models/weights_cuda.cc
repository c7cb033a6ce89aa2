#include "models/weights_cuda.h"

#include <utility>

namespace diffserve::cuda {
namespace {

// What the residual stream or lambda takes is float32.
DeviceLayer UploadLayer(const LayerTensors& tensors, WeightPacker& packer) {
  DeviceLayer layer;
  layer.input_norm = packer.Floats(tensors.input_norm);
  layer.qkv = packer.Linear(tensors.qkv, LinearOutput::kActivation);
  layer.attention_out = packer.Linear(tensors.attention_out, LinearOutput::kFloat32);
  layer.lambda = tensors.lambda;
  layer.out_scale = tensors.out_scale;
  layer.lambda_proj = packer.Linear(tensors.lambda_proj, LinearOutput::kFloat32);
  layer.sub_norm = packer.Floats(tensors.sub_norm);
  layer.post_attention_norm = packer.Floats(tensors.post_attention_norm);
  layer.gate_up = packer.Linear(tensors.gate_up, LinearOutput::kActivation);
  layer.poly_norm = tensors.poly_norm;
  layer.down = packer.Linear(tensors.down, LinearOutput::kFloat32);
  return layer;
}

}  // namespace

Result<DeviceWeights> UploadWeights(const ModelConfig& config, Checkpoint& checkpoint,
                                    const Stream& stream) {
  WeightPacker packer(stream);
  DeviceWeights weights;
  Result<OuterTensors> outer = ReadOuterTensors(config, checkpoint);
  if (!outer.ok()) return outer.status();
  weights.embedding = packer.Table(outer->embedding);
  if (outer->lm_head.data == outer->embedding.data) {
    weights.lm_head = PackedLinear(weights.embedding);
  } else {
    const LinearPart head = {.weight = outer->lm_head, .row_order = {}, .bias = {}};
    weights.lm_head = packer.Linear(std::span(&head, 1));
  }
  weights.final_norm = packer.Floats(outer->final_norm);
  checkpoint.ReleaseMemory();
  for (int layer = 0; layer < config.num_layers && packer.status().ok(); ++layer) {
    Result<LayerTensors> tensors = ReadLayerTensors(config, layer, checkpoint);
    if (!tensors.ok()) return tensors.status();
    weights.layers.push_back(UploadLayer(*tensors, packer));
    checkpoint.ReleaseMemory();
  }
  if (!packer.status().ok()) return packer.status();
  DS_RETURN_IF_ERROR(stream.Synchronize());
  return weights;
}

}  // namespace diffserve::cuda
