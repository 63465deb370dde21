// The parameters of the rewards that judge mathematics.
#pragma once

#include <optional>
#include <string>

#include <mortise/cpp/mortise.hpp>

#include "../shared/columns.h"
#include "math/judge.h"

namespace mortise {

struct MathReward : Reward {
  static constexpr std::uint32_t flags = MORTISE_FLAG_CONCURRENT;

  std::string column =
      param("column", "answer", "data column with the right answer, or a dotted path into a JSON column; a list: any");
  std::string extraction =
      param("extract", "any",
            "where the answer is looked for: 'boxed' in the last \\boxed{} alone; 'any' else behind '####', behind "
            "'answer is', in the last formula, in the last number")
          .choices({"any", "boxed"});
  std::string after = param("after", "", "only what stands behind the last of this text is read; without it: wrong");
  std::int64_t places = param("places", 6, "decimals to which a decimal number and a number are rounded").range(0, 100);

  // Nothing where the row has no answer to compare with.
  std::optional<bool> is_right(const Row& row) const {
    const auto want = find_value(row, column);
    if (!want) return {};
    math::Golds golds;
    const auto add = [&](const nlohmann::json& one) { golds.emplace_back(math::extract_gold(as_text(one))); };
    if (want->is_array()) {
      for (const auto& one : *want) add(one);
    } else {
      add(*want);
    }
    std::string_view text = row.completion();
    if (!after.empty()) {
      const std::size_t at = text.rfind(after);
      if (at == std::string_view::npos) return false;
      text.remove_prefix(at + after.size());
    }
    const auto where = extraction == "boxed" ? math::Extraction::kBoxed : math::Extraction::kAny;
    const math::Answer answer = math::answer_of(text, where);
    if (answer.text.empty()) row.note("math/no_answer", 1);
    return math::is_right(golds, answer, math::Rules{int(places)});
  }
};

}  // namespace mortise
