// What the Search-R1 rewards share: where the right answers are, and what a match is worth.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "../../shared/columns.h"
#include "verl_scores.h"

namespace mortise::verl {

// verl's ground_truth is {"target": one or several}; either may also be there without the object.
inline std::vector<std::string> search_r1_truths(const nlohmann::json& value) {
  const nlohmann::json& target = value.is_object() && value.contains("target") ? value["target"] : value;
  std::vector<std::string> out;
  if (target.is_array()) {
    for (const auto& one : target) out.push_back(as_text(one));
  } else {
    out.push_back(as_text(target));
  }
  return out;
}

inline double search_r1_score(const std::optional<SearchR1Match>& match, double hit, double format_score) {
  if (!match) return 0;
  if (!match->right) return format_score;
  return match->many_tags ? hit / 4 : hit;
}

}  // namespace mortise::verl
