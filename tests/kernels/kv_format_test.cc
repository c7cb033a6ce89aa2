// SPDX-License-Identifier: Apache-2.0
// Offsets of a page's numbers and scales: each has its own, and the page is full. ldmatrix reads
// the image of a page without bank conflicts.
#include "kernels/attention/kv_format.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "kernels/attention/hadamard.h"

namespace diffserve {
namespace {

// A float16 scale for 16 neighbouring dims: no kernel has it, but the offset arithmetic does.
constexpr KvCodec kSmallScales = {.dtype = DType::kFloat32,
                                  .k_bits = 8,
                                  .v_bits = 8,
                                  .k_pack = 4,
                                  .v_pack = 4,
                                  .scale_group = 16,
                                  .scale_bits = 16};

std::vector<KvFormat> Formats() {
  std::vector<KvFormat> formats;
  for (KvCodec codec :
       {Float32Codec::Description(), BFloat16Codec::Description(), Float16Codec::Description(),
        Int8Codec::Description(), Int8KInt4VCodec::Description(), Int4Codec::Description(),
        Fp8E4M3Codec::Description(), kSmallScales}) {
    for (KvArrangement arrangement : {KvArrangement::kSlotLanes, KvArrangement::kImage}) {
      for (int page_size : {16, 48, 64}) {
        // In an image: two chunks of 16 bytes.
        const int step = arrangement == KvArrangement::kImage ? 2 * 128 / codec.v_bits
                         : codec.scale_bits == 16             ? codec.scale_group
                                                              : 3 * std::max(2, codec.k_pack);
        for (int head_dim = step; head_dim <= 9 * step; head_dim += step) {
          if (codec.scale_bits == 32) codec.scale_group = head_dim;
          for (int k_maps : {1, 2}) {
            for (int v_dim : {head_dim, 2 * head_dim})
              formats.push_back({page_size, 3, k_maps, head_dim, v_dim, codec, arrangement});
          }
        }
      }
    }
  }
  return formats;
}

std::vector<KvFormat> Images() {
  std::vector<KvFormat> images = Formats();
  std::erase_if(images, [](const KvFormat& format) {
    return format.arrangement != KvArrangement::kImage || format.codec.k_bits != 16;
  });
  return images;
}

std::string Describe(const KvFormat& format) {
  return std::to_string(format.codec.k_bits) + " and " + std::to_string(format.codec.v_bits) +
         " bits, page_size " + std::to_string(format.page_size) + ", k_maps " +
         std::to_string(format.k_maps) + ", head_dim " + std::to_string(format.head_dim) +
         ", v_dim " + std::to_string(format.v_dim) +
         (format.arrangement == KvArrangement::kImage ? ", image" : ", slot lanes");
}

TEST(KvFormatTest, EveryNumberHasItsOwnOffsetAndThePageIsFull) {
  for (const KvFormat& format : Formats()) {
    std::vector<int> owners(static_cast<size_t>(format.ScaleBegin() * 8));  // of each bit
    const auto take = [&](int offset, int bits) {
      for (int bit = offset * bits; bit < (offset + 1) * bits; ++bit)
        ++owners.at(static_cast<size_t>(bit));
    };
    for (int slot = 0; slot < format.page_size; ++slot) {
      for (int map = 0; map < format.k_maps; ++map) {
        for (int dim = 0; dim < format.head_dim; ++dim)
          take(format.KOffset(map, dim, slot), format.codec.k_bits);
      }
      for (int dim = 0; dim < format.v_dim; ++dim)
        take(format.VOffset(dim, slot), format.codec.v_bits);
    }
    for (int count : owners) ASSERT_EQ(count, 1) << Describe(format);
  }
}

TEST(KvFormatTest, ScalePerGroupOfDimsFollowsTheNumbersAndEndsThePage) {
  for (const KvFormat& format : Formats()) {
    const int group = format.codec.scale_group;
    if (group == 0) {
      ASSERT_EQ(format.PageBytes(), format.ScaleBegin()) << Describe(format);
      continue;
    }
    const int64_t scale_bytes = format.codec.scale_bits / 8;
    std::vector<int> users(
        static_cast<size_t>((format.PageBytes() - format.ScaleBegin()) / scale_bytes));
    const auto use = [&](int scale) { ++users.at(static_cast<size_t>(scale)); };
    for (int slot = 0; slot < format.page_size; ++slot) {
      for (int map = 0; map < format.k_maps; ++map) {
        for (int dim = 0; dim < format.head_dim; ++dim) use(format.KScale(map, dim, slot));
      }
      for (int dim = 0; dim < format.v_dim; ++dim) use(format.VScale(dim, slot));
    }
    for (int count : users) ASSERT_EQ(count, group) << Describe(format);
  }
}

TEST(KvFormatTest, FourBitPageHasAnEighthOfFloat32PlusScales) {
  const DiffSpec spec = {.num_kv_groups = 3, .k_maps = 2, .head_dim = 64, .v_dim = 128};
  const KvFormat four = KvFormat::Of(spec, 64, DType::kInt4);
  // 64 slots of 256 numbers; 4 scales of 4 bytes per slot.
  EXPECT_EQ(four.PageBytes(), 64 * 256 / 2 + 64 * 4 * 4);
  EXPECT_EQ(KvFormat::Of(spec, 64, DType::kInt8KInt4V).PageBytes(),
            64 * (128 + 128 / 2) + 64 * 4 * 4);
}

TEST(KvFormatTest, ArrangementChangesNoSize) {
  for (KvFormat format : Formats()) {
    const int64_t bytes = format.PageBytes();
    format.arrangement = KvArrangement::kSlotLanes;
    ASSERT_EQ(format.PageBytes(), bytes) << Describe(format);
  }
}

TEST(KvFormatTest, FourBitImageHasWholeChunksPerScaleAndPairsHalvesOf16Dims) {
  for (int head_dim : {16, 48, 96}) {
    const int columns = (head_dim + 31) / 32 * 32;
    const DiffSpec spec = {
        .num_kv_groups = 1, .k_maps = 2, .head_dim = head_dim, .v_dim = 2 * head_dim};
    const KvFormat image = KvFormat::Of(spec, 64, DType::kInt4, KvArrangement::kImage);
    EXPECT_EQ(image.PageBytes(), 64 * (4 * columns / 2 + 4 * 4));
    std::set<int> places;
    for (int slot = 0; slot < 64; ++slot) {
      for (int dim = 0; dim < head_dim; ++dim) {
        places.insert({image.KOffset(0, dim, slot), image.KOffset(1, dim, slot),
                       image.VOffset(dim, slot), image.VOffset(head_dim + dim, slot)});
        if (dim % 32 >= 16) {
          ASSERT_EQ(image.KOffset(1, dim, slot), image.KOffset(1, dim - 16, slot) + 1);
          ASSERT_EQ(image.VOffset(head_dim + dim, slot),
                    image.VOffset(head_dim + dim - 16, slot) + 1);
        }
        ASSERT_EQ(image.KOffset(0, dim, slot) % 2, dim % 32 / 16);
      }
    }
    EXPECT_EQ(places.size(), static_cast<size_t>(64 * 4 * head_dim)) << "two share a place";
    EXPECT_LT(*places.rbegin(), 2 * image.ScaleBegin());
  }
}

TEST(KvFormatTest, NeighbouringSlotsOfKAreInNeighbouringLanesOf32BitsOrLess) {
  for (const KvFormat& format : Formats()) {
    if (format.arrangement != KvArrangement::kSlotLanes) continue;
    const int pack = format.codec.k_pack;
    ASSERT_LE(pack * format.codec.k_bits, 32);
    for (int dim = 0; dim < format.head_dim; ++dim) {
      // Among eight, dims 0 and 4 share a byte.
      const int in_pack = format.codec.k_bits < 8 ? dim % 4 * 2 + dim / 4 % 2 : dim % pack;
      for (int slot = 0; slot < format.page_size; ++slot) {
        ASSERT_EQ(format.KOffset(1, dim, slot),
                  format.KOffset(1, dim / pack * pack, 0) + slot * pack + in_pack)
            << Describe(format);
      }
    }
  }
}

TEST(KvFormatTest, NeighbouringColumnsOfVAreInNeighbouringLanesOf32BitsOrLess) {
  for (const KvFormat& format : Formats()) {
    if (format.arrangement != KvArrangement::kSlotLanes) continue;
    const int pack = format.codec.v_pack;
    ASSERT_LE(pack * format.codec.v_bits, 32);
    for (int dim = 0; dim < format.v_dim; ++dim) {
      for (int slot = 0; slot < format.page_size; ++slot) {
        // Among eight, slots 0, 2, 4 and 6 form 16 bits.
        const int in_pack = format.codec.v_bits < 8 ? slot % 2 * 4 + slot / 2 % 4 : slot % pack;
        ASSERT_EQ(format.VOffset(dim, slot),
                  format.VOffset(0, slot / pack * pack) + dim * pack + in_pack)
            << Describe(format);
      }
    }
  }
}

TEST(KvFormatTest, PairsOfBFloat16AreAdjacentForDotProducts) {
  const KvFormat format = {
      16, 1, 1, 64, 128, BFloat16Codec::Description(), KvArrangement::kSlotLanes};
  for (int pair = 0; pair < 16; pair += 2) {
    EXPECT_EQ(format.KOffset(0, pair, 5) + 1, format.KOffset(0, pair + 1, 5));
    EXPECT_EQ(format.VOffset(7, pair) + 1, format.VOffset(7, pair + 1));
  }
}

TEST(KvFormatTest, StoredValueIsTheNearestOfTheFormat) {
  for (DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    const KvFormat format = KvFormat::Of({.num_kv_groups = 1, .head_dim = 16, .v_dim = 16}, 16,
                                         dtype);
    std::vector<std::byte> page(static_cast<size_t>(format.PageBytes()), std::byte{0xff});
    const float infinity = std::numeric_limits<float>::infinity();
    const double step = dtype == DType::kFloat32    ? 0
                        : dtype == DType::kBFloat16 ? 0x1p-8
                                                    : 0x1p-11;  // half of it, relative
    std::vector<float> row = {0.0f, -1.0f, 0.3f, 1234.5f, -3e-3f, infinity, -infinity};
    row.resize(16);
    SetK(format, page.data(), 0, 5, row);
    SetV(format, page.data(), 5, row);
    for (int dim = 0; dim < 16; ++dim) {
      const float value = row[static_cast<size_t>(dim)];
      for (float stored :
           {KValue(format, page.data(), 0, dim, 5), VValue(format, page.data(), dim, 5)}) {
        if (std::isinf(value)) {
          ASSERT_EQ(stored, value);
        } else {
          ASSERT_NEAR(stored, value, std::abs(value) * step) << value;
        }
      }
      for (int slot : {4, 6}) {
        ASSERT_TRUE(std::isnan(KValue(format, page.data(), 0, dim, slot))) << "it was written to";
        ASSERT_TRUE(std::isnan(VValue(format, page.data(), dim, slot))) << "it was written to";
      }
    }
  }
}

TEST(KvFormatTest, Int8RowIsWithinHalfAStepAndEachHalfOfVHasItsOwnScale) {
  const KvFormat format = KvFormat::Of(
      {.num_kv_groups = 1, .k_maps = 2, .head_dim = 16, .v_dim = 32}, 16, DType::kInt8);
  EXPECT_EQ(format.PageBytes(), 16 * (64 + 4 * 4)) << "a float for K1, K2 and either half of V";
  std::vector<std::byte> page(static_cast<size_t>(format.PageBytes()), std::byte{0xff});
  std::vector<float> k, v;
  for (int i = 0; i < 16; ++i) k.push_back(static_cast<float>(i - 7) * 0.37f);
  for (int i = 0; i < 32; ++i)
    v.push_back(static_cast<float>(i % 16 - 9) * (i < 16 ? 0.1f : 50.0f));
  SetK(format, page.data(), 1, 3, k);
  SetV(format, page.data(), 3, v);
  for (int i = 0; i < 16; ++i) {
    EXPECT_NEAR(KValue(format, page.data(), 1, i, 3), k[static_cast<size_t>(i)],
                0.51 * 8 * 0.37 / 127);
  }
  for (int i = 0; i < 32; ++i) {
    EXPECT_NEAR(VValue(format, page.data(), i, 3), v[static_cast<size_t>(i)],
                0.51 * 9 * (i < 16 ? 0.1 : 50.0) / 127);
  }
  EXPECT_TRUE(std::isnan(KValue(format, page.data(), 0, 0, 3))) << "it was written to";
  v[20] = std::numeric_limits<float>::infinity();
  SetV(format, page.data(), 3, v);
  EXPECT_FALSE(std::isnan(VValue(format, page.data(), 15, 3)));
  for (int i = 16; i < 32; ++i) EXPECT_TRUE(std::isnan(VValue(format, page.data(), i, 3)));
}

TEST(KvFormatTest, E4M3RowScalesItsLargestToTheLargestCodeAndRoundsToNearest) {
  const KvFormat format = KvFormat::Of(
      {.num_kv_groups = 1, .k_maps = 2, .head_dim = 16, .v_dim = 32}, 16, DType::kFp8E4M3);
  EXPECT_EQ(format.PageBytes(), 16 * (64 + 4 * 4)) << "a float for K1, K2 and either half of V";
  std::vector<std::byte> page(static_cast<size_t>(format.PageBytes()), std::byte{0xff});
  std::vector<float> v;  // the first half in scales of 1, the second of a quarter
  for (int i = 0; i < 32; ++i)
    v.push_back((i < 16 ? 1.0f : 0.25f) * (i % 16 == 0 ? -448.0f : 1.03f * static_cast<float>(i)));
  SetV(format, page.data(), 3, v);
  SetK(format, page.data(), 1, 3, std::span(v).first(16));
  for (int i = 0; i < 32; ++i) {
    const float value = v[static_cast<size_t>(i)], scale = i < 16 ? 1.0f : 0.25f;
    float nearest = std::numeric_limits<float>::infinity();
    for (uint8_t code = 0; code < 0x7f; ++code) {
      for (float number : {Fp8E4M3ToFloat(code) * scale, -Fp8E4M3ToFloat(code) * scale})
        nearest = std::min(nearest, std::abs(number - value));
    }
    EXPECT_EQ(std::abs(VValue(format, page.data(), i, 3) - value), nearest) << i;
    if (i >= 16) continue;
    EXPECT_EQ(std::abs(KValue(format, page.data(), 1, i, 3) - value), nearest) << i;
  }
  v[20] = std::numeric_limits<float>::infinity();
  SetV(format, page.data(), 3, v);
  for (int i = 0; i < 32; ++i)
    EXPECT_EQ(std::isnan(VValue(format, page.data(), i, 3)), i >= 16) << i;
}

TEST(KvFormatTest, FourBitRowIsWithinHalfAStepBeforeItsTransform) {
  const KvFormat format = KvFormat::Of(
      {.num_kv_groups = 1, .k_maps = 2, .head_dim = 24, .v_dim = 48}, 16, DType::kInt4);
  std::vector<std::byte> page(static_cast<size_t>(format.PageBytes()), std::byte{0xff});
  std::vector<float> v;
  for (int i = 0; i < 48; ++i)
    v.push_back(static_cast<float>(i * i % 17 - 5) * (i < 24 ? 0.1f : 50.0f));
  const std::vector<float> k(v.begin(), v.begin() + 24);
  SetK(format, page.data(), 1, 3, k);
  SetV(format, page.data(), 3, v);
  // Blocks of 8: no transformed number exceeds sqrt(8) times the largest, 12.
  const double step = std::sqrt(8.0) * 2 * 12 / 15;
  const std::vector<double> k_row = KRow(format, page.data(), 1, 3);
  const std::vector<double> v_row = VRow(format, page.data(), 3);
  double squares = 0;
  for (size_t i = 0; i < 48; ++i) {
    const double error = v_row[i] - v[i];
    squares += error * error / (i < 24 ? 0.01 : 2500.0);
  }
  for (size_t i = 0; i < 24; ++i) EXPECT_EQ(k_row[i], v_row[i]);
  EXPECT_LE(std::sqrt(squares / 48), step / 2);
  EXPECT_GT(squares, 0);
  EXPECT_TRUE(std::isnan(KRow(format, page.data(), 0, 3)[0])) << "it was written to";
  v[30] = std::numeric_limits<float>::infinity();
  SetV(format, page.data(), 3, v);
  const std::vector<double> poisoned = VRow(format, page.data(), 3);
  for (size_t i = 0; i < 48; ++i) EXPECT_EQ(std::isnan(poisoned[i]), i >= 24) << i;
}

TEST(KvFormatTest, RepresentableRowIsExactInFourBits) {
  // Transformed, this is whole numbers from -4 to 11.
  const KvFormat format = KvFormat::Of({.num_kv_groups = 1, .head_dim = 16, .v_dim = 16}, 16,
                                       DType::kInt4);
  std::vector<double> codes, scratch(16);
  for (int i = 0; i < 16; ++i) codes.push_back(i * 7 % 16 - 4);
  Hadamard(codes.data(), 16, scratch.data());
  const std::vector<float> row(codes.begin(), codes.end());
  std::vector<std::byte> page(static_cast<size_t>(format.PageBytes()));
  SetK(format, page.data(), 0, 9, row);
  SetV(format, page.data(), 9, row);
  for (size_t i = 0; i < 16; ++i) {
    EXPECT_NEAR(KRow(format, page.data(), 0, 9)[i], row[i], 1e-6);
    EXPECT_NEAR(VRow(format, page.data(), 9)[i], row[i], 1e-6);
  }
}

TEST(KvFormatTest, HadamardTransformIsItsOwnInverseAndKeepsDotProducts) {
  for (int count : {1, 2, 6, 16, 48, 96, 128}) {
    std::vector<double> a, b, scratch(128);
    for (int i = 0; i < count; ++i) {
      a.push_back(i * 37 % 11 - 5);
      b.push_back(i * 13 % 7 - 3);
    }
    const double dot = std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
    const std::vector<double> before = a;
    Hadamard(a.data(), count, scratch.data());
    Hadamard(b.data(), count, scratch.data());
    EXPECT_NEAR(std::inner_product(a.begin(), a.end(), b.begin(), 0.0), dot, 1e-9);
    EXPECT_EQ(a == before, count == 1);
    Hadamard(a.data(), count, scratch.data());
    for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], before[i], 1e-12);
  }
}

