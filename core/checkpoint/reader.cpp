// See reader.h.
#include "checkpoint/reader.h"

#include <fmt/core.h>
#include <algorithm>
#include <utility>

#include "checkpoint/state_files.h"
#include "foundation/base/hints.h"
#include "foundation/base/limits.h"
#include "foundation/base/text.h"
#include "foundation/formats/sha256.h"

namespace mortise {
namespace {

constexpr std::string_view kReplaced = ".replaced_";

Error damaged_entry(const ManifestEntry& entry, std::string_view problem, const Path& folder) {
  return {ErrorKind::kData, fmt::format("checkpoint entry {} {}", quote(entry.path), problem), folder.string(),
          hints::kDamagedCheckpoint};
}

}  // namespace

Result<> verify_entry(Env& env, const Path& folder, const ManifestEntry& entry) {
  const Path path = folder / entry.path;
  if (!env.exists(path)) return damaged_entry(entry, "is missing", folder);
  const MappedFile file = TRY(env.map_file(path));
  if (file.bytes().size() != entry.size_bytes)
    return damaged_entry(
        entry, fmt::format("has {} bytes, but the manifest says {}", file.bytes().size(), entry.size_bytes), folder);
  if (sha256_hex(file) != entry.sha256) return damaged_entry(entry, "was changed (its SHA-256 differs)", folder);
  return {};
}

std::string state_scalar_text(const StateScalar& scalar) {
  struct Visitor {
    std::string operator()(bool value) const { return value ? "true" : "false"; }
    std::string operator()(int64_t value) const { return std::to_string(value); }
    std::string operator()(uint64_t value) const { return std::to_string(value); }
    std::string operator()(double value) const { return format_f64(value); }
    std::string operator()(const std::string& value) const { return value; }
  };
  return std::visit(Visitor{}, scalar);
}

bool is_further(const CheckpointRef& a, const CheckpointRef& b) {
  return a.place != b.place ? a.place > b.place : a.path.filename() > b.path.filename();  // '.' last
}

std::optional<CheckpointRef> checkpoint_ref(const Path& run_dir, const std::string& name) {
  // A replaced checkpoint counts as one of its place if a save was cut off between its two renames, and as the
  // fall-back of a damaged one.
  const size_t skip = name.starts_with(kReplaced) ? kReplaced.size() : 0;
  const auto place = parse_checkpoint_name(std::string_view(name).substr(skip));
  return place ? std::optional(CheckpointRef{*place, run_dir / name}) : std::nullopt;
}

Result<std::vector<CheckpointRef>> list_checkpoints(Env& env, const Path& run_dir) {
  std::vector<CheckpointRef> found;
  if (!env.exists(run_dir)) return found;
  for (const std::string& name : TRY(env.list_dir(run_dir))) {
    if (const auto ref = checkpoint_ref(run_dir, name)) found.push_back(*ref);
  }
  std::sort(found.begin(), found.end(), is_further);
  return found;
}

Path best_checkpoint(Env& env, const Path& run_dir) {
  const Result<std::string> name = env.read_file(run_dir / kBestFile, 4096);
  return name.ok() && parse_checkpoint_name(trim(*name)) ? run_dir / trim(*name) : Path();
}

Result<Manifest> read_manifest(Env& env, const Path& checkpoint_dir) {
  const Path path = checkpoint_dir / kManifestFile;
  if (!env.exists(checkpoint_dir))
    return Error{ErrorKind::kData, "the checkpoint does not exist", checkpoint_dir.string(),
                 "give a global_step_N folder of a run"};
  if (!env.exists(path))
    return Error{ErrorKind::kData, "checkpoint entry 'manifest.json' is missing", checkpoint_dir.string(),
                 "the folder is not a complete checkpoint; resume from another one"};
  const std::string text = TRY(env.read_file(path, limits::kMaxManifestBytes));
  Manifest manifest = TRY(parse_manifest(text, path.string()));
  for (const std::string_view needed : {kStateJsonFile, kStateTensorsFile}) {
    if (manifest.find(needed) == nullptr)
      return Error{ErrorKind::kData, "the manifest has no entry " + quote(needed), checkpoint_dir.string(),
                   "resume from another checkpoint"};
  }
  return manifest;
}

Result<> verify_share(Env& env, const Path& checkpoint_dir, const Manifest& manifest, const SaveShare& share) {
  std::vector<uint64_t> sizes;
  for (const ManifestEntry& entry : manifest.entries) sizes.push_back(entry.size_bytes);
  const std::vector<int> ranks = spread_by_size(sizes, share.size);
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i] == share.rank) TRY(verify_entry(env, checkpoint_dir, manifest.entries[i]));
  }
  return {};
}

