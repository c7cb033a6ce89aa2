// SPDX-License-Identifier: Apache-2.0
#include "models/convert/convert.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <set>

#include "kernels/base/refusal.h"
#include "kernels/ops/weight_packer.h"
#include "models/convert/diff_mlx.h"
#include "models/convert/json_members.h"
#include "models/convert/output_directory.h"
#include "models/convert/packed_output.h"
#include "models/convert/safetensors_writer.h"
#include "models/convert/source_directory.h"
#include "models/convert/tensor_names.h"
#include "models/load_config.h"
#include "models/model.h"
#include "models/regular_file.h"
#include "models/weights.h"

namespace diffserve {
namespace {

constexpr size_t kPieceBytes = size_t{4} << 20;  // of a source, read at once
constexpr size_t kMaxJsonBytes = size_t{16} << 20;
constexpr size_t kMaxCopiedBytes = size_t{256} << 20;

// Files that are copied besides config.json and the tensors; none of them can be executed.
constexpr std::array<const char*, 15> kCopiedFiles = {
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "LICENSE",
    "LICENSE.txt",
    "LICENSE.md",
    "NOTICE",
};

constexpr char kFurtherTemplates[] = "additional_chat_templates";

std::string Joined(const std::string& dir, const std::string& name) {
  return (std::filesystem::path(dir) / name).string();
}

// Bytes [begin, end) of a file's data, as an entry that SafetensorsFile::Read takes.
SafetensorsEntry Piece(const SafetensorsEntry& entry, size_t begin, size_t end) {
  SafetensorsEntry piece = entry;
  piece.begin = entry.begin + begin;
  piece.end = entry.begin + end;
  return piece;
}

class Conversion {
 public:
  Conversion(const ConvertOptions& options, ThreadPool& pool) : options_(options), pool_(pool) {}

  Result<ConvertReport> Run() {
    const Status status = Convert();
    if (!status.ok()) return WithFinalNames(status);
    report_.dropped = plan_.dropped;
    report_.num_renamed = plan_.num_renamed;
    report_.num_divided = plan_.num_divided;
    return std::move(report_);
  }

 private:
  Status Convert() {
    DS_RETURN_IF_ERROR(OpenSource());
    Result<std::unique_ptr<OutputDirectory>> output = OutputDirectory::Create(options_.output_dir);
    if (!output.ok()) return output.status();
    output_ = std::move(output).value();
    DS_RETURN_IF_ERROR(DropTiedOutputMatrix());
    DS_RETURN_IF_ERROR(CopyFiles());
    DS_RETURN_IF_ERROR(LayOut());
    DS_RETURN_IF_ERROR(WriteTensors());
    DS_RETURN_IF_ERROR(writer_->Close());
    DS_RETURN_IF_ERROR(LoadResult());
    DS_RETURN_IF_ERROR(CheckInterrupted());
    return output_->Commit();
  }

  Status OpenSource() {
    Result<std::unique_ptr<SourceDirectory>> source = SourceDirectory::Open(options_.source_dir);
    if (!source.ok()) return source.status();
    source_ = std::move(source).value();
    DS_RETURN_IF_ERROR(ReadConfig());
    vectors_ = VectorNames(config_);
    if (config_.packed) {
      return NotAllowed(
          Joined(options_.source_dir, "config.json") + ": quantization_config: is packed already",
          "the original");
    }
    if (config_.stores_fp8) {
      return NotAllowed(
          Joined(options_.source_dir, "config.json") + ": quantization_config: is fp8",
          "the original");
    }
    dtype_ = options_.dtype;
    if (options_.quantization == WeightFormat::kFp8E4M3) {
      return NotAllowed("--quantization is fp8 with convert", "none, int8, int4", "--quantization");
    }
    if (options_.quantization) {
      packed_ = PackedFormat{*options_.quantization, cpu::PanelColumns(options_.isa)};
      report_.packed_for = packed_->Levels();
      if (!dtype_) dtype_ = DTypeServed(config_.checkpoint_dtype);
    }
    report_.family = config_.family;
    Result<TensorPlan> plan = PlanTensors(config_, source_->tensors(), options_.source_dir);
    if (!plan.ok()) return plan.status();
    plan_ = std::move(plan).value();
    return Status();
  }

