// Collects the files of a pack, and makes the archive from them.
#include "packs/pack_builder.h"

#include <fmt/core.h>

#include <algorithm>
#include <set>
#include <span>

#include "foundation/base/text.h"
#include "foundation/formats/json.h"
#include "foundation/formats/sha256.h"
#include "packs/rules.h"
#include "plugin/pack/audit.h"
#include "plugin/pack/elf_reader.h"
#include "plugin/pack/note.h"

namespace mortise {
namespace {

constexpr size_t kMaxTestDepth = 3;

Error build_error(std::string what, const Path& where, std::string next) {
  return {ErrorKind::kPlugin, std::move(what), where.string(), std::move(next)};
}

// e_machine of an ELF file.
std::string architecture(std::string_view file) {
  if (file.size() < 20) return "unknown";
  const int machine = static_cast<unsigned char>(file[18]) | static_cast<unsigned char>(file[19]) << 8;
  return machine == 62 ? "x86_64" : machine == 183 ? "aarch64" : machine == 243 ? "riscv64" : "unknown";
}

class Builder {
 public:
  explicit Builder(Env& env) : env_(env) {}

  // Folders bring builds of their own only where no shared object was named.
  Result<> add_inputs(const std::vector<Path>& inputs) {
    std::vector<Path> folders;
    for (const Path& input : inputs) {
      if (TRY(env_.info(input)).is_directory) {
        folders.push_back(input);
      } else {
        TRY(add_build(input, {}));
      }
    }
    for (const Path& folder : folders) TRY(add_folder(folder, folders.size() == inputs.size()));
    return {};
  }

  Result<PackArchive> finish(const Path& where) {
    if (pack_.builds.empty())
      return build_error("there is no build of a pack", where,
                         "build the .so first, or name it in a [[build]] of pack.toml");
    std::sort(pack_.needs.begin(), pack_.needs.end());
    std::sort(pack_.builds.begin(), pack_.builds.end(),
              [](const PackBuild& a, const PackBuild& b) { return a.file < b.file; });
    if (!has("sbom.json")) files_.push_back({"sbom.json", bill_of_materials()});
    std::sort(pack_.tests.begin(), pack_.tests.end());
    files_.push_back({std::string(kDescriptionFile), description_text(pack_)});
    return check_archive(TRY(write_archive(std::move(files_), where.string())), where.string());
  }

 private:
  [[nodiscard]] bool has(std::string_view path) const {
    return std::any_of(files_.begin(), files_.end(), [&](const ArchiveFile& file) { return file.path == path; });
  }

  Result<> add_file(const Path& file, std::string path) {
    if (has(path)) return build_error("two inputs have a " + path, file, "keep one");
    std::string bytes = TRY(env_.read_file(file, kMaxArchiveFileBytes));
    files_.push_back({std::move(path), std::move(bytes)});
    return {};
  }

  Result<> add_folder(const Path& folder, bool with_builds) {
    std::vector<PackBuild> listed;
    if (const Path source = folder / kDescriptionFile; env_.exists(source)) {
      const std::string text = TRY(env_.read_file(source, kMaxDescriptionBytes));
      PackDescription given = TRY(parse_source_description(text, source.string()));
      listed = std::move(given.builds);
      given.builds = std::move(pack_.builds);
      given.plugins = std::move(pack_.plugins);
      given.needs = std::move(pack_.needs);
      if (!identity_.empty()) {
        if ((!given.id.empty() && given.id != pack_.id) || (!given.version.empty() && given.version != pack_.version))
          return other_pack(source, given.label());
        given.id = pack_.id;
        given.version = pack_.version;
      }
      pack_ = std::move(given);
    }
    for (const char* name : {"README.md", "LICENSE", "sbom.json"})
      if (env_.exists(folder / name)) TRY(add_file(folder / name, name));
    if (env_.exists(folder / "tests")) TRY(add_tests(folder / "tests", "tests", 0));
    if (!with_builds) return {};
    if (!listed.empty()) {
      for (const PackBuild& build : listed) TRY(add_build(folder / build.file, build));
      return {};
    }
    for (const char* place : {".", "lib", "build/lib/mortise/packs"}) TRY(add_builds_of(folder / place));
    return {};
  }

  Result<> add_tests(const Path& folder, const std::string& prefix, size_t depth) {
    for (const std::string& name : TRY(env_.list_dir(folder))) {
      const Path path = folder / name;
      const std::string inside = fmt::format("{}/{}", prefix, name);
      if (TRY(env_.info(path)).is_directory) {
        if (depth < kMaxTestDepth) TRY(add_tests(path, inside, depth + 1));
        continue;
      }
      const auto kind = path.extension();
      if (kind != ".toml" && kind != ".jsonl" && kind != ".safetensors") continue;  // sources of other tests
      if (kind == ".toml") pack_.tests.push_back(inside);
      TRY(add_file(path, inside));
    }
    return {};
  }

  Result<> add_builds_of(const Path& folder) {
    if (!env_.exists(folder)) return {};
    for (const std::string& name : TRY(env_.list_dir(folder))) {
      if (Path(name).extension() == ".so") TRY(add_build((folder / name).lexically_normal(), {}));
    }
    return {};
  }

