// Whose an archive is, asked before anything of it runs: by `pack install` and by `plugin check`.
#pragma once

#include <optional>
#include <string>

#include "foundation/base/result.h"
#include "packs/pack_archive.h"
#include "packs/signers.h"
#include "packs/trust.h"

namespace mortise {

struct ArchiveOrigin {
  std::optional<SignedBy> signer;  // nothing: unsigned, or `doubt` says why the signature does not count
  std::string doubt;
};
// Every policy refuses a revoked archive, a revoked key and a forged signature (rules P16, P18, P19). A policy that asks
// for a signature also refuses an archive without one, keys that are not trusted for the pack (P17), and too few of them
// (P25); otherwise such signatures are as good as none. `signature`: the text of the .minisig, "" without one.
Result<ArchiveOrigin> check_origin(const Trust& trust, const TrustPolicy& policy, const PackArchive& archive,
                                   const std::string& signature);

}  // namespace mortise
