// An archive of a pack: the bytes as they are, as the tar inside a good frame, as pack.toml in a good archive, as a
// signature, a public key and an index. What is accepted keeps the rules.
#include <zstd.h>

#include <string>

#include "fuzz/fuzz_support.h"
#include "packs/archive.h"
#include "packs/description.h"
#include "packs/index.h"
#include "packs/minisign.h"
#include "packs/pack_archive.h"
#include "packs/tar_blocks.h"

namespace mortise {
namespace {

void read_tar(std::string_view tar) {
  size_t total = 0;
  std::string last;
  const ArchiveVisitor visitor{[](std::string_view, uint64_t) { return true; },
                               [&](ArchiveFile&& file) -> Result<> {
                                 fuzz::require(is_archive_path(file.path), "paths stay in the folder");
                                 fuzz::require(last.empty() || last == kDescriptionFile || last < file.path, "sorted");
                                 total += file.bytes.size();
                                 last = file.path;
                                 return {};
                               }};
  TarReader reader("input", visitor, uint64_t{1} << 20);
  // In pieces, as the decompressor gives them.
  for (size_t at = 0; at < tar.size(); at += 333)
    if (!reader.feed(tar.substr(at, 333)).ok()) return;
  if (reader.finish().ok()) fuzz::require(total <= tar.size(), "no file is larger than the archive");
}

}  // namespace

void fuzz::run_one(const uint8_t* data, size_t size) {
  const std::string_view text = as_text(data, size);
  if (const auto archive = check_archive(std::string(text), "input.mpack"); archive.ok())
    require(!archive->description.builds.empty(), "a pack has a build");
  read_tar(text);
  if (const auto pack = parse_description(text, "pack.toml"); pack.ok()) {
    const auto again = parse_description(description_text(*pack), "again");
    require(again.ok(), "what is written is read");
    require(description_text(*again) == description_text(*pack), "what is written stays");
  }
  (void)parse_source_description(text, "pack.toml");
  if (const auto signatures = parse_signatures(text, "input.minisig"); signatures.ok()) {
    std::string again;
    for (const FileSignature& one : *signatures) again += signature_text(one);
    require(parse_signatures(again, "again").ok() || again.size() > kMaxSignatureFileBytes, "what is written is read");
  }
  (void)parse_public_key(text, "input.pub");
  if (const auto index = parse_index(text, "index.json"); index.ok())
    require(parse_index(index_text(*index), "again").ok(), "what is written is read");
}

}  // namespace mortise
