// format: is the completion laid out as asked? 1 or 0.
//
//   think_answer  ms-swift's `format`: <think>...</think>, white space, <answer>...</answer>, and nothing after it
//   react         ms-swift's `react_format`: <think>...</think>, white space, "Action:", later "Action Input:"
//   think         TRL's think_format_reward: <think> at the start and nowhere else, a later </think>, then anything
// think_format is `format` with layout = "think", by TRL's name. Linear in the text, no regular expressions.
#include <string_view>

#include <mortise/cpp/mortise.hpp>

namespace {

constexpr std::string_view kThink = "<think>", kThought = "</think>";

bool starts_with(std::string_view text, std::string_view head) { return text.substr(0, head.size()) == head; }

// What Python's \s matches in ASCII.
std::string_view behind_space(std::string_view text) {
  const std::size_t at = text.find_first_not_of(" \t\n\r\f\v\x1c\x1d\x1e\x1f");
  return at == std::string_view::npos ? std::string_view() : text.substr(at);
}

// <think>...</think>, white space, then `next`. Returns the text after it, at the first </think> where that fits.
std::string_view behind_thought(std::string_view text, std::string_view next) {
  if (!starts_with(text, kThink)) return {};
  for (std::size_t at = text.find(kThought); at != std::string_view::npos; at = text.find(kThought, at + 1)) {
    const std::string_view rest = behind_space(text.substr(at + kThought.size()));
    if (starts_with(rest, next)) return rest.substr(next.size());
  }
  return {};
}

bool is_think_answer(std::string_view text) {
  constexpr std::string_view kEnd = "</answer>";
  const std::string_view rest = behind_thought(text, "<answer>");
  return rest.size() >= kEnd.size() && rest.substr(rest.size() - kEnd.size()) == kEnd;
}

bool is_react(std::string_view text) {
  return behind_thought(text, "Action:").find("Action Input:") != std::string_view::npos;
}

bool is_think(std::string_view text) {
  return starts_with(text, kThink) && text.find(kThink, kThink.size()) == std::string_view::npos &&
         text.find(kThought, kThink.size()) != std::string_view::npos;
}

struct Format : mortise::Reward {
  static constexpr const char* summary = "layout of the completion: think_answer (ms-swift), react, think (TRL)";
  static constexpr std::uint32_t flags = MORTISE_FLAG_CONCURRENT;

  explicit Format(const char* usual = "think_answer")
      : layout(std::string(param("layout", usual, "the required layout").choices({"think_answer", "react", "think"}))) {
  }

  std::string layout;
  double hit = param("hit", 1.0, "score of a completion in the layout");
  double miss = param("miss", 0.0, "score of any other");

  double score(const mortise::Row& row) const {
    const std::string_view text = row.completion();
    const bool good = layout == "react" ? is_react(text) : layout == "think" ? is_think(text) : is_think_answer(text);
    return good ? hit : miss;
  }
};

struct ThinkFormat : Format {
  static constexpr const char* summary = "TRL's think_format_reward: one <think> at the start, a later </think>";
  ThinkFormat() : Format("think") {}
};

}  // namespace

MORTISE_REWARD("format", Format)
MORTISE_REWARD("think_format", ThinkFormat)
