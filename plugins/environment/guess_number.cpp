// guess_number: a text game. The model names a number; the game answers "higher" or "lower" until it is right.
//
// The number is a function of the episode's seed, which the rows of a prompt share: their rewards compare like with
// like. A turn's guess is its last run of digits. Rewards: 1 for the right number, 0 otherwise; a turn without a number
// ends the game. An example of an environment (docs/turns.md), and a game to try a run with.
#include <cctype>
#include <map>
#include <string>

#include <mortise/cpp/mortise.hpp>

#include <mortise/cpp/environment.hpp>

namespace {

struct GuessNumber : mortise::Environment {
  static constexpr const char* summary = "text game: guess a number from answers \"higher\" and \"lower\"";
  static constexpr const char* doc = "reset says nothing; step says higher or lower; reward 1 for the right number";

  std::int64_t largest = param("largest", 9, "the number is between 0 and this").range(1, 1e9);
  std::int64_t max_turns = param("max_turns", 4, "guesses of an episode").range(1, 1000);
  std::string higher = param("higher", "higher", "the answer to a guess that is too small");
  std::string lower = param("lower", "lower", "the answer to a guess that is too large");

  mortise::Observation reset(const mortise::EpisodeStart& start, mortise::Call) override {
    number_[start.episode] = std::int64_t(start.seed % std::uint64_t(largest + 1));
    return {};
  }

  mortise::Observation step(const mortise::EpisodeAction& action, mortise::Call) override {
    const std::string digits = last_digits(action.text);
    const std::int64_t number = number_.at(action.episode);
    mortise::Observation out;
    out.reward = !digits.empty() && std::stoll(digits) == number ? 1.0 : 0.0;
    out.done = digits.empty() || out.reward > 0 || action.turn + 1 >= max_turns;
    if (!out.done) out.messages = say(std::stoll(digits) < number ? higher : lower);
    return out;
  }

  void close(std::int64_t episode, mortise::Call) override { number_.erase(episode); }

 private:
  static std::string say(const std::string& text) {
    std::string json = "[{\"role\": \"user\", \"content\": \"";
    for (const char c : text) {
      if (c == '"' || c == '\\') json += '\\';
      if (static_cast<unsigned char>(c) >= 0x20) json += c;
    }
    return json + "\"}]";
  }
  // At most nine of them.
  static std::string last_digits(std::string_view text) {
    std::size_t end = text.size();
    while (end > 0 && std::isdigit(static_cast<unsigned char>(text[end - 1])) == 0) --end;
    std::size_t begin = end;
    while (begin > 0 && end - begin < 9 && std::isdigit(static_cast<unsigned char>(text[begin - 1])) != 0) --begin;
    return std::string(text.substr(begin, end - begin));
  }

  std::map<std::int64_t, std::int64_t> number_;  // by episode
};

}  // namespace

MORTISE_ENVIRONMENT("guess_number", GuessNumber)
