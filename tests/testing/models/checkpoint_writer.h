// SPDX-License-Identifier: Apache-2.0
// Writes tiny checkpoints for tests: a safetensors file from parts, and whole model directories
// that Model::Load accepts.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "models/dummy_weights.h"
#include "tests/testing/kernels/temporary_directory.h"

namespace diffserve {

struct FileTensor {
  std::string name;
  std::string dtype;  // as the format spells it
  std::vector<int64_t> shape;
  std::string bytes;
};

// The length field and the header: `json` as it is.
std::string SafetensorsHeaderBytes(const std::string& json);
std::string SafetensorsBytes(const std::vector<FileTensor>& tensors);

struct TinyCheckpointOptions {
  std::string family = "diffllama";  // config.json's model_type; tensors are written for diffllama
                                     // and llama
  int vocab_size = 128;
  int hidden_size = 32;
  int intermediate_size = 48;
  int num_layers = 2;
  int num_heads = 4;
  int num_kv_heads = 2;
  int max_positions = 256;
  int eos_token_id = 2;
  bool tie_word_embeddings = true;
  DType dtype = DType::kFloat32;  // float32 or bfloat16
  uint64_t seed = 1;
  // Keys of config.json to set, to JSON text, or, where that is empty, to leave out.
  std::map<std::string, std::string> config_changes;
};

std::string TinyConfigJson(const TinyCheckpointOptions& options);

// All tensors of the model that the sizes describe (config_changes are not looked at), with values
// that make its output vary.
std::vector<FileTensor> TinyTensors(const TinyCheckpointOptions& options);

// A model directory with config.json, generation_config.json and model.safetensors (no tokenizer).
class TinyCheckpoint {
 public:
  explicit TinyCheckpoint(const TinyCheckpointOptions& options = {});
  std::string dir() const { return directory_.path().string(); }
  // Puts a file in the directory, in place of one with that name.
  void Write(const std::string& name, std::string_view bytes) const;
  void Remove(const std::string& name) const { std::filesystem::remove(directory_.path() / name); }

 private:
  TemporaryDirectory directory_;
};

}  // namespace diffserve
