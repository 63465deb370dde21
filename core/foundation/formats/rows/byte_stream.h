// The bytes of a file from its beginning to its end, decompressed if the file is a gzip or zstd file.
//
// The first bytes of the file say which it is, not its name. Memory is constant: the file is mapped, and zstd windows
// above 128 MiB (`zstd --long=28` and more) are refused. A file that expands to more than 1000 times its size is refused
// as well (kMaxExpansion), after 64 MiB. Damage, a missing end and bytes behind the end are errors that name the file.
// Thread rule: one thread per stream.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "foundation/base/env.h"
#include "foundation/base/result.h"

namespace mortise {

// The caps of row readers. foundation/base/limits.h has those of the other formats.
inline constexpr uint64_t kMaxExpansion = 1000;                    // decompressed bytes per byte of the file
inline constexpr uint64_t kMinExpandedBytes = uint64_t{64} << 20;  // below it, any expansion is fine
inline constexpr int kMaxZstdWindowLog = 27;                       // 128 MiB
inline constexpr size_t kReadBytes = size_t{256} << 10;            // decompressed at once

class ByteStream {
 public:
  virtual ~ByteStream() = default;
  // The next bytes, at least one; none at the end. Borrowed until the next call.
  virtual Result<std::string_view> next() = 0;
};

enum class Compression { kNone, kGzip, kZstd };
// What the first bytes of a file say.
[[nodiscard]] Compression compression_of(std::string_view first_bytes);

// `file` must outlive the stream.
Result<std::unique_ptr<ByteStream>> open_byte_stream(const MappedFile& file);

}  // namespace mortise
