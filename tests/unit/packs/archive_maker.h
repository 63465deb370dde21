// Archives that `mortise pack build` would never write, and packs to put into archives.
#pragma once

#include <zstd.h>

#include <array>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "foundation/formats/sha256.h"
#include "packs/archive.h"
#include "packs/pack_archive.h"
#include "packs/pack_builder.h"
#include "packs/tar_blocks.h"
#include "support/temp_dir.h"

namespace mortise::test {

inline std::string zstd(std::string_view bytes, int level = 3, bool checksum = true) {
  ZSTD_CCtx* context = ZSTD_createCCtx();
  ZSTD_CCtx_setParameter(context, ZSTD_c_compressionLevel, level);
  ZSTD_CCtx_setParameter(context, ZSTD_c_checksumFlag, checksum ? 1 : 0);
  ZSTD_CCtx_setParameter(context, ZSTD_c_windowLog, 20);
  std::string out(ZSTD_compressBound(bytes.size()), '\0');
  out.resize(ZSTD_compress2(context, out.data(), out.size(), bytes.data(), bytes.size()));
  ZSTD_freeCCtx(context);
  return out;
}

// A header with the fields of our own, but any path, type and size; its sum is right.
inline std::string raw_header(std::string_view path, uint64_t size, char type = '0', std::string_view link = "") {
  TarHeader header = tar_header("x", size);
  std::memset(header.data(), 0, 100);
  std::memcpy(header.data(), path.data(), std::min<size_t>(path.size(), 100));
  header[156] = type;
  std::memcpy(header.data() + 157, link.data(), link.size());
  std::memset(header.data() + 148, ' ', 8);
  unsigned sum = 0;
  for (const char byte : header) sum += static_cast<unsigned char>(byte);
  std::snprintf(header.data() + 148, 8, "%06o", sum);
  return {header.data(), header.size()};
}

inline std::string padded(std::string bytes) {
  bytes.append((512 - bytes.size() % 512) % 512, '\0');
  return bytes;
}

inline std::string entry(std::string_view path, const std::string& bytes, char type = '0', std::string_view link = "") {
  return raw_header(path, bytes.size(), type, link) + padded(bytes);
}

inline const std::string& end_blocks() {
  static const std::string zeros(1024, '\0');
  return zeros;
}

// The error of reading the archive, keeping every file.
inline std::string reading(std::string_view archive) {
  return error_of(
      read_archive(archive, "x.mpack",
                   {[](std::string_view, uint64_t) { return true; }, [](ArchiveFile&&) -> Result<> { return {}; }}));
}

// A pack of the tests of the plugin host: test.versions 1.0.0, 1.2.0, 2.0.0.
inline Path versioned_library(const std::string& name = "v1_0_0") {
  return Path(MORTISE_BINARY_DIR) / "tests" / "packs" / "versions" / (name + ".so");
}

inline PackArchive versioned_pack(const std::string& name = "v1_0_0") {
  auto archive = build_pack(default_env(), {versioned_library(name)});
  if (archive.ok()) return *std::move(archive);
  ADD_FAILURE() << archive.error().to_string();
  return {};
}

}  // namespace mortise::test
