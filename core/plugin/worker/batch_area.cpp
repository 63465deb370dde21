// Writes the columns of a batch into shared memory, and opens views of them.
#include "plugin/worker/batch_area.h"

#include <cstring>

#include "foundation/base/hints.h"
#include "plugin/host/abi_struct.h"

namespace mortise {
namespace {

constexpr uint64_t kMagic = 0x3161'6572'6157'4f52;  // "ROWarea1"
constexpr size_t kPartAlign = 16;

struct AreaHead {
  uint64_t magic = kMagic;
  uint64_t num_parts = 0;
  int64_t num_rows = 0;
  int64_t step = 0;
  int64_t max_response_length = 0;
  int64_t is_validation = 0;
  int64_t num_columns = 0;
};

struct AreaPart {
  const void* data = nullptr;
  uint64_t size = 0;    // bytes
  uint64_t offset = 0;  // in the area
};

// The parts of an area in their fixed order: six ragged columns of two parts, four plain ones, six per data column.
class PartList {
 public:
  explicit PartList(const mortise_reward_in& in) : rows_(static_cast<size_t>(in.num_rows)) {
    add_text(in.prompt);
    add_text(in.completion);
    add_text(in.messages);
    add_ids(in.prompt_ids);
    add_ids(in.completion_ids);
    add(in.finish_reason, rows_ * sizeof(int32_t));
    add(in.group_index, rows_ * sizeof(int64_t));
    add(in.sample_index, rows_ * sizeof(int64_t));
    add(in.row_id, rows_ * sizeof(int64_t));
    for (uint64_t i = 0; i < in.num_columns; ++i) add_column(*in.columns[i]);
    size_t offset = sizeof(AreaHead) + parts_.size() * sizeof(AreaPart);
    for (AreaPart& part : parts_) {
      offset = (offset + kPartAlign - 1) / kPartAlign * kPartAlign;
      part.offset = offset;
      offset += part.size;
    }
    size_ = offset;
  }

  [[nodiscard]] const std::vector<AreaPart>& parts() const { return parts_; }
  [[nodiscard]] size_t size() const { return size_; }

 private:
  void add(const void* data, size_t size) { parts_.push_back({data, size, 0}); }
  void add_text(const mortise_text_column& column) {
    const bool given = column.offsets != nullptr;
    add(column.bytes, given ? column.offsets[rows_] : 0);
    add(column.offsets, given ? (rows_ + 1) * sizeof(uint64_t) : 0);
  }
  void add_ids(const mortise_id_column& column) {
    const bool given = column.offsets != nullptr;
    add(column.ids, given ? column.offsets[rows_] * sizeof(int64_t) : 0);
    add(column.offsets, given ? (rows_ + 1) * sizeof(uint64_t) : 0);
  }
  void add_column(const mortise_column& column) {
    add(column.name.data, column.name.size);
    add(&column.type, sizeof column.type);
    add(column.valid, column.valid == nullptr ? 0 : rows_);
    add_text(column.text);
    add(column.type == MORTISE_COLUMN_I64 ? static_cast<const void*>(column.i64) : column.f64,
        column.type == MORTISE_COLUMN_I64 || column.type == MORTISE_COLUMN_F64 ? rows_ * 8 : 0);
  }

  size_t rows_;
  size_t size_ = 0;
  std::vector<AreaPart> parts_;
};

// Hands out the parts of an area in the order in which PartList made them.
class PartReader {
 public:
  PartReader(std::span<const std::byte> area, uint64_t num_parts) : area_(area), num_parts_(num_parts) {}

  [[nodiscard]] bool ok() const { return ok_; }
  [[nodiscard]] uint64_t size() const { return size_; }  // size of the last part

  template <class T>
  const T* next() {
    AreaPart part;
    const size_t at = sizeof(AreaHead) + index_++ * sizeof(AreaPart);
    ok_ = ok_ && index_ <= num_parts_ && at + sizeof part <= area_.size();
    if (ok_) std::memcpy(&part, area_.data() + at, sizeof part);
    ok_ = ok_ && part.offset <= area_.size() && part.size <= area_.size() - part.offset;
    size_ = ok_ ? part.size : 0;
    return size_ == 0 ? nullptr : reinterpret_cast<const T*>(area_.data() + part.offset);
  }
  mortise_text_column text() {
    const char* const bytes = next<char>();
    return {bytes, next<uint64_t>()};
  }
  mortise_id_column ids() {
    const int64_t* const ids = next<int64_t>();
    return {ids, next<uint64_t>()};
  }

