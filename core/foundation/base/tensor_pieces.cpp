// See tensor_pieces.h.
#include "foundation/base/tensor_pieces.h"

#include <algorithm>

#include "foundation/base/text.h"

namespace mortise {

Result<> read_tensor_bytes(const TensorView& tensor, uint64_t begin, std::span<std::byte> out) {
  if (tensor.source != nullptr) return tensor.source->read(begin, out);
  if (begin > tensor.bytes.size() || out.size() > tensor.bytes.size() - begin)
    return Error{ErrorKind::kInternal, "bytes outside the tensor " + quote(tensor.name), "", "please report this"};
  std::ranges::copy(tensor.bytes.subspan(begin, out.size()), out.begin());
  return {};
}

Result<> RankedTensor::read(uint64_t begin, std::span<std::byte> out) const {
  if (!is_everywhere_)
    return Error{ErrorKind::kInternal, "a tensor of the state lies on several ranks, and one of them saves alone", "",
                 ""};
  return read_tensor_bytes(own_, begin, out);
}

Result<> JoinedTensor::read(uint64_t begin, std::span<std::byte> out) const {
  for (const std::span<const std::byte> piece : pieces_) {
    if (begin >= piece.size()) {
      begin -= piece.size();
      continue;
    }
    const size_t size = std::min<size_t>(out.size(), piece.size() - begin);
    std::ranges::copy(piece.subspan(begin, size), out.begin());
    out = out.subspan(size);
    begin = 0;
    if (out.empty()) return {};
  }
  if (out.empty()) return {};
  return Error{ErrorKind::kInternal, "bytes behind the end of a tensor in several files", "", "please report this"};
}

JoinedColumns::JoinedColumns(std::vector<std::span<const std::byte>> pieces, uint64_t num_rows)
    : pieces_(std::move(pieces)), num_rows_(num_rows) {
  for (const std::span<const std::byte> piece : pieces_) row_bytes_ += piece.size() / std::max<uint64_t>(1, num_rows);
}

Result<> JoinedColumns::read(uint64_t begin, std::span<std::byte> out) const {
  if (begin > row_bytes_ * num_rows_ || out.size() > row_bytes_ * num_rows_ - begin)
    return Error{ErrorKind::kInternal, "a read goes behind the end of a matrix that lies in several files", "",
                 "please report this"};
  while (!out.empty()) {
    const uint64_t row = begin / row_bytes_;
    uint64_t at = begin % row_bytes_;
    for (const std::span<const std::byte> piece : pieces_) {
      const uint64_t width = piece.size() / num_rows_;
      if (at >= width) {
        at -= width;
        continue;
      }
      const size_t size = std::min<size_t>(out.size(), width - at);
      std::ranges::copy(piece.subspan(row * width + at, size), out.begin());
      out = out.subspan(size);
      begin += size;
      at = 0;
      if (out.empty()) break;
    }
  }
  return {};
}

}  // namespace mortise