  Status ReadConfig() {
    const std::string path = Joined(options_.source_dir, "config.json");
    const Result<std::string> stored = ReadJsonFile(path, ConfigReader::kMaxBytes);
    if (!stored.ok()) return stored.status();
    Result<std::string> served = ServedConfigText(*stored, *source_);
    if (!served.ok()) return served.status();
    config_text_ = std::move(served).value();
    Result<ConfigReader> json = ConfigReader::Parse(config_text_, path);
    if (!json.ok()) return json.status();
    Result<ModelConfig> config = LoadModelConfig(options_.source_dir, *json);
    if (!config.ok()) return config.status();
    config_ = std::move(config).value();
    return Status();
  }

  // Tied weights that are stored twice: drops the output matrix if it equals the embedding bitwise.
  Status DropTiedOutputMatrix() {
    if (!config_.tie_word_embeddings || plan_.tensors.size() < 2) return Status();
    const PlannedTensor& first = plan_.tensors.front();
    const PlannedTensor& last = plan_.tensors.back();
    if (first.name != "model.embed_tokens.weight" || last.name != "lm_head.weight") return Status();
    const SafetensorsEntry& a = first.source->entry;
    const SafetensorsEntry& b = last.source->entry;
    if (a.dtype != b.dtype || a.shape != b.shape) return Status();
    std::vector<std::byte> other(piece_.size());
    for (size_t begin = 0; begin < a.end - a.begin; begin += piece_.size()) {
      DS_RETURN_IF_ERROR(CheckInterrupted());
      const size_t size = std::min(piece_.size(), a.end - a.begin - begin);
      DS_RETURN_IF_ERROR(first.source->file->Read(Piece(a, begin, begin + size), piece_.data()));
      DS_RETURN_IF_ERROR(last.source->file->Read(Piece(b, begin, begin + size), other.data()));
      if (std::memcmp(piece_.data(), other.data(), size) != 0) return Status();
    }
    plan_.dropped.push_back(last.source->name);
    plan_.tensors.pop_back();
    return Status();
  }

  Status CopyFiles() {
    std::vector<MemberEdit> edits = {{"auto_map", std::nullopt}};
    if (packed_) edits.push_back({"quantization_config", packed_->ToJson(), /*add=*/true});
    if (dtype_) {
      const std::string value = "\"" + std::string(NameOf(*dtype_)) + "\"";
      // There are two spellings. A config with neither gets the older one, which every version of
      // transformers reads.
      const Result<ConfigReader> json = ConfigReader::Parse(config_text_,
                                                            Joined(source_->path(), "config.json"));
      if (!json.ok()) return json.status();
      edits.push_back({"dtype", value});
      edits.push_back({"torch_dtype", value, /*add=*/!json->Has("dtype")});
    }
    DS_RETURN_IF_ERROR(WriteJson("config.json", config_text_, edits));
    for (const char* name : kCopiedFiles) {
      if (!source_->Has(name)) continue;
      if (std::string_view(name) == "tokenizer_config.json") {
        const Result<std::string> text = source_->Read(name, kMaxJsonBytes);
        if (!text.ok()) return text.status();
        DS_RETURN_IF_ERROR(WriteJson(name, *text, {{"auto_map", std::nullopt}}));
        continue;
      }
      DS_RETURN_IF_ERROR(CopyFile(name));
    }
    const std::vector<std::string> templates = source_->NamesIn(kFurtherTemplates, ".jinja");
    if (!templates.empty())
      std::filesystem::create_directory(Joined(output_->temporary(), kFurtherTemplates));
    for (const std::string& name : templates) DS_RETURN_IF_ERROR(CopyFile(name));
    for (const std::string& name : source_->file_names()) {
      const bool is_copied = name == "config.json" ||
                             (name == kFurtherTemplates && !templates.empty()) ||
                             name == "model.safetensors.index.json" ||
                             std::ranges::find(kCopiedFiles, std::string_view(name)) !=
                                 kCopiedFiles.end() ||
                             std::ranges::find(source_->tensor_file_names(), name) !=
                                 source_->tensor_file_names().end();
      if (!is_copied) report_.left_behind.push_back(name);
    }
    return Status();
  }

