// The tables of functions, Greek letters, decorations and scale words.
#include "vocabulary.h"

#include <algorithm>
#include <string>

namespace mortise::math {

bool is_function(std::string_view name) {
  return is_one_of(name, {"sin", "cos", "tan", "cot", "sec", "csc", "sinh", "cosh", "tanh", "arcsin", "arccos",
                          "arctan", "ln", "log", "exp"});
}

bool is_of_several(std::string_view name) { return is_one_of(name, {"gcd", "lcm", "max", "min"}); }

bool is_greek(std::string_view name) {
  return is_one_of(name, {"alpha", "beta",   "gamma", "delta", "epsilon", "zeta",  "eta",   "theta",   "iota",
                          "kappa", "lambda", "mu",    "nu",    "xi",      "rho",   "sigma", "tau",     "upsilon",
                          "phi",   "chi",    "psi",   "omega", "Gamma",   "Delta", "Theta", "Lambda",  "Xi",
                          "Sigma", "Phi",    "Psi",   "Omega", "ell",     "hbar",  "angle", "triangle"});
}

bool is_decoration(std::string_view name) {
  return is_one_of(name, {"overline", "vec", "hat", "bar", "tilde", "dot", "overrightarrow", "widehat", "overarc"});
}

long scale_of(std::string_view word) {
  constexpr std::string_view kWords[] = {"dozen", "hundred", "thousand", "million", "billion", "trillion"};
  constexpr long kScales[] = {12, 100, 1000, 1'000'000, 1'000'000'000, 1'000'000'000'000};
  std::string low(word.substr(0, 12));
  std::transform(low.begin(), low.end(), low.begin(), lower);
  if (word.size() > 1 && low.back() == 's') low.pop_back();
  const auto* const found = std::find(std::begin(kWords), std::end(kWords), low);
  return found == std::end(kWords) ? 0 : kScales[found - kWords];
}

std::size_t scale_words_at(std::string_view text, std::size_t i) {
  std::size_t end = i;
  for (std::size_t k = i; k < text.size();) {
    while (k < text.size() && text[k] == ' ') ++k;
    const std::size_t begin = k;
    while (k < text.size() && is_letter(text[k])) ++k;
    if (scale_of(text.substr(begin, k - begin)) == 0) break;
    end = k;
  }
  return end - i;
}

}  // namespace mortise::math