  Error other_pack(const Path& path, const std::string& label) const {
    return broken_rule(PackRule::kBuild, fmt::format("this is {}, not {}", label, identity_), path.string(),
                       "an archive holds one version of one pack: build one for each");
  }

  Result<> add_build(const Path& path, PackBuild build) {
    ArchiveFile file;
    file.bytes = TRY(env_.read_file(path, kMaxArchiveFileBytes));
    const std::string where = path.string();
    const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(file.bytes.data()), file.bytes.size());
    const ElfSummary elf = TRY(read_elf(bytes, where));
    TRY(audit_major(elf, where));
    const std::string_view note_text = TRY(find_note(elf, where));
    const PackInfo note = TRY(parse_note(note_text, where));
    TRY(audit_elf(elf, where));
    TRY(check_pack_id(note.id, where));
    TRY(check_pack_version(note.version, where));
    TRY(take_identity(note, path));
    build.sha256 = sha256_hex(file.bytes);
    build.size = file.bytes.size();
    build.arch = architecture(file.bytes);
    if (build.cpu.empty()) build.cpu = build.arch == "x86_64" ? "x86-64" : build.arch;
    const std::string cuda = TRY(cuda_of_note(note_text, where));
    TRY(take_cuda(build, cuda, where));
    build.tier = note.tier;
    build.torch = note.torch;
    std::string folder = fmt::format("lib/{}-{}", build.os, build.arch);
    if (const size_t level = build.cpu.rfind("-v"); level != std::string::npos) folder += build.cpu.substr(level);
    if (!build.torch.empty()) folder += "-torch" + build.torch;
    if (!build.cuda.empty()) folder += "-cuda" + build.cuda;
    build.file = file.path = fmt::format("{}/{}.so", folder, note.id);
    if (has(file.path))
      return broken_rule(PackRule::kBuild, "two builds are for " + build.platform(), where,
                         "keep one, or set cpu or cuda of a [[build]] in pack.toml");
    pack_.builds.push_back(std::move(build));
    files_.push_back(std::move(file));
    return {};
  }

  // What pack.toml says counts where the note says nothing.
  static Result<> take_cuda(PackBuild& build, const std::string& of_note, const std::string& where) {
    if (!build.cuda.empty() && !of_note.empty() && build.cuda != of_note)
      return broken_rule(PackRule::kBuild,
                         fmt::format("the build is for CUDA {}, pack.toml says {}", of_note, build.cuda), where,
                         "remove cuda from the [[build]]: the build says it by itself");
    if (!of_note.empty()) build.cuda = of_note;
    return {};
  }

  Result<> take_identity(const PackInfo& note, const Path& path) {
    if (identity_.empty()) {
      identity_ = note.label();
      if ((!pack_.id.empty() && pack_.id != note.id) || (!pack_.version.empty() && pack_.version != note.version))
        return broken_rule(PackRule::kBuild,
                           fmt::format("the build is {}, pack.toml says {}@{}", note.label(), pack_.id, pack_.version),
                           path.string(), "correct pack.toml, or build the .so again");
      pack_.id = note.id;
      pack_.version = note.version;
      pack_.plugins = note.plugins;
      plugins_ = plugins_text(note.plugins);
    } else if (note.label() != identity_) {
      return other_pack(path, note.label());
    } else if (plugins_text(note.plugins) != plugins_) {
      return broken_rule(PackRule::kPlugins, "this build has other plugins than the first one", path.string(),
                         "build all platforms from the same source");
    }
    for (const std::string& need : note.allowed_needs) {
      if (std::find(pack_.needs.begin(), pack_.needs.end(), need) == pack_.needs.end()) pack_.needs.push_back(need);
    }
    return {};
  }

  // CycloneDX 1.4: the pack, and the libraries that it needs from the machine.
  [[nodiscard]] std::string bill_of_materials() const {
    Json component = {{"type", "library"}, {"name", pack_.id}, {"version", pack_.version}};
    if (!pack_.license.empty()) component["licenses"] = Json::array({{{"license", {{"name", pack_.license}}}}});
    Json parts = Json::array();
    for (const std::string& need : pack_.needs) parts.push_back({{"type", "library"}, {"name", need}});
    for (const PackBuild& build : pack_.builds) {
      parts.push_back({{"type", "file"},
                       {"name", build.file},
                       {"hashes", Json::array({{{"alg", "SHA-256"}, {"content", build.sha256}}})}});
    }
    return dump_json({{"bomFormat", "CycloneDX"},
                      {"specVersion", "1.4"},
                      {"version", 1},
                      {"metadata", {{"component", component}}},
                      {"components", parts}},
                     2) +
           "\n";
  }

  Env& env_;
  PackDescription pack_;
  std::string identity_, plugins_;  // those of the first build
  std::vector<ArchiveFile> files_;
};

}  // namespace

Result<PackArchive> build_pack(Env& env, const std::vector<Path>& inputs) {
  Builder builder(env);
  TRY(builder.add_inputs(inputs));
  return builder.finish(inputs.empty() ? Path("mortise pack build") : inputs.front());
}

std::string archive_file_name(const PackDescription& pack) { return fmt::format("{}-{}.mpack", pack.id, pack.version); }

}  // namespace mortise