 private:
  std::span<const std::byte> area_;
  uint64_t num_parts_;
  uint64_t index_ = 0;
  uint64_t size_ = 0;
  bool ok_ = true;
};

template <class T>
const T* shifted(const T* values, int64_t first) {
  return values == nullptr ? nullptr : values + first;
}

}  // namespace

size_t batch_bytes(const mortise_reward_in& in) { return PartList(in).size(); }

void write_batch(const mortise_reward_in& in, std::span<std::byte> area) {
  const PartList list(in);
  AreaHead head;
  head.num_parts = list.parts().size();
  head.num_rows = in.num_rows;
  head.step = in.step;
  head.max_response_length = in.max_response_length;
  head.is_validation = in.is_validation;
  head.num_columns = static_cast<int64_t>(in.num_columns);
  std::memcpy(area.data(), &head, sizeof head);
  size_t at = sizeof head;
  for (const AreaPart& part : list.parts()) {
    std::memcpy(area.data() + at, &part, sizeof part);
    at += sizeof part;
    if (part.size > 0) std::memcpy(area.data() + part.offset, part.data, part.size);
  }
}

Result<BatchView> BatchView::open(std::span<const std::byte> area) {
  AreaHead head;
  if (area.size() >= sizeof head) std::memcpy(&head, area.data(), sizeof head);
  PartReader parts(area, head.num_parts);
  BatchView view;
  mortise_reward_in& in = view.all_;
  in = make_abi_struct<mortise_reward_in>();
  in.num_rows = head.num_rows;
  in.step = head.step;
  in.max_response_length = head.max_response_length;
  in.is_validation = static_cast<int32_t>(head.is_validation);
  in.prompt = parts.text();
  in.completion = parts.text();
  in.messages = parts.text();
  in.prompt_ids = parts.ids();
  in.completion_ids = parts.ids();
  in.finish_reason = parts.next<int32_t>();
  in.group_index = parts.next<int64_t>();
  in.sample_index = parts.next<int64_t>();
  in.row_id = parts.next<int64_t>();
  for (int64_t i = 0; i < head.num_columns && parts.ok(); ++i) {
    auto column = make_abi_struct<mortise_column>();
    column.name.data = parts.next<char>();
    column.name.size = parts.size();
    if (const auto* type = parts.next<int32_t>()) column.type = *type;
    column.valid = parts.next<uint8_t>();
    column.text = parts.text();
    const auto* numbers = parts.next<std::byte>();
    if (column.type == MORTISE_COLUMN_I64) column.i64 = reinterpret_cast<const int64_t*>(numbers);
    if (column.type == MORTISE_COLUMN_F64) column.f64 = reinterpret_cast<const double*>(numbers);
    view.columns_.push_back(column);
  }
  if (head.magic != kMagic || area.size() < sizeof head || !parts.ok() || head.num_rows < 0) {
    return Error{ErrorKind::kPlugin, "the rows given to a worker cannot be read", "shared memory of a worker",
                 hints::kOneBuildOfWorkers};
  }
  return view;
}

BatchView BatchView::over(const mortise_reward_in& in) {
  BatchView view;
  view.all_ = in;
  for (uint64_t i = 0; i < in.num_columns; ++i) view.columns_.push_back(*in.columns[i]);
  return view;
}

// The offsets of rows [first, first + count) counted from the first of them, as token rewards are laid out.
const uint64_t* BatchView::rebased(const uint64_t* offsets, int64_t first, int64_t count) {
  if (offsets == nullptr || offsets[first] == 0) return shifted(offsets, first);
  const size_t begin = slice_offsets_.size();
  for (int64_t i = 0; i <= count; ++i) slice_offsets_.push_back(offsets[first + i] - offsets[first]);
  return slice_offsets_.data() + begin;
}

void BatchView::cut(mortise_text_column& column, int64_t first, int64_t count) {
  if (column.offsets == nullptr) return;
  column.bytes = shifted(column.bytes, static_cast<int64_t>(column.offsets[first]));
  column.offsets = rebased(column.offsets, first, count);
}

void BatchView::cut(mortise_id_column& column, int64_t first, int64_t count) {
  if (column.offsets == nullptr) return;
  column.ids = shifted(column.ids, static_cast<int64_t>(column.offsets[first]));
  column.offsets = rebased(column.offsets, first, count);
}

const mortise_reward_in& BatchView::slice(int64_t first, int64_t count) {
  slice_ = all_;
  slice_.num_rows = count;
  slice_columns_ = columns_;
  slice_pointers_.clear();
  slice_offsets_.clear();
  slice_offsets_.reserve((5 + columns_.size()) * static_cast<size_t>(count + 1));  // so that none moves
  cut(slice_.prompt, first, count);
  cut(slice_.completion, first, count);
  cut(slice_.messages, first, count);
  cut(slice_.prompt_ids, first, count);
  cut(slice_.completion_ids, first, count);
  slice_.finish_reason = shifted(all_.finish_reason, first);
  slice_.group_index = shifted(all_.group_index, first);
  slice_.sample_index = shifted(all_.sample_index, first);
  slice_.row_id = shifted(all_.row_id, first);
  for (mortise_column& column : slice_columns_) {
    column.valid = shifted(column.valid, first);
    cut(column.text, first, count);
    column.i64 = shifted(column.i64, first);
    column.f64 = shifted(column.f64, first);
    slice_pointers_.push_back(&column);
  }
  slice_.num_columns = slice_pointers_.size();
  slice_.columns = slice_pointers_.data();
  return slice_;
}

}  // namespace mortise
