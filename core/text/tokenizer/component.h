// What the readers of tokenizer.json share: typed access to a component's settings with errors that name it.
// Thread rule: plain values.
#pragma once

#include <string>
#include <string_view>

#include "foundation/formats/json.h"
#include "text/tokenizer/regex.h"

namespace mortise {

// "normalizer Strip in /m/tokenizer.json"
struct ComponentPlace {
  std::string_view role;  // "normalizer", "pre-tokenizer", ...
  std::string_view file;

  [[nodiscard]] Error fail(const std::string& what) const {
    return Error{ErrorKind::kData, std::string(role) + ": " + what, std::string(file), ""};
  }
  [[nodiscard]] Error unsupported(std::string_view type) const {
    return Error{ErrorKind::kData, "the " + std::string(role) + " '" + std::string(type) + "' is not supported",
                 std::string(file), "save the tokenizer without it, or use another model"};
  }
};

Result<std::string> component_type(const Json& spec, const ComponentPlace& place);
Result<std::string> component_string(const Json& spec, std::string_view key, const ComponentPlace& place);
// The value, or `fallback` where the key is absent or null.
Result<bool> component_bool(const Json& spec, std::string_view key, bool fallback, const ComponentPlace& place);
Result<int64_t> component_int(const Json& spec, std::string_view key, int64_t fallback, const ComponentPlace& place);
// {"pattern": {"String": ".."} or {"Regex": ".."}}
Result<Regex> component_pattern(const Json& spec, const ComponentPlace& place);
// Fails where a chain (a component, or Sequences of them under `list_key`) has more stages than kMaxStages.
Result<> check_num_stages(const Json& spec, std::string_view list_key, const ComponentPlace& place);
// A member that has to be a list.
Result<const Json*> component_list(const Json& spec, std::string_view key, const ComponentPlace& place);

}  // namespace mortise
