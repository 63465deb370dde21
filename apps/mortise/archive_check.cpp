// `mortise plugin check` on an archive: unpacks its build, checks it, and runs its golden tests.
#include "archive_check.h"

#include <fmt/core.h>

#include <filesystem>
#include <iostream>

#include "engine_parts.h"
#include "foundation/base/log.h"
#include "foundation/base/private_folder.h"
#include "foundation/base/shown_text.h"
#include "foundation/base/this_program.h"
#include "model/tensor/torch_version.h"
#include "pack_command.h"
#include "packs/machine.h"
#include "packs/origin.h"
#include "packs/trust.h"
#include "plugin/pack/tier.h"

namespace mortise {
namespace {

// The author's own archive has no trusted signature yet: --trust any says that this is meant.
Result<> check_archive_origin(const PackArchive& archive, const std::string& trust_text) {
  Env& env = default_env();
  const PackPlaces places = TRY(pack_places());
  const TrustPolicy asked = TRY(parse_trust_policy(trust_text, "--trust"));
  const TrustPolicy machine = TRY(machine_policy(env, places));
  const Trust trust = TRY(read_trust(env, places));
  const std::string signature = TRY(signature_beside(archive.path));
  const ArchiveOrigin origin = TRY(check_origin(trust, tighter(asked, machine), archive, signature));
  if (!origin.doubt.empty()) log_warn(one_line(origin.doubt));
  return {};
}

}  // namespace

Result<std::unique_ptr<UnpackedPack>> UnpackedPack::open(const std::string& path, const std::string& trust) {
  Env& env = default_env();
  std::unique_ptr<UnpackedPack> out(new UnpackedPack);
  out->archive_ = TRY(read_pack_archive(env, path));
  const auto build_here = choose_build(out->archive_.description, this_machine(kTorchVersion), path);
  if (build_here.ok() && (*build_here)->tier == kTorchLocked) TRY(need_libtorch());
  TRY(check_archive_origin(out->archive_, trust));
  if (!build_here.ok()) return build_here.error();
  out->build_ = *build_here;
  for (const std::string& right : rights_of(out->archive_.description)) std::cerr << one_line(right) << "\n";
  out->folder_ = TRY(make_private_folder("mortise_check_"));
  out->library_ = out->folder_ / (out->archive_.description.id + ".so");
  const PackBuild& build = *out->build_;
  for (const ArchiveFile& file : TRY(out->archive_.extract([&](std::string_view name) { return name == build.file; })))
    TRY(write_file(env, out->library_, file.bytes));
  return out;
}

UnpackedPack::~UnpackedPack() {
  if (!folder_.empty()) (void)remove_tree(default_env(), folder_);
}

Result<std::vector<GoldenOutcome>> UnpackedPack::run_tests() const {
  return run_golden_tests(default_env(), archive_, *build_, {.program = this_program()});
}

Json golden_json(const std::vector<GoldenOutcome>& outcomes) {
  Json out = Json::array();
  for (const GoldenOutcome& outcome : outcomes)
    out.push_back(
        {{"test", outcome.test}, {"status", outcome.fault.empty() ? "passed" : "failed"}, {"text", outcome.fault}});
  return out;
}

std::string golden_text(const std::vector<GoldenOutcome>& outcomes) {
  std::string text;
  for (const GoldenOutcome& outcome : outcomes)
    text += fmt::format("golden test {}: {}\n", outcome.test,
                        outcome.fault.empty() ? "passed" : "failed: " + one_line(outcome.fault));
  return text;
}

}  // namespace mortise
