// `mortise pack build`: an archive made from a folder, or from shared objects alone. Same inputs, same bytes.
//
// A folder may hold pack.toml (the author's, description.h), README.md, LICENSE, sbom.json, golden tests in tests/
// (*.toml with the .jsonl and .safetensors files that they name), and builds: those that its pack.toml lists, else every
// .so of the folder itself, of lib/ and of build/lib/mortise/packs/. Several shared objects are builds of one pack for
// several platforms; where some are named, a folder brings only its other files. No code of a build runs: what it holds
// is read from its note.
#pragma once

#include <string>
#include <vector>

#include "foundation/base/env.h"
#include "foundation/base/result.h"
#include "packs/pack_archive.h"

namespace mortise {

Result<PackArchive> build_pack(Env& env, const std::vector<Path>& inputs);

// "acme.match-1.0.0.mpack"
[[nodiscard]] std::string archive_file_name(const PackDescription& pack);

}  // namespace mortise
