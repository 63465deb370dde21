// Streams of plain, gzip (zlib) and zstd (libzstd) files.
#include "foundation/formats/rows/byte_stream.h"

#include <fmt/core.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <string>

#include "foundation/base/text.h"

namespace mortise {

namespace {

Error damaged_file(const MappedFile& file, std::string what) {
  return {ErrorKind::kData, std::move(what), file.path().string(), "compress or download the file again"};
}

class PlainStream : public ByteStream {
 public:
  explicit PlainStream(const MappedFile& file) : rest_(file.text()) {}
  Result<std::string_view> next() override {
    const std::string_view piece = rest_.substr(0, kReadBytes);
    rest_.remove_prefix(piece.size());
    return piece;
  }

 private:
  std::string_view rest_;
};

// The part that gzip and zstd share: input, output buffer, and the limit of the expansion.
class ExpandedStream : public ByteStream {
 public:
  explicit ExpandedStream(const MappedFile& file) : file_(&file), rest_(file.text()), buffer_(kReadBytes, '\0') {}

  Result<std::string_view> next() override {
    size_t size = 0;
    while (size == 0 && !(rest_.empty() && is_between_members_)) size = TRY(expand());
    num_expanded_ += size;
    if (num_expanded_ > kMinExpandedBytes && num_expanded_ / kMaxExpansion > file_->text().size()) {
      return Error{ErrorKind::kData,
                   fmt::format("the file expands to more than {} times its size, which is no data set", kMaxExpansion),
                   file_->path().string(), "check where the file comes from"};
    }
    return std::string_view(buffer_).substr(0, size);
  }

 protected:
  // Expands some of rest_ into buffer_; gives the number of bytes.
  virtual Result<size_t> expand() = 0;
  [[nodiscard]] Error cut() const { return damaged_file(*file_, "the compressed file ends too early"); }

  const MappedFile* file_;
  std::string_view rest_;
  std::string buffer_;
  bool is_between_members_ = false;  // a file may hold several compressed members, one after another

 private:
  uint64_t num_expanded_ = 0;
};

class GzipStream : public ExpandedStream {
 public:
  explicit GzipStream(const MappedFile& file) : ExpandedStream(file) {
    constexpr int kGzipWindow = 15 + 16;  // the largest window; a gzip header, no zlib header
    is_ready_ = ::inflateInit2(&state_, kGzipWindow) == Z_OK;
  }
  GzipStream(const GzipStream&) = delete;
  GzipStream& operator=(const GzipStream&) = delete;
  ~GzipStream() override { ::inflateEnd(&state_); }

 protected:
  Result<size_t> expand() override {
    if (!is_ready_) return damaged_file(*file_, "zlib cannot start");
    if (is_between_members_) {
      if (compression_of(rest_) != Compression::kGzip)
        return damaged_file(*file_, "the gzip file has other bytes behind its end");
      ::inflateReset(&state_);
      is_between_members_ = false;
    }
    const size_t given = std::min<size_t>(rest_.size(), size_t{1} << 20);
    state_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(rest_.data()));  // zlib does not write to it
    state_.avail_in = static_cast<uInt>(given);
    state_.next_out = reinterpret_cast<Bytef*>(buffer_.data());
    state_.avail_out = static_cast<uInt>(buffer_.size());
    const int status = ::inflate(&state_, Z_NO_FLUSH);
    rest_.remove_prefix(given - state_.avail_in);
    const size_t size = buffer_.size() - state_.avail_out;
    if (status == Z_STREAM_END) {
      is_between_members_ = true;
    } else if (status != Z_OK && status != Z_BUF_ERROR) {
      return damaged_file(*file_, fmt::format("the gzip file is damaged ({})",
                                              state_.msg != nullptr ? state_.msg : "its data does not decompress"));
    } else if (size == 0 && rest_.empty()) {
      return cut();
    }
    return size;
  }

 private:
  z_stream state_{};
  bool is_ready_ = false;
};

class ZstdStream : public ExpandedStream {
 public:
  explicit ZstdStream(const MappedFile& file) : ExpandedStream(file), state_(::ZSTD_createDStream()) {
    if (state_ != nullptr) ::ZSTD_DCtx_setParameter(state_, ZSTD_d_windowLogMax, kMaxZstdWindowLog);
  }
  ZstdStream(const ZstdStream&) = delete;
  ZstdStream& operator=(const ZstdStream&) = delete;
  ~ZstdStream() override { ::ZSTD_freeDStream(state_); }

 protected:
  Result<size_t> expand() override {
    if (state_ == nullptr) return damaged_file(*file_, "libzstd cannot start");
    ZSTD_inBuffer in{rest_.data(), std::min<size_t>(rest_.size(), size_t{1} << 20), 0};
    ZSTD_outBuffer out{buffer_.data(), buffer_.size(), 0};
    const size_t status = ::ZSTD_decompressStream(state_, &out, &in);
    if (::ZSTD_isError(status) != 0)
      return damaged_file(*file_, fmt::format("the zstd file is damaged ({})", ::ZSTD_getErrorName(status)));
    rest_.remove_prefix(in.pos);
    is_between_members_ = status == 0;
    if (out.pos == 0 && in.pos == 0 && !is_between_members_) return cut();
    return out.pos;
  }

 private:
  ZSTD_DStream* state_;
};

}  // namespace

Compression compression_of(std::string_view first_bytes) {
  if (first_bytes.starts_with("\x1f\x8b")) return Compression::kGzip;
  if (first_bytes.starts_with("\x28\xb5\x2f\xfd")) return Compression::kZstd;
  return Compression::kNone;
}

Result<std::unique_ptr<ByteStream>> open_byte_stream(const MappedFile& file) {
  std::unique_ptr<ByteStream> stream;
  switch (compression_of(file.text())) {
    case Compression::kGzip:
      stream = std::make_unique<GzipStream>(file);
      break;
    case Compression::kZstd:
      stream = std::make_unique<ZstdStream>(file);
      break;
    case Compression::kNone:
      stream = std::make_unique<PlainStream>(file);
      break;
  }
  return stream;
}

}  // namespace mortise
