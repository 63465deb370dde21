// JSON Schema, draft 2020-12, without what needs a network or a dynamic scope.
//
// Assertions: type enum const, minimum maximum exclusiveMinimum exclusiveMaximum multipleOf, minLength maxLength
// pattern, prefixItems items contains minContains maxContains minItems maxItems uniqueItems, properties
// patternProperties additionalProperties propertyNames required minProperties maxProperties dependentRequired
// dependentSchemas, allOf anyOf oneOf not if then else, $ref to "#" or "#/..." (with ~0, ~1 and %XX), $defs, true and
// false. Annotations (title, format ...) assert nothing, as the draft says. Any other keyword is refused: one that is
// misspelt would let everything pass.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "../shared/pattern.h"

namespace mortise {

class Schema {
 public:
  // Throws Failure (INVALID_ARGUMENT) that names the place.
  explicit Schema(nlohmann::json schema);

  // Empty when the value is valid, else the place and the keyword of the first fault. Work and depth are bounded; what
  // exceeds them is a fault.
  [[nodiscard]] std::string fault(const nlohmann::json& value) const;

 private:
  void check(const nlohmann::json& schema, const std::string& at);
  void check_keyword(const std::string& key, const nlohmann::json& value, const std::string& at);
  class Run;
  nlohmann::json root_;
  int depth_ = 0;                            // depth of references and what they hold, while the constructor runs
  std::set<const nlohmann::json*> checked_;  // while the constructor runs: references may be circles
  std::map<std::string, Pattern> patterns_;
};

}  // namespace mortise
