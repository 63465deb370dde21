// See regex.h.
#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/tokenizer/regex.h"

#include <pcre2.h>

#include "foundation/base/text.h"
#include "text/unicode/utf8.h"

namespace mortise {
namespace {

constexpr size_t kJitStackStartBytes = 32 * 1024;
constexpr size_t kJitStackMaxBytes = 16 * 1024 * 1024;
constexpr size_t kMaxPatternBytes = 64 * 1024;  // PCRE2's own limit is about that of a compiled pattern

// What one thread needs for matching, made at its first match.
class MatchScratch {
 public:
  MatchScratch()
      : data_(pcre2_match_data_create(1, nullptr)),
        context_(pcre2_match_context_create(nullptr)),
        stack_(pcre2_jit_stack_create(kJitStackStartBytes, kJitStackMaxBytes, nullptr)) {
    if (context_ != nullptr && stack_ != nullptr) pcre2_jit_stack_assign(context_, nullptr, stack_);
  }
  MatchScratch(const MatchScratch&) = delete;
  MatchScratch& operator=(const MatchScratch&) = delete;
  ~MatchScratch() {
    pcre2_match_data_free(data_);
    pcre2_match_context_free(context_);
    pcre2_jit_stack_free(stack_);
  }
  [[nodiscard]] pcre2_match_data* data() const { return data_; }
  [[nodiscard]] pcre2_match_context* context() const { return context_; }

 private:
  pcre2_match_data* data_;
  pcre2_match_context* context_;
  pcre2_jit_stack* stack_;
};

std::string pcre_message(int code) {
  PCRE2_UCHAR buffer[256];
  pcre2_get_error_message(code, buffer, sizeof buffer);
  return reinterpret_cast<const char*>(buffer);
}

// PCRE2's own category tables are used only where they are known: Unicode 14.
bool pcre_has_unicode14() {
  char version[64] = {};
  pcre2_config(PCRE2_CONFIG_UNICODE_VERSION, version);
  return std::string_view(version) == "14.0.0";
}

std::string escape_literal(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (std::string_view("\\^$.|?*+()[]{}-#&~ \t\n\r").find(c) != std::string_view::npos) {
      char buffer[8];
      std::snprintf(buffer, sizeof buffer, "\\x%02X", static_cast<unsigned>(static_cast<unsigned char>(c)));
      out += buffer;
    } else {
      out.push_back(c);
    }
  }
  return out;
}

}  // namespace

struct Regex::Code {
  pcre2_code* code = nullptr;
  std::string pattern;
  explicit Code(pcre2_code* compiled, std::string source) : code(compiled), pattern(std::move(source)) {}
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;
  ~Code() { pcre2_code_free(code); }
};

Result<Regex> Regex::compile(std::string_view pattern, std::string_view where) {
  if (const auto bad = find_invalid_utf8(pattern)) {
    return Error{ErrorKind::kData, "a regular expression is not UTF-8 at its byte " + std::to_string(*bad),
                 std::string(where), ""};
  }
  if (pattern.size() > kMaxPatternBytes) {
    return Error{ErrorKind::kData,
                 "a regular expression or literal has " + std::to_string(pattern.size()) + " bytes, at most " +
                     std::to_string(kMaxPatternBytes) + " are allowed",
                 std::string(where), ""};
  }
  const std::string translated = TRY(translate_regex(pattern, where, !pcre_has_unicode14()));
  using Context = std::unique_ptr<pcre2_compile_context, decltype(&pcre2_compile_context_free)>;
  const Context context(pcre2_compile_context_create(nullptr), &pcre2_compile_context_free);
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int code = 0;
  PCRE2_SIZE offset = 0;
  constexpr uint32_t kOptions = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C | PCRE2_NO_UTF_CHECK;
  pcre2_code* compiled = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(), kOptions,
                                       &code, &offset, context.get());
  if (compiled == nullptr) {
    return Error{ErrorKind::kData,
                 "the regular expression " + quote(pattern) + " cannot be used: " + pcre_message(code),
                 std::string(where), ""};
  }
  auto owned = std::make_shared<const Code>(compiled, std::string(pattern));
  pcre2_jit_compile(compiled, PCRE2_JIT_COMPLETE);  // without JIT the same matches come out, slower
  return Regex(std::move(owned));
}

Result<Regex> Regex::literal(std::string_view text, std::string_view where) {
  return compile(escape_literal(text), where);
}

Result<> Regex::find_all(std::string_view text, std::vector<TextSpan>& out) const {
  static thread_local const MatchScratch scratch;
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data() == nullptr ? "" : text.data());
  const PCRE2_SIZE* span = pcre2_get_ovector_pointer(scratch.data());
  size_t from = 0;
  size_t last_end = std::string_view::npos;
  while (from <= text.size()) {
    const int count =
        pcre2_match(code_->code, subject, text.size(), from, PCRE2_NO_UTF_CHECK, scratch.data(), scratch.context());
    if (count == PCRE2_ERROR_NOMATCH) break;
    if (count < 0) {
      return Error{ErrorKind::kData,
                   "matching the regular expression " + quote(code_->pattern) + " failed: " + pcre_message(count), "",
                   ""};
    }
    if (span[0] >= span[1] && span[1] == last_end) {
      from += from < text.size() ? unicode::utf8_length(text[from]) : 1;
      continue;
    }
    out.push_back({span[0], span[1]});
    from = last_end = span[1];
  }
  return {};
}

}  // namespace mortise
