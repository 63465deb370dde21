// The process-wide list of secrets, and the filter that replaces them in texts.
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

// Values and their names, the longest value first.
using Named = std::vector<std::pair<std::string, std::string>>;
struct Secrets {
  std::mutex mutex;
  Named all, settings;
};
Secrets& secrets() {
  static auto* all = new Secrets;  // never destroyed: threads may log while the program ends
  return *all;
}

void add_to(Named& list, std::string_view name, std::string_view value) {
  const std::pair<std::string, std::string> entry{value, name};
  if (value.size() < kShortestSecret || std::find(list.begin(), list.end(), entry) != list.end()) return;
  list.push_back(entry);
  std::stable_sort(list.begin(), list.end(),
                   [](const auto& a, const auto& b) { return a.first.size() > b.first.size(); });
}

std::string replaced(std::string_view text, const Named& list) {
  std::string out(text);
  for (const auto& [value, name] : list) {
    for (size_t at = out.find(value); at != std::string::npos; at = out.find(value, at + name.size() + 1))
      out.replace(at, value.size(), "$" + name);
  }
  return out;
}

}  // namespace

void add_secret(std::string_view name, std::string_view value) {
  const std::lock_guard lock(secrets().mutex);
  add_to(secrets().all, name, value);
}

void add_secret_setting(std::string_view name, std::string_view value) {
  const std::lock_guard lock(secrets().mutex);
  add_to(secrets().all, name, value);
  add_to(secrets().settings, name, value);
}

void add_secret_variable(const std::string& name) {
  if (const char* value = std::getenv(name.c_str()); value != nullptr) add_secret(name, value);
}

std::string redacted(std::string_view text) {
  const std::lock_guard lock(secrets().mutex);
  return parse::redact_userinfo(replaced(text, secrets().all));
}

std::string redacted_settings(std::string_view text) {
  const std::lock_guard lock(secrets().mutex);
  return parse::redact_userinfo(replaced(text, secrets().settings));
}

std::string_view secret_reference(std::string_view text) {
  constexpr std::string_view kMark = "env:";
  if (text.substr(0, kMark.size()) != kMark) return {};
  const std::string_view name = text.substr(kMark.size());
  return is_variable_name(name) ? name : std::string_view();
}

bool is_variable_name(std::string_view name) {
  const auto is_letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; };
  return !name.empty() && is_letter(name.front()) &&
         std::all_of(name.begin(), name.end(), [&](char c) { return is_letter(c) || (c >= '0' && c <= '9'); });
}

}  // namespace mortise
