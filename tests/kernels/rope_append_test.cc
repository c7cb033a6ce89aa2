// Rotary embedding against its formula, and where K and V land in their pages.
#include "kernels/ops/rope_append.h"

#include <cmath>
#include <cstring>
#include <map>

#include "tests/testing/kernel_levels.h"

namespace diffserve {
namespace {

using testing::KernelLevels;
using testing::KernelOp;
using testing::RandomFloats;
using testing::SameBits;
using testing::Tolerance;
using testing::ToleranceOf;
using testing::WithinTolerance;

std::vector<double> InverseFrequencies(int head_dim) {
  std::vector<double> inv_freq;
  for (int i = 0; i < head_dim / 2; ++i) inv_freq.push_back(std::pow(10000.0, -2.0 * i / head_dim));
  return inv_freq;
}

struct Shape {
  int position;
  int num_rows;
};

// A batch of rows on its way into a cache whose every byte is 0xff before.
class Append {
 public:
  Append(const DiffSpec& spec, int page_size, DType dtype, RopeStyle style,
         const std::vector<Shape>& shapes, double attention_factor = 1)
      : spec_(spec),
        format_(KvFormat::Of(spec, page_size, dtype)),
        style_(style),
        attention_factor_(attention_factor),
        rope_(InverseFrequencies(spec.head_dim), 512, attention_factor) {
    int32_t next_page = 40;  // handed out downwards
    page_lists_.resize(shapes.size());
    for (size_t i = 0; i < shapes.size(); ++i) {
      const int pages = (shapes[i].position + shapes[i].num_rows + page_size - 1) / page_size;
      for (int page = 0; page < pages; ++page) page_lists_[i].push_back(next_page--);
      sequences_.push_back(
          {num_rows_, shapes[i].num_rows, shapes[i].position, page_lists_[i].data()});
      num_rows_ += shapes[i].num_rows;
    }
    kv_.assign(
        41 * static_cast<size_t>(spec.num_kv_groups) * static_cast<size_t>(format_.PageBytes()),
        std::byte{0xff});
    width_ = static_cast<size_t>(spec.q_width() + spec.k_width() + spec.v_width());
    qkv_ = RandomFloats(static_cast<size_t>(num_rows_) * width_, 1);
    q_.assign(static_cast<size_t>(num_rows_) * static_cast<size_t>(spec.q_width()), -77.0f);
  }
  Append(const Append&) = delete;
  Append& operator=(const Append&) = delete;

  RopeAppendArgs Args() {
    return {.spec = spec_,
            .sequences = sequences_,
            .kv = {kv_.data(), format_},
            .rope = &rope_,
            .style = style_,
            .qkv = qkv_.data(),
            .q = q_.data()};
  }
  const std::vector<float>& q() const { return q_; }
  const std::vector<std::byte>& kv() const { return kv_; }

  // Compares q and every element of every page with the formula; slots outside the batch must be
  // untouched.
  void ExpectByFormula(Tolerance q_tolerance, Tolerance kv_tolerance) {
    std::map<size_t, double> expected;  // by element of the whole cache
    for (const SequenceRows& sequence : sequences_) {
      for (int row = 0; row < sequence.num_rows; ++row)
        ExpectRow(sequence, row, q_tolerance, expected);
    }
    const size_t elements = kv_.size() * 8 / static_cast<size_t>(format_.codec.bits);
    for (size_t i = 0; i < elements; ++i) {
      const float value = KvValue(format_, kv_.data(), static_cast<int>(i));
      const auto found = expected.find(i);
      if (found == expected.end()) {
        ASSERT_TRUE(std::isnan(value)) << "element " << i << " was written to";
      } else {
        ASSERT_TRUE(WithinTolerance(value, found->second, kv_tolerance))
            << "element " << i << ": " << value << " " << found->second;
      }
    }
  }

 private:
  double Rotated(const float* head, int dim, int position) const {
    const int half = spec_.head_dim / 2;
    const bool halves = style_ == RopeStyle::kHalfSplit;
    const int pair = halves ? dim % half : dim / 2;
    const bool is_second = halves ? dim >= half : dim % 2 == 1;
    const double a = head[halves ? pair : 2 * pair];
    const double b = head[halves ? pair + half : 2 * pair + 1];
    const double angle = static_cast<float>(
        position * InverseFrequencies(spec_.head_dim)[static_cast<size_t>(pair)]);
    return attention_factor_ * (is_second ? b * std::cos(angle) + a * std::sin(angle)
                                          : a * std::cos(angle) - b * std::sin(angle));
  }

  void ExpectRow(const SequenceRows& sequence, int row, Tolerance q_tolerance,
                 std::map<size_t, double>& expected) {
    const int position = sequence.position + row;
    const size_t batch_row = static_cast<size_t>(sequence.first_row + row);
    const float* x = qkv_.data() + batch_row * width_;
    const float* q = q_.data() + batch_row * static_cast<size_t>(spec_.q_width());
    for (int i = 0; i < spec_.q_width(); ++i) {
      const int head = i / spec_.head_dim;
      ASSERT_TRUE(WithinTolerance(
          q[i], Rotated(x + head * spec_.head_dim, i % spec_.head_dim, position), q_tolerance))
          << i;
    }
    const float* k = x + spec_.q_width();
    const float* v = k + spec_.k_width();
    const int slot = position % format_.page_size;
    for (int group = 0; group < spec_.num_kv_groups; ++group) {
      const size_t page = (static_cast<size_t>(sequence.pages[position / format_.page_size]) *
                               static_cast<size_t>(spec_.num_kv_groups) +
                           static_cast<size_t>(group)) *
                          static_cast<size_t>(format_.PageElements());
      for (int map = 0; map < spec_.k_maps; ++map) {
        const float* head = k + (map * spec_.num_kv_groups + group) * spec_.head_dim;
        for (int d = 0; d < spec_.head_dim; ++d)
          expected[page + static_cast<size_t>(format_.KOffset(map, d, slot))] = Rotated(head, d,
                                                                                        position);
      }
      for (int d = 0; d < spec_.v_dim; ++d) {
        expected[page + static_cast<size_t>(format_.VOffset(d, slot))] = v[group * spec_.v_dim + d];
      }
    }
  }

