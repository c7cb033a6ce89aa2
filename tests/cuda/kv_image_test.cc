// The image of a page: a bijection in whole chunks that ldmatrix reads without bank conflicts.
#include "kernels/attention/kv_image.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

namespace diffserve {
namespace {

std::vector<KvImage> Images() {
  std::vector<KvImage> images;
  for (int page_size : {16, 48, 64, 128}) {
    for (int head_dim = 16; head_dim <= 144; head_dim += 16) {
      for (int k_maps : {1, 2}) {
        images.push_back({page_size, 3, k_maps, head_dim, head_dim});
        images.push_back({page_size, 3, k_maps, head_dim, 2 * head_dim});
      }
    }
  }
  return images;
}

std::string Describe(const KvImage& image) {
  return "page_size " + std::to_string(image.page_size) + ", k_maps " +
         std::to_string(image.k_maps) + ", head_dim " + std::to_string(image.head_dim) +
         ", v_dim " + std::to_string(image.v_dim);
}

TEST(KvImageTest, EveryElementHasAPlaceOfItsOwnAndThePageIsFull) {
  for (const KvImage& image : Images()) {
    std::vector<int> owners(static_cast<size_t>(image.PageElements()));
    const auto take = [&](int offset) { ++owners.at(static_cast<size_t>(offset)); };
    for (int slot = 0; slot < image.page_size; ++slot) {
      for (int map = 0; map < image.k_maps; ++map) {
        for (int dim = 0; dim < image.head_dim; ++dim) take(image.KOffset(map, dim, slot));
      }
      for (int dim = 0; dim < image.v_dim; ++dim) take(image.VOffset(dim, slot));
    }
    for (int count : owners) ASSERT_EQ(count, 1) << Describe(image);
  }
}

TEST(KvImageTest, EightNeighbouringElementsAreOneAlignedChunk) {
  for (const KvImage& image : Images()) {
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

// The 128-byte swizzle as the manuals give it: bits 4-6 of a byte address in the tile are XORed
// with bits 7-9.
TEST(KvImageTest, ATileOf64ColumnsHasNvidias128ByteSwizzle) {
  const KvImage image = {64, 1, 1, 128, 256};
  for (int slot = 0; slot < 64; ++slot) {
    for (int dim = 0; dim < 256; ++dim) {
      const int plain = slot * 128 + dim % 64 * 2;
      const int swizzled = plain ^ ((plain >> 7 & 7) << 4);
      ASSERT_EQ(2 * (image.VOffset(dim, slot) - image.VBegin()), dim / 64 * 64 * 128 + swizzled);
    }
  }
}

// One phase of ldmatrix reads 8 rows of 16 bytes; they must lie in 8 different groups of 4 banks.
TEST(KvImageTest, NeitherLdmatrixNorItsTransposedFormMeetsABankTwice) {
  for (const KvImage& image : Images()) {
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

TEST(KvImageTest, AStripIsAPageOf16Slots) {
  for (const KvImage& image : Images()) {
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

TEST(KvImageTest, PagesOfALayerFollowEachOtherBeyond32Bits) {
  const KvImage image = {64, 3, 2, 128, 256};
  const KvImageLayer layer = {nullptr, image};
  EXPECT_EQ(reinterpret_cast<uintptr_t>(layer.Page(1'000'000, 2)),
            (uintptr_t{1'000'000} * 3 + 2) * 65536);
}

}  // namespace
}  // namespace diffserve
