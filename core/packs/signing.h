// Signatures of archives, and files with the signatures of several keys.
#pragma once

#include <string>
#include <string_view>

#include "foundation/base/env.h"
#include "foundation/base/result.h"
#include "packs/minisign.h"
#include "packs/pack_archive.h"

namespace mortise {

// The text of a .minisig. Its comment names the pack and the version (rule P19).
Result<std::string> sign_archive(Env& env, const SigningSecretKey& key, const PackArchive& archive);

// The text of a .minisig with the signatures of both. A key of `added` takes the place of its older signature.
Result<std::string> join_signatures(std::string_view text, std::string_view added, std::string_view where);

}  // namespace mortise