TEST(KvFormatTest, OverflowInFloat16BecomesNan) {
  for (float value : {kFloat16Overflow, -kFloat16Overflow, 1e30f}) {
    EXPECT_TRUE(std::isnan(Float16Codec::Decode(Float16Codec::Encode(value)))) << value;
  }
  EXPECT_EQ(Float16Codec::Decode(Float16Codec::Encode(-65519.0f)), -kFloat16Max);
}

TEST(KvImageTest, EightNeighbouringElementsAreOneAlignedChunk) {
  for (const KvFormat& image : Images()) {
    for (int slot = 0; slot < image.page_size; ++slot) {
      for (int dim = 0; dim < image.v_dim; ++dim) {
        ASSERT_EQ(image.VOffset(dim, slot), image.VOffset(dim / 8 * 8, slot) + dim % 8)
            << Describe(image);
      }
      for (int dim = 0; dim < image.head_dim; dim += 8)
        ASSERT_EQ(image.KOffset(0, dim, slot) % 8, 0) << Describe(image);
    }
    ASSERT_EQ(image.PageBytes() % 512, 0) << Describe(image);
  }
}

// The 128-byte swizzle as the manuals define it: bits 4-6 of a byte address in the tile are XORed
// with bits 7-9.
TEST(KvImageTest, TileOf128BytesHasNvidias128ByteSwizzle) {
  const KvFormat image = {64, 1, 1, 128, 256, BFloat16Codec::Description(), KvArrangement::kImage};
  for (int slot = 0; slot < 64; ++slot) {
    for (int dim = 0; dim < 256; ++dim) {
      const int plain = slot * 128 + dim % 64 * 2;
      const int swizzled = plain ^ ((plain >> 7 & 7) << 4);
      ASSERT_EQ(2 * (image.VOffset(dim, slot) - image.VBegin()), dim / 64 * 64 * 128 + swizzled);
    }
  }
}

