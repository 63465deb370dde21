// Semantic versions and ranges of them, for "pack.id/plugin@^1.2". Source: semver.org 2.0.0.
//
// A range is comparators that all must hold, separated by spaces or commas: ^1.2 (same leftmost non-zero part), ~1.2.3
// (same minor), =1.0.0, >, >=, <, <=, and a bare 1.2 for "1.2.anything". Missing parts are 0. A pre-release matches
// only a range that names a pre-release of the same 1.2.3. Threading: pure functions.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "foundation/base/result.h"

namespace mortise {

struct SemVer {
  int64_t major = 0, minor = 0, patch = 0;
  std::vector<std::string> prerelease;  // build metadata is dropped: it has no order

  static std::optional<SemVer> parse(std::string_view text);
  [[nodiscard]] bool same_triple(const SemVer& other) const;
};
[[nodiscard]] std::strong_ordering compare(const SemVer& a, const SemVer& b);

class VersionRange {
 public:
  static Result<VersionRange> parse(std::string_view text);  // an Error of kind kConfig
  [[nodiscard]] bool matches(const SemVer& version) const;

 private:
  // lower <= v (< if lower_open), v < upper (<= if upper_closed); absent: no bound
  struct Bounds {
    std::optional<SemVer> lower, upper;
    bool lower_open = false, upper_closed = false;
  };
  static Result<Bounds> parse_comparator(std::string_view text);
  std::vector<Bounds> all_;
};

}  // namespace mortise