  DiffSpec spec_;
  KvFormat format_;
  RopeStyle style_;
  double attention_factor_;
  RopeTable rope_;
  std::vector<std::vector<int32_t>> page_lists_;
  std::vector<SequenceRows> sequences_;
  int num_rows_ = 0;
  size_t width_ = 0;
  std::vector<std::byte> kv_;
  std::vector<float> qkv_;
  std::vector<float> q_;
};

const DiffSpec kDiffSpec = {.num_q1_heads = 4,
                            .num_q2_heads = 2,
                            .num_kv_groups = 2,
                            .k_maps = 2,
                            .head_dim = 12,
                            .v_dim = 24,
                            .lambda_kind = LambdaKind::kPerLayer};
const DiffSpec kPlainSpec = {.num_q1_heads = 3, .num_kv_groups = 1, .head_dim = 64, .v_dim = 64};
const std::vector<Shape> kShapes = {{0, 19}, {15, 1}, {16, 2}, {40, 1}};

TEST(RopeAppendTest, BothStylesFollowTheFormulaAndKAndVLandInTheirSlots) {
  ThreadPool pool({.num_threads = 2, .pin = false});
  for (const DiffSpec& spec : {kDiffSpec, kPlainSpec}) {
    for (RopeStyle style : {RopeStyle::kHalfSplit, RopeStyle::kInterleaved}) {
      for (DType dtype : {DType::kFloat32, DType::kBFloat16}) {
        for (int page_size : {16, 32}) {
          Append reference(spec, page_size, dtype, style, kShapes);
          RopeAppendRef(reference.Args());
          reference.ExpectByFormula(ToleranceOf(KernelOp::kRope, DType::kFloat32, CpuIsa::kAvx2),
                                    ToleranceOf(KernelOp::kRope, dtype, CpuIsa::kAvx2));
          for (CpuIsa isa : KernelLevels()) {
            Append append(spec, page_size, dtype, style, kShapes);
            cpu::RopeAppend(append.Args(), isa, pool);
            append.ExpectByFormula(ToleranceOf(KernelOp::kRope, DType::kFloat32, isa),
                                   ToleranceOf(KernelOp::kRope, dtype, isa));
          }
        }
      }
    }
  }
}

TEST(RopeAppendTest, TheAttentionFactorScalesQAndKButNotV) {
  ThreadPool pool({.num_threads = 1});
  for (CpuIsa isa : KernelLevels()) {
    Append append(kDiffSpec, 16, DType::kFloat32, RopeStyle::kHalfSplit, kShapes, 1.25);
    cpu::RopeAppend(append.Args(), isa, pool);
    const Tolerance tolerance = ToleranceOf(KernelOp::kRope, DType::kFloat32, isa);
    append.ExpectByFormula(tolerance, tolerance);
  }
}

TEST(RopeAppendTest, ThreadsAndBatchmatesChangeNoBit) {
  ThreadPool one({.num_threads = 1});
  ThreadPool three({.num_threads = 3, .pin = false});
  const std::vector<Shape> shapes = {{3, 130}, {15, 1}, {16, 40}};  // enough rows to wake the
                                                                    // workers
  for (CpuIsa isa : KernelLevels()) {
    Append together(kDiffSpec, 16, DType::kBFloat16, RopeStyle::kInterleaved, shapes);
    cpu::RopeAppend(together.Args(), isa, three);
    Append apart(kDiffSpec, 16, DType::kBFloat16, RopeStyle::kInterleaved, shapes);
    const RopeAppendArgs all = apart.Args();
    for (const SequenceRows& sequence : all.sequences) {
      for (int row = 0; row < sequence.num_rows; ++row) {
        const SequenceRows single{sequence.first_row + row, 1, sequence.position + row,
                                  sequence.pages};
        RopeAppendArgs args = all;
        args.sequences = {&single, 1};
        cpu::RopeAppend(args, isa, one);
      }
    }
    EXPECT_TRUE(SameBits(apart.q(), together.q())) << NameOf(isa);
    EXPECT_EQ(apart.kv(), together.kv()) << NameOf(isa);
  }
}

TEST(RopeTableTest, AnglesAreRoundedToFloatAndNoMoreIsLost) {
  const std::vector<double> inv_freq = {1.0, 0.1};
  const RopeTable table(inv_freq, 131072, 1.0);
  EXPECT_EQ(table.Cos(131071)[0], static_cast<float>(std::cos(131071.0)));
  EXPECT_EQ(table.Sin(131071)[1],
            static_cast<float>(std::sin(double{static_cast<float>(131071.0 * 0.1)})));
}

}  // namespace
}  // namespace diffserve
