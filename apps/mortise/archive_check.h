// `mortise plugin check F.mpack`: the archive's build of this machine is checked like any pack, then its golden tests run.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "foundation/base/env.h"
#include "foundation/base/result.h"
#include "foundation/formats/json.h"
#include "packs/golden.h"
#include "packs/pack_archive.h"

namespace mortise {

// An archive whose build lies in a folder of its own, which the destructor removes.
class UnpackedPack {
 public:
  // Checks the archive and its signature first, and shows on standard error what the pack may do. `trust`: signed or any.
  static Result<std::unique_ptr<UnpackedPack>> open(const std::string& path, const std::string& trust);
  UnpackedPack(const UnpackedPack&) = delete;
  UnpackedPack& operator=(const UnpackedPack&) = delete;
  ~UnpackedPack();

  [[nodiscard]] std::string library() const { return library_.string(); }
  [[nodiscard]] Result<std::vector<GoldenOutcome>> run_tests() const;

 private:
  UnpackedPack() = default;
  PackArchive archive_;
  const PackBuild* build_ = nullptr;  // points into archive_
  Path folder_, library_;
};

[[nodiscard]] Json golden_json(const std::vector<GoldenOutcome>& outcomes);
[[nodiscard]] std::string golden_text(const std::vector<GoldenOutcome>& outcomes);

}  // namespace mortise