  Status CopyFile(const std::string& name) {
    const Result<std::string> bytes = source_->Read(name, kMaxCopiedBytes);
    if (!bytes.ok()) return bytes.status();
    return OutputFile::WriteText(Joined(output_->temporary(), name), *bytes);
  }

  Status WriteJson(const std::string& name, const std::string& text,
                   const std::vector<MemberEdit>& edits) {
    const Result<std::string> edited = EditMembers(text, Joined(source_->path(), name), edits);
    if (!edited.ok()) return edited.status();
    return OutputFile::WriteText(Joined(output_->temporary(), name), *edited);
  }

  // The dtype that a tensor is written in.
  DType OutputDType(const PlannedTensor& tensor) const {
    const DType stored = tensor.source->entry.dtype;
    if (!dtype_) return stored;
    if (*dtype_ == DType::kFloat32 || !vectors_.contains(tensor.name)) return *dtype_;
    return stored == DType::kFloat16 ? DType::kFloat32 : stored;
  }

  // Writes the headers of all files, and has the loader check names and shapes before any data is
  // copied.
  Status LayOut() {
    std::vector<OutputTensor> tensors;
    if (packed_) {
      Result<std::unique_ptr<PackedOutput>> output = PackedOutput::Plan(config_, *packed_,
                                                                        plan_source_);
      if (!output.ok()) return output.status();
      packed_output_ = std::move(output).value();
      for (const PackedOutput::Item& item : packed_output_->items()) {
        if (item.copied == nullptr) {
          std::ranges::copy(packed_output_->TensorsOf(item), std::back_inserter(tensors));
        } else {
          tensors.push_back({item.tensor.name, OutputDType(*item.copied), item.tensor.shape});
        }
      }
    } else {
      for (const PlannedTensor& tensor : plan_.tensors)
        tensors.push_back({tensor.name, OutputDType(tensor), tensor.shape});
    }
    uint64_t num_bytes = 0;
    for (const OutputTensor& tensor : tensors) num_bytes += tensor.size_bytes();
    DS_RETURN_IF_ERROR(output_->CheckRoom(num_bytes));
    Result<std::unique_ptr<SafetensorsWriter>> writer = SafetensorsWriter::Create(
        output_->temporary(), tensors, options_.max_shard_bytes);
    if (!writer.ok()) return writer.status();
    writer_ = std::move(writer).value();
    report_.num_tensors = tensors.size();
    report_.num_bytes = num_bytes;
    report_.num_files = writer_->num_files();
    const Result<ModelSummary> summary = InspectModel(LoadOptions());
    if (!summary.ok()) return Refused(summary.status());
    report_.num_parameters = summary->num_parameters;
    return Status();
  }

  ModelOptions LoadOptions() const {
    ModelOptions load;
    load.model_dir = output_->temporary();
    load.isa = options_.isa;
    return load;
  }

  Status WriteTensors() {
    progress_.Begin("converting", report_.num_bytes);
    if (!packed_) {
      for (const PlannedTensor& tensor : plan_.tensors) DS_RETURN_IF_ERROR(CopyTensor(tensor));
      return Status();
    }
    cpu::WeightPacker packer(WeightFormatOf(*dtype_), packed_->format, options_.isa, pool_);
    for (const PackedOutput::Item& item : packed_output_->items()) {
      DS_RETURN_IF_ERROR(CheckInterrupted());
      if (item.copied != nullptr) {
        DS_RETURN_IF_ERROR(CopyTensor(*item.copied));
        continue;
      }
      DS_RETURN_IF_ERROR(packed_output_->Write(item, packer, *writer_));
      for (const OutputTensor& tensor : packed_output_->TensorsOf(item))
        progress_.Add(tensor.size_bytes());
    }
    return Status();
  }

