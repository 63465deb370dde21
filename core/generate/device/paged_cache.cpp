// The cache of device_cache.h by kernels.
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "generate/device/device_cache.h"
#include "model/layers/rope.h"
#include "model/layers/segment_attention.h"

namespace mortise {
namespace {

constexpr int64_t kKernelPageTokens = MORTISE_CUDA_PAGE_TOKENS;
static_assert(kKernelPageTokens == KvShape::kPageTokens, "the scheduler gives out the pages that kernels read");
constexpr int64_t kLeastDevicePages = 64;

int64_t device_pages_of(int64_t tokens) { return (tokens + kKernelPageTokens - 1) / kKernelPageTokens; }

class PagedCache final : public PagedDeviceCache {
 public:
  PagedCache(const Model& model, const ModelConfig& layers, const DeviceKernels& kernels, const KvCache& kv)
      : model_(model), config_(layers), kernels_(kernels), kv_(kv) {}

  void prepare(int64_t /*num_slots*/, int64_t /*longest*/) override {}  // reserve() has made room for the longest

  // Allocations come first, so nothing has changed if memory runs out.
  void reserve(std::span<const NewSlots> slots) override {
    int64_t pages = 0, longest = 0;
    for (const NewSlots& own : slots) {
      for (const std::vector<float*>& sample : own.pages)
        for (const float* const page : sample) pages = std::max<int64_t>(pages, page_of(page) + 1);
      longest = std::max({longest, own.most_tokens, own.length});
    }
    reserve_turns(longest);
    reserve_pages(pages);
  }

  void add_slots(const NewSlots& slots) override {
    reserve({&slots, 1});
    for (const std::vector<float*>& sample : slots.pages) {
      std::vector<int32_t>& own = pages_.emplace_back();
      for (const float* const page : sample) own.push_back(page_of(page));
    }
    is_table_old_ = true;
  }

  void remove_slot(int64_t slot) override {
    if (static_cast<size_t>(slot) + 1 < pages_.size()) pages_[static_cast<size_t>(slot)] = std::move(pages_.back());
    pages_.pop_back();
    is_table_old_ = true;
  }

  void clear() override { pages_.clear(); }

  void free() override {
    if (num_pages_ > 0) pages_before_ = num_pages_;
    pages_.clear();
    free_pages();
    table_ = at::Tensor();
    turns_ = window_turns_ = {};
    is_table_old_ = true;
    ++layout_;
  }

  at::Tensor rows_of_table(const DevicePass& pass) override {
    const at::Tensor table = table_on_device();
    std::vector<int64_t> rows = pass.slots;
    for (const DevicePiece& piece : pass.pieces)
      rows.insert(rows.end(), static_cast<size_t>(piece.count), piece.slots[0]);
    const bool are_all = pass.pieces.empty() && pass.num_decoding() == table.size(0);
    return are_all ? table : table.index_select(0, sent_to(table.device(), at::tensor(rows, at::kLong)));
  }

  [[nodiscard]] uint64_t layout() const override { return layout_; }

  void read_by(const DevicePass& pass, ForwardOptions& options) override {
    const at::Tensor table = pass.table_NP.defined() ? pass.table_NP : rows_of_table(pass);
    const int64_t splits = pass.longest / MORTISE_CUDA_SPLIT_TOKENS + 1;
    const at::Tensor scratch = at::empty({pass.num_decoding(), config_.num_heads, splits, config_.head_dim + 2},
                                         table.options().dtype(at::kFloat));
    options.attend_unrotated = [this, &pass, table, scratch, lengths = lengths_of(pass, table.device())](
                                   int64_t layer, const at::Tensor& qkv_NQ, const AttentionShape& shape,
                                   const at::Tensor& bias_Q) {
      const at::Tensor qkv = qkv_NQ.contiguous();
      const auto half = static_cast<int32_t>(turns(layer).cos_PR2.size(1));
      write(layer, qkv, bias_Q, half, pass.positions_N, view_of(layer, table));
      const at::Tensor out = at::empty({qkv.size(0), shape.num_heads * shape.head_dim},
                                       qkv.options().dtype(shape.rounds ? at::kBFloat16 : at::kFloat));
      decode(qkv, shape, pass, view_of(layer, table), scratch, out);
      enter(layer, qkv, shape, pass, lengths, out);
      return out;
    };
  }

 private:
  // The first rows of a pass: one query each.
  void decode(const at::Tensor& qkv_NQ, const AttentionShape& shape, const DevicePass& pass,
              const MortiseCudaPages& pages, const at::Tensor& scratch, const at::Tensor& out) const {
    const MortiseCudaScores scores{static_cast<float>(shape.scale), static_cast<float>(shape.softcap),
                                   static_cast<int32_t>(shape.window), shape.rounds ? 1 : 0};
    const at::Tensor sinks = shape.sinks_A.defined() ? shape.sinks_A.contiguous() : at::Tensor();
    check_started(
        kernels_.attention(qkv_NQ.const_data_ptr<float>(), pass.num_decoding(), heads(), scores,
                           sinks.defined() ? sinks.const_data_ptr<float>() : nullptr,
                           pass.positions_N.const_data_ptr<int64_t>(), pages, static_cast<int32_t>(scratch.size(2)),
                           scratch.mutable_data_ptr<float>(), out.mutable_data_ptr(), stream_of(out.device())),
        "attention");
  }