// One phase of ldmatrix reads 8 rows of 16 bytes; they must be in 8 different groups of 4 banks.
TEST(KvImageTest, LdmatrixAndItsTransposedFormHaveNoBankConflict) {
  for (const KvFormat& image : Images()) {
    for (int first_slot = 0; first_slot < image.page_size; first_slot += 8) {
      for (int dim = 0; dim < image.v_dim; dim += 8) {
        std::set<int> k_groups, v_groups;
        for (int row = 0; row < 8; ++row) {
          if (dim < image.head_dim)
            k_groups.insert(image.KOffset(image.k_maps - 1, dim, first_slot + row) * 2 / 16 % 8);
          v_groups.insert(image.VOffset(dim, first_slot + row) * 2 / 16 % 8);
        }
        ASSERT_EQ(v_groups.size(), 8u) << Describe(image) << ", dim " << dim;
        ASSERT_EQ(k_groups.size(), dim < image.head_dim ? 8u : 0u)
            << Describe(image) << ", dim " << dim;
      }
    }
  }
}

TEST(KvImageTest, StripEqualsAPageOf16Slots) {
  for (const KvFormat& image : Images()) {
    for (int slot = 0; slot < image.page_size; ++slot) {
      for (int dim = 0; dim < image.v_dim; ++dim) {
        const KvImageTile tile = KvImageTileOf(image.v_dim, dim);
        const int tile_in_page = image.VBegin() + tile.first_column * image.page_size;
        const int tile_in_strip = tile.first_column * kStripSlots;
        const int strip_in_tile = slot / kStripSlots * kStripSlots * tile.columns;
        ASSERT_EQ(image.VOffset(dim, slot) - tile_in_page - strip_in_tile,
                  KvImageOffset(kStripSlots, image.v_dim, slot % kStripSlots, dim) - tile_in_strip)
            << Describe(image);
      }
    }
  }
}

TEST(PagedKvTest, PagesOfALayerFollowEachOtherBeyond32Bits) {
  const PagedKv kv = {nullptr,
                      {64, 3, 2, 128, 256, BFloat16Codec::Description(), KvArrangement::kImage}};
  EXPECT_EQ(reinterpret_cast<uintptr_t>(kv.Page(1'000'000, 2)),
            (uintptr_t{1'000'000} * 3 + 2) * 65536);
}

}  // namespace
}  // namespace diffserve
