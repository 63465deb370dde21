// Reads an archive, and compares its description with the notes of its builds.
#include "packs/pack_archive.h"

#include <fmt/core.h>

#include <algorithm>
#include <span>

#include "foundation/base/text.h"
#include "foundation/formats/sha256.h"
#include "packs/rules.h"
#include "plugin/pack/audit.h"
#include "plugin/pack/elf_reader.h"
#include "plugin/pack/note.h"

namespace mortise {
namespace {

constexpr uint64_t kMaxReadmeBytes = limits::kMiB;

// The shared object of a build, against its entry in pack.toml.
Result<> check_build(const PackDescription& pack, const ArchiveFile& file, std::string_view where) {
  const std::string place = fmt::format("{}:{}", where, file.path);
  const auto build =
      std::find_if(pack.builds.begin(), pack.builds.end(), [&](const PackBuild& one) { return one.file == file.path; });
  if (build == pack.builds.end())
    return broken_rule(PackRule::kBuild, "pack.toml lists no build " + quote(file.path), where,
                       "build the archive again with `mortise pack build`");
  const auto wrong = [&](std::string what) {
    return broken_rule(PackRule::kBuild, std::move(what), place, "build the archive again with `mortise pack build`");
  };
  if (file.bytes.size() != build->size || sha256_hex(file.bytes) != build->sha256)
    return wrong("the build is not the one that pack.toml describes");
  const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(file.bytes.data()), file.bytes.size());
  const ElfSummary elf = TRY(read_elf(bytes, place));
  TRY(audit_major(elf, place));
  const std::string_view note_text = TRY(find_note(elf, place));
  const PackInfo note = TRY(parse_note(note_text, place));
  TRY(audit_elf(elf, place));
  if (note.id != pack.id || note.version != pack.version)
    return wrong(fmt::format("the build is of {}, pack.toml says {}", note.label(), pack.label()));
  if (note.tier != build->tier || note.torch != build->torch)
    return wrong(fmt::format("the build is {}, pack.toml says otherwise", note.tier));
  const std::string cuda = TRY(cuda_of_note(note_text, place));
  if (!cuda.empty() && cuda != build->cuda)
    return wrong(fmt::format("the build is for CUDA {}, pack.toml says otherwise", cuda));
  if (plugins_text(note.plugins) != plugins_text(pack.plugins))
    return broken_rule(PackRule::kPlugins, "pack.toml describes other plugins than the note of the build", place,
                       "build the archive again with `mortise pack build`");
  return {};
}

}  // namespace

Result<PackArchive> check_archive(std::string bytes, std::string path) {
  PackArchive archive;
  archive.path = std::move(path);
  archive.bytes = std::move(bytes);
  const std::string& where = archive.path;
  size_t num_builds = 0;
  const auto wants = [&](std::string_view name, uint64_t size) {
    archive.files.push_back({std::string(name), size});
    return name == kDescriptionFile || name.starts_with("lib/") || (name == "README.md" && size <= kMaxReadmeBytes);
  };
  const auto take = [&](ArchiveFile&& file) -> Result<> {
    if (file.path == kDescriptionFile) {
      archive.description = TRY(parse_description(file.bytes, where + ":pack.toml"));
    } else if (file.path == "README.md") {
      archive.readme = std::move(file.bytes);
    } else {
      TRY(check_build(archive.description, file, where));
      ++num_builds;
    }
    return {};
  };
  TRY(read_archive(archive.bytes, where, {wants, take}));
  if (archive.files.empty())
    return broken_rule(PackRule::kFirst, "the archive is empty", where, "build it with `mortise pack build`");
  const auto has = [&](const std::string& name) {
    return std::any_of(archive.files.begin(), archive.files.end(), [&](const auto& file) { return file.path == name; });
  };
  if (num_builds != archive.description.builds.size())
    return broken_rule(PackRule::kBuild, "pack.toml lists builds that are not in the archive", where,
                       "build the archive again with `mortise pack build`");
  for (const std::string& test : archive.description.tests) {
    if (!has(test))
      return broken_rule(PackRule::kDescription,
                         fmt::format("pack.toml lists the test {}, which is not there", quote(test)), where,
                         "build the archive again with `mortise pack build`");
  }
  archive.sha256 = sha256_hex(archive.bytes);
  return archive;
}

Result<PackArchive> read_pack_archive(Env& env, const Path& path) {
  const FileInfo info = TRY(env.info(path));
  if (info.size_bytes > kMaxArchiveBytes)
    return broken_rule(
        PackRule::kFileSize, "the archive has " + format_bytes(info.size_bytes), path.string(),
        fmt::format("keep data out of the pack: at most {} are allowed", format_bytes(kMaxArchiveBytes)));
  return check_archive(TRY(env.read_file(path, kMaxArchiveBytes)), path.string());
}

}  // namespace mortise