  // The other rows. Their keys and values are in the pages of the first slot of each sequence; the others get what lies in
  // a page that the sequence does not fill. A piece without earlier ones reads its own rows, the others their pages.
  void enter(int64_t layer, const at::Tensor& qkv_NQ, const AttentionShape& shape, const DevicePass& pass,
             const SegmentLengths& lengths, const at::Tensor& out) {
    if (pass.pieces.empty()) return;
    const int64_t first = pass.num_decoding(), count = qkv_NQ.size(0) - first, dim = shape.head_dim;
    std::vector<at::Tensor> keys, values;
    int64_t row = first;
    for (const DevicePiece& piece : pass.pieces) {
      const at::Tensor own = qkv_NQ.narrow(0, row, piece.count);
      fill_other_slots(layer, piece, own, pass.positions_N.narrow(0, row, piece.count));
      const auto part = [&](int64_t head) {
        return own.narrow(1, head * dim, shape.num_kv_heads * dim).reshape({piece.count, shape.num_kv_heads, dim});
      };
      const int64_t end = piece.begin + piece.count;
      const bool is_whole = piece.begin == 0;
      keys.push_back(is_whole ? part(shape.num_heads) : read(keys_, layer, piece.slots[0], end));
      values.push_back(is_whole ? part(shape.num_heads + shape.num_kv_heads)
                                : read(values_, layer, piece.slots[0], end));
      row += piece.count;
    }
    const at::Tensor q =
        qkv_NQ.narrow(0, first, count).narrow(1, 0, shape.num_heads * dim).reshape({count, shape.num_heads, dim});
    const at::Tensor all = segment_attention(q, at::cat(keys, 0), at::cat(values, 0), lengths, shape);
    out.narrow(0, first, count).copy_(all.reshape({count, shape.num_heads * dim}));
  }

  // The lengths of the pieces, for all layers of a pass.
  static SegmentLengths lengths_of(const DevicePass& pass, at::Device device) {
    SegmentLengths out;
    if (pass.pieces.empty()) return out;
    for (const DevicePiece& piece : pass.pieces) {
      out.queries.push_back(piece.count);
      out.keys.push_back(piece.begin + piece.count);
    }
    send_begins(out, device);
    return out;
  }

  void fill_other_slots(int64_t layer, const DevicePiece& piece, const at::Tensor& qkv_LQ, const at::Tensor& places_L) {
    const at::Tensor table = table_on_device();
    const int64_t shared = piece.length / kKernelPageTokens * kKernelPageTokens;
    const int64_t skipped = std::max<int64_t>(0, shared - piece.begin), count = piece.count - skipped;
    if (count <= 0) return;
    for (size_t i = 1; i < piece.slots.size(); ++i) {
      MortiseCudaPages pages = view_of(layer, table);
      pages.table += piece.slots[i] * table.size(1);
      pages.table_stride = 0;  // every row is of this slot
      write(layer, qkv_LQ.narrow(0, skipped, count), /*bias_Q=*/{}, /*half=*/0, places_L.narrow(0, skipped, count),
            pages);
    }
  }

  // Keys or values of the first `length` tokens of a slot, [length, heads, D].
  at::Tensor read(const std::vector<at::Tensor>& layers, int64_t layer, int64_t slot, int64_t length) {
    const at::Tensor pages = table_on_device().select(0, slot).narrow(0, 0, device_pages_of(length));
    return layers[static_cast<size_t>(layer)]
        .index_select(0, pages)
        .transpose(1, 2)
        .flatten(0, 1)
        .narrow(0, 0, length)
        .to(at::kFloat);
  }

  [[nodiscard]] MortiseCudaHeads heads() const {
    return {static_cast<int32_t>(config_.num_heads), static_cast<int32_t>(config_.num_kv_heads),
            static_cast<int32_t>(config_.head_dim)};
  }
  [[nodiscard]] MortiseCudaPages view_of(int64_t layer, const at::Tensor& table) const {
    const auto at = static_cast<size_t>(layer);
    return {keys_[at].mutable_data_ptr(), values_[at].mutable_data_ptr(), model_.has_rounded_matrices() ? 1 : 0,
            table.const_data_ptr<int32_t>(), table.size(1)};
  }
  [[nodiscard]] const RopeTable& turns(int64_t layer) const {
    return config_.uses_window_rope(layer) ? window_turns_ : turns_;
  }
  void write(int64_t layer, const at::Tensor& qkv_NQ, const at::Tensor& bias_Q, int32_t half,
             const at::Tensor& places_N, const MortiseCudaPages& pages) const {
    const RopeTable& table = turns(layer);
    const at::Tensor bias = bias_Q.defined() ? bias_Q.contiguous() : bias_Q;
    check_started(kernels_.rope_write(qkv_NQ.mutable_data_ptr<float>(), qkv_NQ.size(0), heads(),
                                      bias.defined() ? bias.const_data_ptr<float>() : nullptr,
                                      table.cos_PR2.const_data_ptr<float>(), table.sin_PR2.const_data_ptr<float>(),
                                      half, places_N.const_data_ptr<int64_t>(), pages, stream_of(qkv_NQ.device())),
                  "rope_write");
  }

