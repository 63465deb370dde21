#include "foundation/base/secrets.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "parse/url.h"

namespace mortise {
namespace {

struct Secrets {
  std::mutex mutex;
  std::vector<std::pair<std::string, std::string>> name_of;  // value and name, the longest value first
};
Secrets& secrets() {
  static auto* all = new Secrets;  // never destroyed: threads may log while the program ends
  return *all;
}

}  // namespace

void add_secret(std::string_view name, std::string_view value) {
  if (value.size() < kShortestSecret) return;
  Secrets& all = secrets();
  const std::lock_guard lock(all.mutex);
  const std::pair<std::string, std::string> entry{value, name};
  if (std::find(all.name_of.begin(), all.name_of.end(), entry) != all.name_of.end()) return;
  all.name_of.push_back(entry);
  std::stable_sort(all.name_of.begin(), all.name_of.end(),
                   [](const auto& a, const auto& b) { return a.first.size() > b.first.size(); });
}

void add_secret_variable(const std::string& name) {
  if (const char* value = std::getenv(name.c_str()); value != nullptr) add_secret(name, value);
}

std::string redacted(std::string_view text) {
  std::string out(text);
  {
    Secrets& all = secrets();
    const std::lock_guard lock(all.mutex);
    for (const auto& [value, name] : all.name_of) {
      for (size_t at = out.find(value); at != std::string::npos; at = out.find(value, at + name.size() + 1))
        out.replace(at, value.size(), "$" + name);
    }
  }
  return parse::redact_userinfo(out);
}

std::string_view secret_reference(std::string_view text) {
  constexpr std::string_view kPrefix = "env:";
  if (text.substr(0, kPrefix.size()) != kPrefix) return {};
  const std::string_view name = text.substr(kPrefix.size());
  return is_variable_name(name) ? name : std::string_view();
}

bool is_variable_name(std::string_view name) {
  const auto is_letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; };
  return !name.empty() && is_letter(name.front()) &&
         std::all_of(name.begin(), name.end(), [&](char c) { return is_letter(c) || (c >= '0' && c <= '9'); });
}

}  // namespace mortise
