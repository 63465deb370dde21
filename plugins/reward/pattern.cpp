#include "pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <mortise/cpp/plugin.hpp>

namespace mortise {
namespace {

constexpr std::uint32_t kMatchLimit = 1'000'000;

PCRE2_SPTR units(std::string_view text) { return reinterpret_cast<PCRE2_SPTR>(text.data()); }

}  // namespace

struct Pattern::Code {
  pcre2_code* code = nullptr;
  pcre2_match_context* context = nullptr;
  ~Code() {
    pcre2_match_context_free(context);
    pcre2_code_free(code);
  }
};

Pattern::Pattern(const std::string& pattern) : code_(std::make_unique<Code>()) {
  const std::string whole = "(*LF)" + pattern;
  int error = 0;
  PCRE2_SIZE at = 0;
  code_->code = pcre2_compile(units(whole), whole.size(), PCRE2_UTF | PCRE2_UCP, &error, &at, nullptr);
  if (code_->code == nullptr) {
    PCRE2_UCHAR text[160];
    pcre2_get_error_message(error, text, sizeof text);
    fail(MORTISE_INVALID_ARGUMENT, "pattern '" + pattern + "' at character " + std::to_string(at < 5 ? 0 : at - 5) +
                                       ": " + reinterpret_cast<const char*>(text));
  }
  code_->context = pcre2_match_context_create(nullptr);
  if (code_->context == nullptr) throw std::bad_alloc();
  pcre2_set_match_limit(code_->context, kMatchLimit);
}

Pattern::Pattern(Pattern&&) noexcept = default;
Pattern::~Pattern() = default;

bool Pattern::found_in(std::string_view text) const {
  const std::unique_ptr<pcre2_match_data, void (*)(pcre2_match_data*)> data(
      pcre2_match_data_create_from_pattern(code_->code, nullptr), pcre2_match_data_free);
  if (!data) throw std::bad_alloc();
  return pcre2_match(code_->code, units(text), text.size(), 0, 0, data.get(), code_->context) >= 0;
}

std::vector<std::string> Pattern::all(std::string_view text) const {
  const std::unique_ptr<pcre2_match_data, void (*)(pcre2_match_data*)> data(
      pcre2_match_data_create_from_pattern(code_->code, nullptr), pcre2_match_data_free);
  if (!data) throw std::bad_alloc();
  std::vector<std::string> out;
  std::size_t from = 0;
  while (from <= text.size() &&
         pcre2_match(code_->code, units(text), text.size(), from, 0, data.get(), code_->context) > 1) {
    const PCRE2_SIZE* at = pcre2_get_ovector_pointer(data.get());
    out.emplace_back(text.substr(at[2], at[3] - at[2]));
    from = at[1] > from ? at[1] : from + 1;
  }
  return out;
}

std::string Pattern::replace_all(const std::string& text, const std::string& replacement) const {
  return substitute(text, replacement, 0);
}

std::string lower_case(const std::string& text) {
  static const Pattern all("(?s).+");
  return all.substitute(text, "\\L$0", PCRE2_SUBSTITUTE_EXTENDED);
}

std::string Pattern::substitute(const std::string& text, const std::string& replacement, unsigned options) const {
  std::string out(text.size() * 2 + 64, '\0');
  PCRE2_SIZE size = out.size();
  const auto run = [&] {
    return pcre2_substitute(code_->code, units(text), text.size(), 0,
                            PCRE2_SUBSTITUTE_GLOBAL | PCRE2_SUBSTITUTE_OVERFLOW_LENGTH | options, nullptr,
                            code_->context, units(replacement), replacement.size(),
                            reinterpret_cast<PCRE2_UCHAR*>(out.data()), &size);
  };
  int done = run();
  if (done == PCRE2_ERROR_NOMEMORY) {
    out.resize(size);
    done = run();
  }
  if (done < 0) return text;  // no UTF-8, or too much work
  out.resize(size);
  return out;
}

}  // namespace mortise