Result<Manifest> verify_checkpoint(Env& env, const Path& checkpoint_dir) {
  Manifest manifest = TRY(read_manifest(env, checkpoint_dir));
  TRY(verify_share(env, checkpoint_dir, manifest, {}));
  return manifest;
}

Result<std::vector<CheckpointRef>> resume_candidates(Env& env, const Path& run_dir) {
  std::vector<CheckpointRef> candidates = TRY(list_checkpoints(env, run_dir));
  if (const Result<std::string> latest = env.read_file(run_dir / kLatestFile, 4096); latest.ok()) {
    const Path named = run_dir / trim(*latest);
    std::stable_partition(candidates.begin(), candidates.end(),
                          [&](const CheckpointRef& ref) { return ref.path == named; });
  }
  return candidates;
}

Result<std::optional<FoundCheckpoint>> first_valid(const Path& run_dir, const std::vector<CheckpointRef>& candidates,
                                                   const VerifyCheckpoint& verify) {
  std::vector<std::string> warnings;
  for (const CheckpointRef& ref : candidates) {
    Result<Manifest> manifest = verify(ref.path);
    const ErrorKind kind = manifest.ok() ? ErrorKind::kData : manifest.error().kind;
    if (kind == ErrorKind::kRankFailure || kind == ErrorKind::kConfig) return manifest.error();
    if (manifest.ok() && manifest->place == ref.place)
      return std::optional<FoundCheckpoint>(FoundCheckpoint{ref, *std::move(manifest), std::move(warnings)});
    warnings.push_back(!manifest.ok() ? "skipped a checkpoint: " + manifest.error().to_string()
                                      : fmt::format("skipped a checkpoint: {}: its manifest is of {}",
                                                    ref.path.string(), checkpoint_name(manifest->place)));
  }
  if (warnings.empty()) return std::optional<FoundCheckpoint>();
  return Error{ErrorKind::kData, "no checkpoint can be loaded. The newest: " + warnings.front(), run_dir.string(),
               "restore one from a copy, or start over with another trainer.default_local_dir"};
}

Result<std::optional<FoundCheckpoint>> find_newest_valid(Env& env, const Path& run_dir) {
  const auto verify = [&](const Path& path) { return verify_checkpoint(env, path); };
  return first_valid(run_dir, TRY(resume_candidates(env, run_dir)), verify);
}

Result<Checkpoint> Checkpoint::open(Env& env, const Path& checkpoint_dir) {
  return open_verified(env, checkpoint_dir, TRY(verify_checkpoint(env, checkpoint_dir)));
}

Result<Checkpoint> Checkpoint::open_verified(Env& env, const Path& checkpoint_dir, Manifest manifest) {
  Checkpoint checkpoint;
  checkpoint.path_ = checkpoint_dir;
  checkpoint.manifest_ = std::move(manifest);
  checkpoint.tensors_ = TRY(SafetensorsFile::open(env, checkpoint_dir / kStateTensorsFile));
  const Path json_path = checkpoint_dir / kStateJsonFile;
  const std::string text = TRY(env.read_file(json_path, limits::kMaxTextFileBytes));
  const auto own = checkpoint.tensors_.tensors();
  std::vector<TensorView> tensors(own.begin(), own.end());
  if (checkpoint.manifest_.find(kStateIndexFile) != nullptr) {
    const std::string index = TRY(env.read_file(checkpoint_dir / kStateIndexFile, limits::kMaxTextFileBytes));
    checkpoint.shards_ = TRY(open_state_shards(env, checkpoint_dir, checkpoint.manifest_, index));
    const std::vector<TensorView>& more = checkpoint.shards_.tensors;
    tensors.insert(tensors.end(), more.begin(), more.end());
  }
  checkpoint.state_ = TRY(parse_state(text, tensors, json_path.string()));
  const auto& sorted = checkpoint.state_.tensors;
  const auto twice = std::ranges::adjacent_find(sorted, {}, &TensorView::name);
  if (twice != sorted.end())
    return Error{ErrorKind::kData, fmt::format("two files of the state hold {}", quote(twice->name)),
                 checkpoint_dir.string(), hints::kDamagedCheckpoint};
  return checkpoint;
}

Result<> Checkpoint::load_into(StatefulRegistry& registry, const std::set<std::string>& dropped) const {
  return registry.load(state_, path_.string(), dropped);
}

Result<Path> Checkpoint::entry(std::string_view path) const {
  if (manifest_.find(path) != nullptr) return path_ / path;
  return Error{ErrorKind::kData, "the checkpoint has no file " + quote(path), path_.string(),
               hints::kDamagedCheckpoint};
}

}  // namespace mortise
