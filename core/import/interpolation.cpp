// Resolves OmegaConf's interpolations in the values of a tree.
#include "import/interpolation.h"

#include <algorithm>

#include "foundation/base/text.h"
#include "import/yaml.h"

namespace mortise {
namespace {

constexpr int kMaxRounds = 16;  // a value may point to a value that points on

std::string parent_of(const std::string& name) {
  const size_t dot = name.rfind('.');
  return dot == std::string::npos ? "" : name.substr(0, dot + 1);
}

std::string text_of(const Json& value) { return value.is_string() ? value.get<std::string>() : dump_json(value); }

// The value of the text between "${" and "}"; none if it is not known.
std::optional<Json> resolve(std::string_view inside, const PeerSetting& at, const std::vector<PeerSetting>& settings) {
  constexpr std::string_view kSelect = "oc.select:";
  std::optional<Json> fallback;
  if (inside.starts_with(kSelect)) {
    inside.remove_prefix(kSelect.size());
    const size_t comma = inside.find(',');
    if (comma != std::string_view::npos) {
      const std::string_view text = trim(inside.substr(comma + 1));
      fallback = text == "[]" ? Json::array() : yaml_scalar(text);
      inside = inside.substr(0, comma);
    }
  }
  std::string name(trim(inside));
  if (name.starts_with('.')) name = parent_of(at.given) + name.substr(1);
  const auto found = std::ranges::find(settings, name, &PeerSetting::given);
  if (found == settings.end()) return fallback;
  if (found->raw.find("${") != std::string::npos) return std::nullopt;  // a later round knows it
  return found->value;
}

// One innermost interpolation of a value. True if something changed.
bool resolve_one(PeerSetting& setting, const std::vector<PeerSetting>& settings) {
  const size_t end = setting.raw.find('}');
  const size_t begin = end == std::string::npos ? end : setting.raw.rfind("${", end);
  if (begin == std::string::npos) return false;
  const std::string_view inside = std::string_view(setting.raw).substr(begin + 2, end - begin - 2);
  const std::optional<Json> value = resolve(inside, setting, settings);
  if (!value) return false;
  if (begin == 0 && end + 1 == setting.raw.size()) {
    setting.value = *value;
    setting.raw = value->is_structured() ? "" : text_of(*value);
  } else {
    setting.raw.replace(begin, end + 1 - begin, text_of(*value));
    setting.value = setting.raw;
  }
  return true;
}

}  // namespace

void resolve_interpolations(std::vector<PeerSetting>& settings) {
  for (int round = 0; round < kMaxRounds; ++round) {
    bool changed = false;
    for (PeerSetting& setting : settings) {
      if (setting.raw.find("${") != std::string::npos) changed |= resolve_one(setting, settings);
    }
    if (!changed) return;
  }
}

}  // namespace mortise
