// Parses and compares versions and ranges.
#include "plugin/pack/semver.h"

#include <algorithm>

#include "foundation/base/text.h"

namespace mortise {
namespace {

struct Partial {
  SemVer version;
  int num_parts = 0;  // parts of major.minor.patch that were given
};

std::optional<int64_t> parse_part(std::string_view text) {
  if (text.empty() || (text.size() > 1 && text[0] == '0')) return std::nullopt;
  if (!std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; })) return std::nullopt;
  return parse_i64(text);
}

bool is_numeric(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

bool is_identifier(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-';
  });
}

std::optional<Partial> parse_partial(std::string_view text) {
  Partial out;
  text = text.substr(0, text.find('+'));
  const size_t dash = text.find('-');
  if (dash != std::string_view::npos) {
    for (const std::string_view word : split(text.substr(dash + 1), '.')) {
      if (!is_identifier(word)) return std::nullopt;
      out.version.prerelease.emplace_back(word);
    }
    text = text.substr(0, dash);
  }
  const auto parts = split(text, '.');
  if (parts.size() > 3) return std::nullopt;
  int64_t* const slots[] = {&out.version.major, &out.version.minor, &out.version.patch};
  for (const std::string_view part : parts) {
    const auto value = parse_part(part);
    if (!value) return std::nullopt;
    *slots[out.num_parts++] = *value;
  }
  if (dash != std::string_view::npos && out.num_parts != 3) return std::nullopt;
  return out;
}

std::strong_ordering compare_identifiers(const std::string& a, const std::string& b) {
  const bool a_number = is_numeric(a), b_number = is_numeric(b);
  if (a_number != b_number) return a_number ? std::strong_ordering::less : std::strong_ordering::greater;
  if (!a_number) return a.compare(b) <=> 0;
  if (a.size() != b.size()) return a.size() <=> b.size();  // no leading zeros to speak of: longer is larger
  return a.compare(b) <=> 0;
}

// The first version that a caret, tilde or bare comparator leaves out.
SemVer next_after(const Partial& p, char op) {
  const SemVer& v = p.version;
  if (p.num_parts <= 1 || (op == '^' && v.major > 0)) return {v.major + 1, 0, 0, {}};
  if (p.num_parts == 2 || op == '~' || (op == '^' && v.minor > 0)) return {v.major, v.minor + 1, 0, {}};
  return {v.major, v.minor, v.patch + 1, {}};
}

}  // namespace

std::optional<SemVer> SemVer::parse(std::string_view text) {
  auto partial = parse_partial(text);
  if (!partial || partial->num_parts != 3) return std::nullopt;
  return std::move(partial->version);
}

bool SemVer::same_triple(const SemVer& other) const {
  return major == other.major && minor == other.minor && patch == other.patch;
}

std::strong_ordering compare(const SemVer& a, const SemVer& b) {
  if (const auto order = a.major <=> b.major; order != 0) return order;
  if (const auto order = a.minor <=> b.minor; order != 0) return order;
  if (const auto order = a.patch <=> b.patch; order != 0) return order;
  if (a.prerelease.empty() != b.prerelease.empty()) {
    return a.prerelease.empty() ? std::strong_ordering::greater : std::strong_ordering::less;
  }
  for (size_t i = 0; i < std::min(a.prerelease.size(), b.prerelease.size()); ++i) {
    if (const auto order = compare_identifiers(a.prerelease[i], b.prerelease[i]); order != 0) return order;
  }
  return a.prerelease.size() <=> b.prerelease.size();
}

Result<VersionRange::Bounds> VersionRange::parse_comparator(std::string_view text) {
  std::string_view op = text.substr(0, text.find_first_of("0123456789"));
  const auto partial = parse_partial(text.substr(op.size()));
  const Error bad{ErrorKind::kConfig, "bad version range " + quote(text), "",
                  "write it as ^1.2, ~1.2.3, =1.0.0 or >=1.0 <2.0"};
  if (!partial) return bad;
  const SemVer& version = partial->version;
  Bounds out;
  if (op == "^" || op == "~" || op.empty() || op == "=") {
    // "=1.2.3" and "1.2.3" mean only that version; with parts left out they mean all versions that begin so.
    out.lower = version;
    out.upper = next_after(*partial, op.empty() || op == "=" ? '=' : op[0]);
    if ((op.empty() || op == "=") && partial->num_parts == 3) {
      out.upper = version;
      out.upper_closed = true;
    }
  } else if (op == ">=" || op == ">") {
    out.lower = version;
    out.lower_open = op == ">";
  } else if (op == "<" || op == "<=") {
    out.upper = version;
    out.upper_closed = op == "<=";
  } else {
    return bad;
  }
  return out;
}

Result<VersionRange> VersionRange::parse(std::string_view text) {
  VersionRange range;
  std::string spaced(text);
  std::replace(spaced.begin(), spaced.end(), ',', ' ');
  for (const std::string_view word : split(spaced, ' ')) {
    if (!word.empty()) range.all_.push_back(TRY(parse_comparator(word)));
  }
  if (range.all_.empty()) {
    return Error{ErrorKind::kConfig, "empty version range", "", "write it as ^1.2, ~1.2.3, =1.0.0 or >=1.0 <2.0"};
  }
  return range;
}

bool VersionRange::matches(const SemVer& version) const {
  bool prerelease_named = version.prerelease.empty();
  for (const Bounds& bounds : all_) {
    if (bounds.lower) {
      const auto order = compare(version, *bounds.lower);
      if (order < 0 || (bounds.lower_open && order == 0)) return false;
    }
    if (bounds.upper) {
      const auto order = compare(version, *bounds.upper);
      if (order > 0 || (!bounds.upper_closed && order == 0)) return false;
    }
    for (const auto* bound : {&bounds.lower, &bounds.upper}) {
      if (*bound && !(*bound)->prerelease.empty() && (*bound)->same_triple(version)) prerelease_named = true;
    }
  }
  return prerelease_named;
}

}  // namespace mortise
