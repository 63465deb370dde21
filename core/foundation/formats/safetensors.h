// safetensors: named tensors in one file, read through mmap and written from spans, with no second copy in either.
//
//   +0      u64, little-endian: H = bytes of the header (at most 100,000,000)
//   +8      H bytes of JSON, padded with spaces:
//             {"__metadata__": {text: text}?, "name": {"dtype", "shape", "data_offsets": [begin, end]}, ...}
//           begin and end count from the first byte after the header
//   +8+H    tensor bytes, little-endian, row-major, without hole, overlap or tail
//
// The reader refuses, naming tensor and offset: header longer than the cap or the file, header that does not start with
// '{', duplicate keys, unknown members, unknown dtype, negative or overflowing shape, size other than shape x dtype,
// overlap, hole, trailing bytes. The writer keeps the format's convention: widest dtype first, then by name; H is a
// multiple of 8, so every tensor of a file we wrote is aligned to its dtype.
// Thread rule: a SafetensorsFile is read-only and may be shared.
#pragma once

#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "foundation/base/env.h"
#include "foundation/base/result.h"
#include "foundation/base/tensor_view.h"

namespace mortise {

class SafetensorsFile {
 public:
  // Maps and checks the whole header; tensor bytes are not touched.
  static Result<SafetensorsFile> open(Env& env, const Path& path);

  // In the order of their offsets. Views borrow from this object and remain valid when it moves.
  [[nodiscard]] std::span<const TensorView> tensors() const { return tensors_; }
  // By name; null if there is none. O(log n).
  [[nodiscard]] const TensorView* find(std::string_view name) const;
  // By name; an Error that names the nearest tensors otherwise.
  Result<TensorView> get(std::string_view name) const;
  [[nodiscard]] const std::map<std::string, std::string>& metadata() const { return metadata_; }
  // Length and header as in the file: everything before the first tensor.
  [[nodiscard]] std::string_view head() const;
  [[nodiscard]] const Path& path() const { return file_.path(); }

 private:
  MappedFile file_;
  std::vector<TensorView> tensors_;
  std::map<std::string, size_t, std::less<>> by_name_;
  std::map<std::string, std::string> metadata_;
};

struct SafetensorsContent {
  std::vector<TensorView> tensors;  // in the order of their offsets; bytes borrow from the input
  std::map<std::string, std::string> metadata;
};

// The same checks on bytes in memory. `where` is used in errors.
Result<SafetensorsContent> parse_safetensors(std::span<const std::byte> file, std::string_view where);

// Refuses duplicate or empty names and a view whose size is not shape x dtype. Does not sync.
// Reads a TensorSource in pieces of limits::kWriteChunkBytes.
Result<> write_safetensors(WritableFile& file, std::span<const TensorView> tensors,
                           const std::map<std::string, std::string>& metadata = {});
// Bytes of the file that write_safetensors would write, without reading any tensor.
Result<uint64_t> measure_safetensors(std::span<const TensorView> tensors,
                                     const std::map<std::string, std::string>& metadata = {});
// To a path, atomically: temp file, fsync, rename.
Result<> write_safetensors_file(Env& env, const Path& path, std::span<const TensorView> tensors,
                                const std::map<std::string, std::string>& metadata = {});

}  // namespace mortise
