// Writes signatures.
#include "packs/signing.h"

#include <fmt/core.h>

#include <algorithm>
#include <vector>

#include "packs/pack_builder.h"

namespace mortise {

Result<std::string> sign_archive(Env& env, const SigningSecretKey& key, const PackArchive& archive) {
  const PackDescription& pack = archive.description;
  const std::string comment =
      fmt::format("timestamp:{}\tfile:{}\thashed\tpack:{}\tversion:{}", env.wall_time_ns() / 1'000'000'000,
                  archive_file_name(pack), pack.id, pack.version);
  return sign_bytes(key, archive.bytes, comment);
}

Result<std::string> join_signatures(std::string_view text, std::string_view added, std::string_view where) {
  std::vector<FileSignature> all = TRY(parse_signatures(text, where));
  const std::vector<FileSignature> more = TRY(parse_signatures(added, where));
  std::erase_if(all, [&](const FileSignature& one) {
    return std::any_of(more.begin(), more.end(),
                       [&](const FileSignature& other) { return other.key_id == one.key_id; });
  });
  all.insert(all.end(), more.begin(), more.end());
  std::string out;
  for (const FileSignature& one : all) out += signature_text(one);
  TRY(parse_signatures(out, where));  // not too many
  return out;
}

}  // namespace mortise