  Status CopyTensor(const PlannedTensor& tensor) {
    const SafetensorsEntry& entry = tensor.source->entry;
    const DType dtype = OutputDType(tensor);
    const size_t element = SizeOf(entry.dtype);
    size_t row_bytes = element;
    for (size_t i = 1; i < tensor.shape.size(); ++i)
      row_bytes *= static_cast<size_t>(tensor.shape[i]);
    const size_t first = static_cast<size_t>(tensor.first_row) * row_bytes;
    const size_t size = (tensor.shape.empty() ? 1 : static_cast<size_t>(tensor.shape[0])) *
                        row_bytes;
    for (size_t begin = first; begin < first + size;) {
      DS_RETURN_IF_ERROR(CheckInterrupted());
      const size_t end = std::min(first + size, begin + piece_.size());
      const std::span<std::byte> piece(piece_.data(), end - begin);
      DS_RETURN_IF_ERROR(tensor.source->file->Read(Piece(entry, begin, end), piece.data()));
      const bool is_cast = dtype != entry.dtype;
      DS_RETURN_IF_ERROR(writer_->Append(is_cast ? Cast(piece, entry.dtype, dtype) : piece));
      progress_.Add(piece.size() / element * SizeOf(dtype));
      if (is_cast && dtype == DType::kFloat16) DS_RETURN_IF_ERROR(CheckFloat16(tensor));
      begin = end;
    }
    return Status();
  }

  // The elements of `piece` in another dtype, in memory that the next call reuses.
  std::span<const std::byte> Cast(std::span<const std::byte> piece, DType from, DType to) {
    const int64_t count = static_cast<int64_t>(piece.size() / SizeOf(from));
    floats_.resize(static_cast<size_t>(count));
    CopyToFloat({piece.data(), from, {count}}, 0, count, floats_.data());
    if (to == DType::kFloat32) return std::as_bytes(std::span(floats_));
    halves_.resize(floats_.size());
    CopyFromFloat(floats_, to, halves_.data());
    return std::as_bytes(std::span(halves_));
  }

  // Checks the last piece that was cast.
  Status CheckFloat16(const PlannedTensor& tensor) const {
    const int64_t found = FindOutsideFloat16(floats_);
    if (found < 0) return Status();
    return NotAllowed(tensor.source->file->path() + ": tensor " + tensor.source->name +
                          ": an element is " + std::to_string(floats_[static_cast<size_t>(found)]),
                      "at most 65504, which float16 holds");
  }

  Status LoadResult() {
    ModelOptions load = LoadOptions();
    load.progress = &progress_;
    const Result<std::unique_ptr<Model>> model = Model::Load(load, pool_);
    return model.ok() ? Status() : Refused(model.status());
  }

  Status CheckInterrupted() const {
    if (!options_.interrupted || !options_.interrupted()) return Status();
    return Status(StatusCode::kCancelled,
                  options_.output_dir + ": interrupted, and nothing was written");
  }

  // The loader's error about the files written so far, whose directory is about to be removed.
  Status Refused(const Status& status) const {
    std::string message = status.message();
    for (const char* end : {"/", ": "}) {
      if (message.starts_with(output_->temporary() + end))
        message.erase(0, (output_->temporary() + end).size());
    }
    return InvalidArgument(options_.source_dir +
                           ": what it would become cannot be served: " + message);
  }
  // The error, with the name that the file would have had.
  Status WithFinalNames(const Status& status) const {
    std::string message = status.message();
    if (output_ != nullptr && message.starts_with(output_->temporary())) {
      message.replace(0, output_->temporary().size(), output_->path());
    }
    return Status(status.code(), message, status.param());
  }

  const ConvertOptions& options_;
  ThreadPool& pool_;
  LoadProgress progress_{options_.report, options_.pace};
  std::unique_ptr<SourceDirectory> source_;
  std::string config_text_;  // config.json as it is served, before edits
  ModelConfig config_;
  std::set<std::string> vectors_;  // names of tensors that keep their values
  TensorPlan plan_;
  PlanSource plan_source_{plan_, options_.source_dir};
  std::optional<DType> dtype_;
  std::optional<PackedFormat> packed_;
  std::unique_ptr<PackedOutput> packed_output_;
  std::unique_ptr<OutputDirectory> output_;
  std::unique_ptr<SafetensorsWriter> writer_;
  ConvertReport report_;
  std::vector<std::byte> piece_ = std::vector<std::byte>(kPieceBytes);
  std::vector<float> floats_;
  std::vector<uint16_t> halves_;
};

}  // namespace

Result<ConvertReport> ConvertCheckpoint(const ConvertOptions& options, ThreadPool& pool) {
  return Conversion(options, pool).Run();
}

}  // namespace diffserve