  // Where the page of the scheduler lies here.
  static int32_t page_of(const float* page) { return KvCache::number_of(page) + kPaddingPage + 1; }

  void free_pages() {
    for (std::vector<at::Tensor>* const part : {&keys_, &values_}) part->clear();
    num_pages_ = 0;
  }
  // Makes sure that there are `count` pages. A cache that must grow doubles, up to all pages that the scheduler may give out.
  // It keeps its contents, but what nobody needs is freed first.
  void reserve_pages(int64_t count) {
    if (count <= num_pages_) return;
    const int64_t wanted = std::max({kLeastDevicePages, 2 * num_pages_, pages_before_});
    ++layout_;
    if (pages_.empty() && kv_.num_computed() == 0) free_pages();
    const int64_t before = num_pages_, after = std::max(count, std::min(wanted, kv_.max_pages() + kPaddingPage + 1));
    const at::TensorOptions numbers = at::TensorOptions()
                                          .device(model_.device().device)
                                          .dtype(model_.has_rounded_matrices() ? at::kBFloat16 : at::kFloat);
    for (std::vector<at::Tensor>* const part : {&keys_, &values_}) {
      part->resize(static_cast<size_t>(config_.num_layers));
      for (at::Tensor& layer : *part) {
        at::Tensor larger = at::empty({after, config_.num_kv_heads, kKernelPageTokens, config_.head_dim}, numbers);
        // A layer may have more than `before` pages already, if memory ran out at a later layer the last time.
        if (layer.defined()) larger.narrow(0, 0, before).copy_(layer.narrow(0, 0, before));
        layer = std::move(larger);
      }
    }
    num_pages_ = after;
  }

  // Rotations of the first `length` positions and more.
  void reserve_turns(int64_t length) {
    const int64_t known = turns_.cos_PR2.defined() ? turns_.cos_PR2.size(0) : 0;
    if (length <= known) return;
    const int64_t count = std::max(length, known * 2);
    const auto made = [&](const RopeConfig& rope) {
      // The engine rotates every sequence as a short one, unless rope_length asks for the factors of longer ones.
      const RopeTable host =
          make_rope_table(rope, config_.head_dim, count, at::kFloat, std::max<int64_t>(1, config_.rope_length));
      return RopeTable{host.cos_PR2.to(model_.device().device), host.sin_PR2.to(model_.device().device)};
    };
    ++layout_;
    turns_ = made(config_.rope);
    if (config_.window_rope) window_turns_ = made(*config_.window_rope);
  }

  // [slots, pages of the slot with most]
  const at::Tensor& table_on_device() {
    if (!is_table_old_) return table_;
    size_t width = 1;
    for (const std::vector<int32_t>& own : pages_) width = std::max(width, own.size());
    const at::Tensor host = at::empty({static_cast<int64_t>(pages_.size()), static_cast<int64_t>(width)}, at::kInt);
    auto* const data = host.mutable_data_ptr<int32_t>();
    std::fill_n(data, host.numel(), 0);
    for (size_t slot = 0; slot < pages_.size(); ++slot) std::ranges::copy(pages_[slot], data + slot * width);
    table_ = sent_to(model_.device().device, host);
    is_table_old_ = false;
    return table_;
  }

  const Model& model_;
  ModelConfig config_;
  const DeviceKernels& kernels_;
  const KvCache& kv_;
  int64_t num_pages_ = 0, pages_before_ = 0;  // that there are, and that the last free() gave back
  std::vector<at::Tensor> keys_, values_;     // by layer
  std::vector<std::vector<int32_t>> pages_;   // by slot
  at::Tensor table_;                          // pages_, where the model lies
  bool is_table_old_ = true;
  uint64_t layout_ = 0;
  RopeTable turns_, window_turns_;  // by position
};

}  // namespace

bool serves_kernels(const Model& model) {
  return model.dtype() == at::kFloat && model.config().head_dim <= MORTISE_CUDA_MOST_HEAD_DIM;
}

std::unique_ptr<PagedDeviceCache> make_paged_cache(const Model& model, const ModelConfig& layers,
                                                   const DeviceKernels& kernels, const KvCache& kv) {
  return std::make_unique<PagedCache>(model, layers, kernels, kv);
}

const DeviceKernels* paged_kernels(const Model& model) {
  return serves_kernels(model) ? device_kernels(model.device().device) : nullptr;
}

}  // namespace mortise
