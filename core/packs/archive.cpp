// Writes and reads the zstd frame of an archive, and the files in its tar.
#include "packs/archive.h"

#include <fmt/core.h>
#include <zstd.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "foundation/base/text.h"
#include "packs/rules.h"
#include "packs/tar_blocks.h"

namespace mortise {
namespace {

constexpr int kLevel = 19;
constexpr int kWindowLog = 23;  // 8 MiB: what a reader must hold
constexpr uint64_t kFreeBytes = 16 * limits::kMiB, kMaxRatio = 64;
constexpr size_t kStepBytes = 256 * 1024;

struct FreeContext {
  void operator()(ZSTD_CCtx* context) const { ZSTD_freeCCtx(context); }
  void operator()(ZSTD_DCtx* context) const { ZSTD_freeDCtx(context); }
};

Error bad_frame(std::string what, std::string_view where) {
  return broken_rule(PackRule::kFrame, std::move(what), where,
                     "get the file again, or build it again with `mortise pack build`");
}

Result<std::string> compress(std::string_view tar, std::string_view where) {
  const std::unique_ptr<ZSTD_CCtx, FreeContext> context(ZSTD_createCCtx());
  std::string out(ZSTD_compressBound(tar.size()), '\0');
  const auto set = [&](ZSTD_cParameter what, int value) {
    return ZSTD_isError(ZSTD_CCtx_setParameter(context.get(), what, value)) == 0;
  };
  if (!context || !set(ZSTD_c_compressionLevel, kLevel) || !set(ZSTD_c_windowLog, kWindowLog) ||
      !set(ZSTD_c_checksumFlag, 1))
    return Error{ErrorKind::kInternal, "libzstd refused its settings", std::string(where), "report this"};
  const size_t size = ZSTD_compress2(context.get(), out.data(), out.size(), tar.data(), tar.size());
  if (ZSTD_isError(size) != 0)
    return Error{ErrorKind::kInternal, std::string("libzstd: ") + ZSTD_getErrorName(size), std::string(where),
                 "free some memory and try again"};
  out.resize(size);
  return out;
}

// The frame's magic number, and a checksum of its content (bit 2 of the descriptor, RFC 8878). Bits 3 and 4 have no
// meaning and are zero.
Result<> check_frame_header(std::string_view archive, std::string_view where) {
  constexpr std::string_view kMagic("\x28\xB5\x2F\xFD", 4);
  if (!archive.starts_with(kMagic) || archive.size() < 6) return bad_frame("this is not a zstd frame", where);
  if ((static_cast<unsigned char>(archive[4]) & 4U) == 0) return bad_frame("the zstd frame has no checksum", where);
  if ((static_cast<unsigned char>(archive[4]) & 0x18U) != 0) return bad_frame("the zstd frame has unknown bits", where);
  return {};
}

}  // namespace

bool is_archive_path(std::string_view path) {
  if (path.empty() || path.size() > kMaxArchivePathBytes) return false;
  for (const std::string_view part : split(path, '/')) {
    if (part.empty() || part == "." || part == "..") return false;
    const bool plain = std::all_of(part.begin(), part.end(), [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' ||
             c == '+' || c == '-';
    });
    if (!plain) return false;
  }
  return true;
}

Result<std::string> write_archive(std::vector<ArchiveFile> files, std::string_view where) {
  std::sort(files.begin(), files.end(), [](const ArchiveFile& a, const ArchiveFile& b) {
    const bool a_first = a.path == kDescriptionFile, b_first = b.path == kDescriptionFile;
    return a_first != b_first ? a_first : a.path < b.path;
  });
  std::string tar;
  for (const ArchiveFile& file : files) {
    if (!is_archive_path(file.path))
      return broken_rule(PackRule::kPath, fmt::format("the path {} is not allowed", quote(file.path)), where,
                         "use at most 100 of the characters A-Z a-z 0-9 . _ + - and /");
    if (file.bytes.size() > kMaxArchiveFileBytes)
      return broken_rule(PackRule::kUnpackedSize,
                         fmt::format("{} has {}", quote(file.path), format_bytes(file.bytes.size())), where,
                         "keep data out of the pack");
    const TarHeader header = tar_header(file.path, file.bytes.size());
    tar.append(header.data(), header.size()).append(file.bytes);
    tar.append((kTarBlock - file.bytes.size() % kTarBlock) % kTarBlock, '\0');
  }
  tar.append(2 * kTarBlock, '\0');
  std::string archive = TRY(compress(tar, where));
  // What was written is read back: every rule holds for what leaves this function.
  TRY(read_archive(archive, where, {[](std::string_view, uint64_t) { return false; }, {}}));
  return archive;
}

Result<> read_archive(std::string_view archive, std::string_view where, const ArchiveVisitor& visitor) {
  if (archive.size() > kMaxArchiveBytes)
    return broken_rule(
        PackRule::kFileSize, "the archive has " + format_bytes(archive.size()), where,
        fmt::format("keep data out of the pack: at most {} are allowed", format_bytes(kMaxArchiveBytes)));
  TRY(check_frame_header(archive, where));
  const std::unique_ptr<ZSTD_DCtx, FreeContext> context(ZSTD_createDCtx());
  if (!context || ZSTD_isError(ZSTD_DCtx_setParameter(context.get(), ZSTD_d_windowLogMax, kWindowLog)) != 0)
    return Error{ErrorKind::kInternal, "libzstd refused its settings", std::string(where), "report this"};
  TarReader reader(where, visitor, std::min(kMaxUnpackedBytes, kFreeBytes + kMaxRatio * archive.size()));
  std::string step(kStepBytes, '\0');
  ZSTD_inBuffer in{archive.data(), archive.size(), 0};
  for (;;) {
    ZSTD_outBuffer out{step.data(), step.size(), 0};
    const size_t more = ZSTD_decompressStream(context.get(), &out, &in);
    if (ZSTD_isError(more) != 0)
      return bad_frame(std::string("the zstd frame is damaged: ") + ZSTD_getErrorName(more), where);
    TRY(reader.feed(std::string_view(step).substr(0, out.pos)));
    if (more == 0) break;  // the end of the frame
    if (in.pos == in.size && out.pos < out.size) return bad_frame("the archive is cut short", where);
  }
  if (in.pos != in.size) return bad_frame("there is something after the zstd frame", where);
  return reader.finish();
}

}  // namespace mortise
