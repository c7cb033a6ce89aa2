// The append kernel against the double-precision reference: on a GPU, or its own source on the CPU
// shim.
#include "kernels/ops/rope_append_cuda.h"

#include <cmath>
#include <set>

#include "tests/cuda/image_batch.h"

namespace diffserve {
namespace {

using testing::BFloat16Floats;
using testing::DeviceArray;
using testing::DeviceBatch;
using testing::ImageBatch;
using testing::ImageShape;
using testing::IsOk;

DiffSpec SpecOf(int k_maps, int head_dim, int v_dim) {
  return {.num_q1_heads = 4,
          .num_q2_heads = 2,
          .num_kv_groups = 2,
          .k_maps = k_maps,
          .head_dim = head_dim,
          .v_dim = v_dim};
}

class RopeAppendCudaTest : public testing::OnDeviceTest {};

RopeTable TableOf(int head_dim) {
  std::vector<double> inv_freq;
  for (int i = 0; i < head_dim / 2; ++i) inv_freq.push_back(std::pow(10000.0, -2.0 * i / head_dim));
  return RopeTable(inv_freq, 4096, 1.0);
}

// At most one bf16 step apart, as float32 arithmetic before the rounding may fall on its other
// side; near 0, apart by the float32 rounding of inputs below 2.
bool NextToEachOther(uint16_t a, float expected) {
  const float value = BFloat16ToFloat(a);
  return std::abs(value - expected) <= std::ldexp(std::abs(expected), -7) + 1e-6f;
}

// Appends to the batch's pages on the device, reads them back, and returns q.
std::vector<uint16_t> Append(ImageBatch& batch, const RopeTable& table, RopeStyle style,
                             const std::vector<float>& qkv) {
  const cuda::Stream stream = cuda::Stream::Create().value();
  const DeviceBatch on_device(batch, stream);
  const size_t angles = 4096 * static_cast<size_t>(table.half_dim());
  const DeviceArray<float> cos(std::vector<float>(table.Cos(0), table.Cos(0) + angles), stream);
  const DeviceArray<float> sin(std::vector<float>(table.Sin(0), table.Sin(0) + angles), stream);
  const DeviceArray<uint16_t> qkv_bits(testing::ToBFloat16(qkv), stream);
  const size_t q_count = static_cast<size_t>(batch.num_rows()) *
                         static_cast<size_t>(batch.spec.q_width());
  const DeviceArray<uint16_t> q(std::vector<uint16_t>(q_count, 0x4e4e), stream);
  EXPECT_TRUE(IsOk(cuda::RopeAppend({.spec = batch.spec,
                                     .batch = on_device.Batch(),
                                     .kv = on_device.Image(),
                                     .cos = cos.data(),
                                     .sin = sin.data(),
                                     .style = style,
                                     .qkv = qkv_bits.data(),
                                     .q = q.data()},
                                    stream.handle())));
  on_device.ReadPages(batch, stream);
  return q.Read(stream);
}

void ExpectLikeReference(const DiffSpec& spec, RopeStyle style,
                         const std::vector<ImageShape>& shapes) {
  ImageBatch batch(spec, shapes);  // its rows' K and V will be overwritten, the earlier slots' must
                                   // stay
  ImageBatch before(spec, shapes);
  const RopeTable table = TableOf(spec.head_dim);
  const size_t width = static_cast<size_t>(spec.q_width() + spec.k_width() + spec.v_width());
  const std::vector<float> qkv = BFloat16Floats(static_cast<size_t>(batch.num_rows()) * width, 5,
                                                -2.0f, 2.0f);
  const std::vector<uint16_t> q = Append(batch, table, style, qkv);

  std::vector<float> expected_q(q.size());
  const std::vector<SequenceRows> rows = batch.ReferenceSequences();
  RopeAppendRef({.spec = spec,
                 .sequences = rows,
                 .kv = batch.ReferenceLayer(),
                 .rope = &table,
                 .style = style,
                 .qkv = qkv.data(),
                 .q = expected_q.data()});
  for (size_t i = 0; i < q.size(); ++i) ASSERT_TRUE(NextToEachOther(q[i], expected_q[i])) << i;

  const KvFormat& image = batch.Image().format;
  const PagedKv reference = batch.ReferenceLayer();
  for (const SequenceRows& sequence : rows) {
    const int length = sequence.position + sequence.num_rows;
    const int pages = (length + 63) / 64;
    for (int slot = 0; slot < pages * 64; ++slot) {
      const bool is_fresh = slot / 64 * 64 >= sequence.position;
      for (int group = 0; group < spec.num_kv_groups; ++group) {
        const uint16_t* page = testing::Bits(batch.Image(), sequence.pages[slot / 64], group);
        const uint16_t* old_page = testing::Bits(before.Image(), sequence.pages[slot / 64], group);
        const auto* expected = testing::Bits(reference, sequence.pages[slot / 64], group);
        const auto check = [&](int offset, size_t reference_offset) {
          const uint16_t value = page[offset];
          if (slot >= length) return is_fresh ? value == 0 : value == old_page[offset];
          if (slot < sequence.position) return value == old_page[offset];
          return NextToEachOther(value, BFloat16ToFloat(expected[reference_offset]));
        };
        for (int d = 0; d < spec.head_dim; ++d) {
          for (int map = 0; map < spec.k_maps; ++map) {
            ASSERT_TRUE(check(image.KOffset(map, d, slot % 64),
                              reference.format.KOffset(map, d, slot % 64)))
                << "slot " << slot << " K" << map << " dim " << d;
          }
        }
        for (int d = 0; d < spec.v_dim; ++d) {
          ASSERT_TRUE(check(image.VOffset(d, slot % 64), reference.format.VOffset(d, slot % 64)))
              << "slot " << slot << " V " << d;
        }
      }
    }
  }
}

TEST_F(RopeAppendCudaTest, BothStylesMatchTheReferenceAndTouchNothingElse) {
  for (RopeStyle style : {RopeStyle::kHalfSplit, RopeStyle::kInterleaved}) {
    ExpectLikeReference(SpecOf(2, 64, 128), style,
                        {{0, 1}, {63, 1}, {64, 1}, {60, 9}, {0, 130}, {200, 0}, {3000, 2}});
  }
}

TEST_F(RopeAppendCudaTest, EveryWidthMatchesTheReference) {
  for (int head_dim : {16, 48, 64, 96, 128}) {
    for (RopeStyle style : {RopeStyle::kHalfSplit, RopeStyle::kInterleaved}) {
      ExpectLikeReference(SpecOf(1, head_dim, head_dim), style, {{62, 5}});
      ExpectLikeReference(SpecOf(2, head_dim, 2 * head_dim), style, {{62, 5}});
    }
  }
}

TEST_F(RopeAppendCudaTest, AppendedPagesAreReadByDecodeAsTheReferenceReadsItsOwn) {
  DiffSpec spec = SpecOf(2, 64, 128);
  spec.lambda_kind = LambdaKind::kPerLayer;
  spec.sub_norm = SubNorm::kPlain;
  ImageBatch batch(spec, {{0, 70}});
  const RopeTable table = TableOf(64);
  const size_t width = static_cast<size_t>(spec.q_width() + spec.k_width() + spec.v_width());
  const std::vector<float> qkv = BFloat16Floats(70 * width, 8);
  const std::vector<uint16_t> q = Append(batch, table, RopeStyle::kHalfSplit, qkv);
  const std::vector<SequenceRows> rows = batch.ReferenceSequences();
  RopeAppendRef({.spec = spec,
                 .sequences = rows,
                 .kv = batch.ReferenceLayer(),
                 .rope = &table,
                 .qkv = qkv.data(),
                 .q = batch.q.data()});
  const std::vector<float> expected = batch.Reference();
  batch.q = testing::ToFloats(q);
  const std::vector<float> out = batch.Decode();
  for (size_t i = 0; i < out.size(); ++i) ASSERT_NEAR(out[i], expected[i], 0.06f) << i;
}

}  // namespace
}  // namespace diffserve
