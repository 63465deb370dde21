// See verify_on_ranks.h.
#include "train/resume/verify_on_ranks.h"

#include <string>
#include <vector>

#include "foundation/base/hints.h"
#include "foundation/base/limits.h"
#include "foundation/base/text.h"
#include "train/loop/decision.h"

namespace mortise {

namespace {

constexpr std::string_view kVerifyStage = "verifying the checkpoint";

// Others hash most of the files that this rank will load. So its folder must be the one that rank 0 has seen: a copy on
// another disk may be of another run.
Result<> check_same_disk(Env& env, const Path& checkpoint_dir, const std::string& manifest) {
  const Path path = checkpoint_dir / kManifestFile;
  if (!env.exists(path)) {
    return Error{ErrorKind::kConfig, "it does not see the checkpoint that rank 0 has chosen", checkpoint_dir.string(),
                 hints::kSharedDisk};
  }
  if (TRY(env.read_file(path, limits::kMaxManifestBytes)) == manifest) return {};
  return Error{ErrorKind::kConfig, "its manifest of this checkpoint is not the one that rank 0 sees", path.string(),
               hints::kSharedDisk};
}

}  // namespace

Result<Manifest> verify_on_ranks(Env& env, Communicator& ranks, const Path& checkpoint_dir) {
  const auto read = [&]() -> Result<std::string> { return manifest_text(TRY(read_manifest(env, checkpoint_dir))); };
  const std::string text = TRY(on_main_rank(ranks, kVerifyStage, read));
  Manifest manifest = TRY(parse_manifest(text, (checkpoint_dir / kManifestFile).string()));
  const auto verify = [&]() -> Result<std::string> {
    TRY(check_same_disk(env, checkpoint_dir, text));
    TRY(verify_share(env, checkpoint_dir, manifest, {ranks.rank(), ranks.size()}));
    return std::string();
  };
  TRY(on_every_rank(ranks, kVerifyStage, verify));
  return manifest;
}

Result<std::optional<FoundCheckpoint>> find_newest_on_ranks(Env& env, Communicator& ranks, const Path& run_dir) {
  const auto list = [&]() -> Result<std::string> {
    std::vector<std::string> names;
    for (const CheckpointRef& ref : TRY(resume_candidates(env, run_dir))) names.push_back(ref.path.filename().string());
    return join(names, "\n");
  };
  const std::string names = TRY(on_main_rank(ranks, "choosing the checkpoint", list));
  std::vector<CheckpointRef> candidates;
  for (const std::string_view name : split(names, '\n')) {
    if (auto ref = checkpoint_ref(run_dir, std::string(name))) candidates.push_back(*std::move(ref));
  }
  const auto verify = [&](const Path& path) { return verify_on_ranks(env, ranks, path); };
  return first_valid(run_dir, candidates, verify);
}

}  // namespace mortise
