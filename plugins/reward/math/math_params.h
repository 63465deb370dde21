// The parameters of the mathematical rewards.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include <mortise/cpp/mortise.hpp>

#include "../../shared/columns.h"
#include "judge.h"
#include "marked.h"

namespace mortise {

struct MathReward : Reward {
  static constexpr std::uint32_t flags = MORTISE_FLAG_CONCURRENT;

  std::string column =
      param("column", "answer", "data column with the right answer, or a dotted path into a JSON column; a list: any")
          .column();
  std::string extraction =
      param("extract", "any",
            "where to look for the answer: 'boxed' only in the last \\boxed{}; 'marked' then also in a formula in $ "
            "or \\( after 'answer'; 'any' then also after '####', after 'answer is', in the last formula, in the last "
            "number")
          .choices({"any", "marked", "boxed"});
  std::string after =
      param("after", "", "read only what follows the last occurrence of this text; a completion without it is wrong");
  std::string tag =
      param("tag", "",
            "read only the text in the first <tag></tag> of the completion and of the right answer, as with "
            "'any'; without such a tag, `extract` applies to the whole text");
  std::string on_unreadable_gold =
      param(
          "on_unreadable_gold", "text",
          "if the right answer is not mathematics: 'text' compares it as text, 'skip' gives no reward, 'miss' counts as "
          "wrong")
          .choices({"text", "skip", "miss"});
  std::string gold = param("gold", "any",
                           "which right answers count as mathematics: 'any' that can be read; 'marked' ones that "
                           "math-verify finds too, in $, \\(, \\[ or \\boxed{}, or with a number that begins a word")
                         .choices({"any", "marked"});
  std::int64_t places = param("places", 6, "decimals to which a decimal number and a number are rounded").range(0, 100);

  // Nothing where the row has no answer to compare with.
  std::optional<bool> is_right(const Row& row) const {
    const auto want = find_value(row, column);
    if (!want) return {};
    std::string_view text = row.completion();
    if (!after.empty()) {
      const std::size_t at = text.rfind(after);
      if (at == std::string_view::npos) return false;
      text.remove_prefix(at + after.size());
    }
    math::Golds golds;
    bool readable = false;
    const auto add = [&](const std::string& whole) {
      const std::string_view part = in_tag(whole).value_or(whole);
      const std::string formula = gold == "marked" ? math::formula_in_prose(part) : "";
      golds.emplace_back(formula.empty() ? math::extract_gold(part) : formula);
      readable = readable || is_readable(golds.back(), part);
    };
    for (const auto& one : want->is_array() ? *want : nlohmann::json::array({*want})) add(as_text(one));
    if (!readable && on_unreadable_gold != "text") {
      row.note("math/unreadable_gold", 1);
      return on_unreadable_gold == "skip" ? std::nullopt : std::optional<bool>(false);
    }
    const auto tagged = in_tag(text);
    const math::Answer answer = math::answer_of(tagged.value_or(text), tagged ? math::Extraction::kAny : where());
    if (answer.text.empty()) row.note("math/no_answer", 1);
    row.note("pred", answer.text);
    return math::is_right(golds, answer, math::Rules{int(places)});
  }

 private:
  math::Extraction where() const {
    if (extraction == "any") return math::Extraction::kAny;
    return extraction == "boxed" ? math::Extraction::kBoxed : math::Extraction::kMarked;
  }

  // Only words: a text.
  bool is_readable(const math::Answer& answer, std::string_view whole) const {
    if (gold == "marked") return math::is_marked(whole);
    return answer.node != nullptr && answer.node->kind != math::Kind::kWord;
  }

  std::optional<std::string_view> in_tag(std::string_view text) const {
    if (tag.empty()) return {};
    const std::string open = "<" + tag + ">", close = "</" + tag + ">";
    const std::size_t begin = text.find(open);
    const std::size_t end = begin == std::string_view::npos ? begin : text.find(close, begin + open.size());
    if (end == std::string_view::npos) return {};
    return text.substr(begin + open.size(), end - begin - open.size());
  }
};

}  // namespace mortise
