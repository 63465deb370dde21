// See pattern.h.
#define PCRE2_CODE_UNIT_WIDTH 8
#include "parse/pattern.h"

#include <pcre2.h>

#include <algorithm>
#include <ctime>
#include <utility>

#include "parse/pattern_syntax.h"
#include "parse/text.h"

namespace mortise::parse {
namespace {

// A thread keeps a stack that grows to kSmallStackMax. Most matches need less. A larger one lives for one match.
constexpr size_t kSmallStackStart = size_t{32} << 10;
constexpr size_t kSmallStackMax = size_t{1} << 20;
constexpr size_t kLargeStackMax = size_t{256} << 20;
constexpr uint32_t kMaxInterpreterKiB = uint32_t{1} << 20;
constexpr uint32_t kMaxNestedParentheses = 250;

struct FreePcre {
  void operator()(pcre2_code* p) const { pcre2_code_free(p); }
  void operator()(pcre2_compile_context* p) const { pcre2_compile_context_free(p); }
  void operator()(pcre2_match_context* p) const { pcre2_match_context_free(p); }
  void operator()(pcre2_match_data* p) const { pcre2_match_data_free(p); }
  void operator()(pcre2_jit_stack* p) const { pcre2_jit_stack_free(p); }
};
template <class T>
using Owned = std::unique_ptr<T, FreePcre>;

// PCRE2 needs a pointer even for an empty text.
PCRE2_SPTR units(std::string_view text) {
  return reinterpret_cast<PCRE2_SPTR>(text.data() == nullptr ? "" : text.data());
}

std::string message_of(int code) {
  PCRE2_UCHAR buffer[256];
  pcre2_get_error_message(code, buffer, sizeof buffer);
  return reinterpret_cast<const char*>(buffer);
}

PatternFault fault_of(int code, uint32_t match_limit) {
  switch (code) {
    case PCRE2_ERROR_MATCHLIMIT:
      return {PatternFault::Kind::kLimit, "the match takes more than " + std::to_string(match_limit) + " steps", 0};
    case PCRE2_ERROR_HEAPLIMIT:
    case PCRE2_ERROR_DEPTHLIMIT:
    case PCRE2_ERROR_RECURSELOOP:
    case PCRE2_ERROR_JIT_STACKLIMIT:
      return {PatternFault::Kind::kLimit, "the match takes too much memory: " + message_of(code), 0};
    case PCRE2_ERROR_NOMEMORY:
      return {PatternFault::Kind::kMemory, "there is no memory for the match", 0};
    default:
      return {PatternFault::Kind::kInternal, "the match failed: " + message_of(code), 0};
  }
}

std::optional<PatternFault> utf8_fault(std::string_view text) {
  const auto bad = find_invalid_utf8(text);
  if (!bad) return std::nullopt;
  return PatternFault{PatternFault::Kind::kText, "the text is not UTF-8 at byte " + std::to_string(*bad), *bad};
}

uint32_t compile_flags(const PatternOptions& options) {
  uint32_t flags = PCRE2_UTF | PCRE2_NEVER_BACKSLASH_C | PCRE2_USE_OFFSET_LIMIT;
  if (options.ignore_case) flags |= PCRE2_CASELESS;
  if (options.dot_all) flags |= PCRE2_DOTALL;
  if (options.multi_line) flags |= PCRE2_MULTILINE;
  if (options.unicode_classes) flags |= PCRE2_UCP;
  if (options.whole) flags |= PCRE2_ANCHORED | PCRE2_ENDANCHORED;
  return flags;
}

}  // namespace

struct Pattern::Code {
  Owned<pcre2_code> code;
  std::string source;
  uint32_t num_groups = 0;
  uint32_t match_limit = 0;
  double max_seconds = 0;
  bool in_parts = false;  // a search may advance in parts
};

namespace {

// A search in parts starts PCRE2 again in the middle of the text. That is the same unless the pattern is tied to the
// place where the search started, or forbids to continue (verbs such as (*COMMIT)).
bool may_search_in_parts(const pcre2_code* code, std::string_view source) {
  uint32_t options = 0;
  pcre2_pattern_info(code, PCRE2_INFO_ALLOPTIONS, &options);
  return (options & PCRE2_ANCHORED) == 0 && !depends_on_the_start(source);
}

}  // namespace

std::int64_t thread_cpu_ns() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

// The matching state of a thread.
struct MatchScratch {
  Owned<pcre2_match_data> data;
  Owned<pcre2_match_context> context;
  Owned<pcre2_jit_stack> stack;
  uint32_t num_pairs = 0;

  void limit_steps(uint32_t steps) { pcre2_set_match_limit(context.get(), steps); }

  // Makes room for the groups of a pattern. False if memory runs out.
  bool prepare(uint32_t num_groups) {
    if (!context) {
      context.reset(pcre2_match_context_create(nullptr));
      stack.reset(pcre2_jit_stack_create(kSmallStackStart, kSmallStackMax, nullptr));
      if (context) pcre2_set_heap_limit(context.get(), kMaxInterpreterKiB);
    }
    if (!data || num_pairs < num_groups + 1) {
      num_pairs = num_groups + 1;
      data.reset(pcre2_match_data_create(num_pairs, nullptr));
    }
    if (!data || !context) return false;
    if (stack) pcre2_jit_stack_assign(context.get(), nullptr, stack.get());
    return true;
  }

  // Runs `match(context, options)`: with the thread's small stack, else with a large one, else by the interpreter.
  template <class Match>
  int run(const Match& match) {
    int code = match(context.get(), 0U);
    if (code != PCRE2_ERROR_JIT_STACKLIMIT) return code;
    {
      const Owned<pcre2_jit_stack> large(pcre2_jit_stack_create(kSmallStackMax, kLargeStackMax, nullptr));
      if (large) {
        pcre2_jit_stack_assign(context.get(), nullptr, large.get());
        code = match(context.get(), 0U);
        pcre2_jit_stack_assign(context.get(), nullptr, stack.get());
      }
    }
    if (code != PCRE2_ERROR_JIT_STACKLIMIT) return code;
    code = match(context.get(), PCRE2_NO_JIT);
    wants_new_data = true;  // it keeps the interpreter's memory
    return code;
  }
  bool wants_new_data = false;
};

// The scratch of this thread while no search uses it: a search inside another one makes its own.
struct ThreadScratch {
  std::unique_ptr<MatchScratch> idle;
  static ThreadScratch& get() {
    static thread_local ThreadScratch scratch;
    return scratch;
  }
  static std::unique_ptr<MatchScratch> take() {
    auto taken = std::move(get().idle);
    return taken ? std::move(taken) : std::make_unique<MatchScratch>();
  }
  static void give_back(std::unique_ptr<MatchScratch> scratch) {
    if (scratch->wants_new_data) return;
    get().idle = std::move(scratch);
  }
};

Outcome<Pattern, PatternFault> Pattern::compile(std::string_view pattern, const PatternOptions& options) {
  if (pattern.size() > options.max_pattern_bytes) {
    return PatternFault{PatternFault::Kind::kPattern,
                        "it has " + std::to_string(pattern.size()) + " bytes, at most " +
                            std::to_string(options.max_pattern_bytes) + " are allowed",
                        0};
  }
  if (const auto bad = find_invalid_utf8(pattern))
    return PatternFault{PatternFault::Kind::kPattern, "it is not UTF-8 at byte " + std::to_string(*bad), *bad};
  const Owned<pcre2_compile_context> context(pcre2_compile_context_create(nullptr));
  if (!context) return PatternFault{PatternFault::Kind::kMemory, "there is no memory for the pattern", 0};
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  pcre2_set_parens_nest_limit(context.get(), kMaxNestedParentheses);
  int error = 0;
  PCRE2_SIZE at = 0;
  auto code = std::make_shared<Code>();
  code->code.reset(pcre2_compile(units(pattern), pattern.size(), compile_flags(options), &error, &at, context.get()));
  if (!code->code)
    return PatternFault{PatternFault::Kind::kPattern, "at character " + std::to_string(at) + ": " + message_of(error),
                        at};
  code->source = pattern;
  code->match_limit = options.match_limit;
  code->max_seconds = options.max_seconds;
  code->in_parts = may_search_in_parts(code->code.get(), pattern);
  pcre2_pattern_info(code->code.get(), PCRE2_INFO_CAPTURECOUNT, &code->num_groups);
  pcre2_jit_compile(code->code.get(), PCRE2_JIT_COMPLETE);  // without JIT the matches are the same, but slower
  return Pattern(std::move(code));
}

std::size_t Pattern::num_groups() const { return code_->num_groups; }
const std::string& Pattern::source() const { return code_->source; }

Outcome<bool, PatternFault> Pattern::matches(std::string_view text) const {
  PatternSearch search(*this, text);
  const bool found = search.find(0);
  if (search.fault()) return *search.fault();
  return found;
}

Outcome<std::string, PatternFault> Pattern::replace_all(std::string_view text, std::string_view replacement) const {
  std::string out;
  size_t done = 0;
  PatternSearch search(*this, text);
  while (search.next()) {
    out += text.substr(done, search.group(0).begin - done);
    for (size_t i = 0; i < replacement.size(); ++i) {
      const bool is_group = replacement[i] == '$' && i + 1 < replacement.size() && replacement[i + 1] >= '0' &&
                            static_cast<size_t>(replacement[i + 1] - '0') <= num_groups();
      if (is_group) {
        out += search.group(static_cast<size_t>(replacement[++i] - '0')).in(text);
      } else {
        out += replacement[i];
        if (replacement.substr(i, 2) == "$$") ++i;
      }
    }
    done = search.group(0).end;
  }
  if (search.fault()) return *search.fault();
  return out.append(text.substr(done));
}

std::string pattern_unicode_version() {
  char version[64] = {};
  pcre2_config(PCRE2_CONFIG_UNICODE_VERSION, version);
  return version;
}

Outcome<std::string, PatternFault> lower_case(std::string_view text) {
  constexpr std::string_view kAll = "(?s).+", kLower = "\\L$0";
  if (auto fault = utf8_fault(text)) return *std::move(fault);
  int error = 0;
  PCRE2_SIZE at = 0;
  const Owned<pcre2_code> code(pcre2_compile(units(kAll), kAll.size(), PCRE2_UTF | PCRE2_UCP, &error, &at, nullptr));
  if (!code) return fault_of(error, 0);
  std::string out(text.size() + text.size() / 4 + 64, '\0');
  PCRE2_SIZE size = 0;
  const auto substitute = [&] {
    size = out.size();
    return pcre2_substitute(code.get(), units(text), text.size(), 0,
                            PCRE2_SUBSTITUTE_OVERFLOW_LENGTH | PCRE2_SUBSTITUTE_EXTENDED | PCRE2_NO_UTF_CHECK, nullptr,
                            nullptr, units(kLower), kLower.size(), reinterpret_cast<PCRE2_UCHAR*>(out.data()), &size);
  };
  int done = substitute();
  if (done == PCRE2_ERROR_NOMEMORY && size > out.size()) {
    out.resize(size);
    done = substitute();
  }
  if (done < 0) return fault_of(done, 0);
  out.resize(size);
  return out;
}

PatternSearch::PatternSearch(const Pattern& pattern, std::string_view text, Utf8 utf8)
    : code_(*pattern.code_), text_(text), scratch_(ThreadScratch::take()) {
  if (utf8 == Utf8::kCheck) fault_ = utf8_fault(text);
  if (!scratch_->prepare(code_.num_groups)) fault_ = fault_of(PCRE2_ERROR_NOMEMORY, 0);
}

PatternSearch::~PatternSearch() { ThreadScratch::give_back(std::move(scratch_)); }

int PatternSearch::match(std::size_t from, std::size_t last_start) {
  return scratch_->run([&](pcre2_match_context* context, uint32_t more) {
    pcre2_set_offset_limit(context, last_start);
    return pcre2_match(code_.code.get(), units(text_), text_.size(), from, PCRE2_NO_UTF_CHECK | more,
                       scratch_->data.get(), context);
  });
}

// How much one call of PCRE2 may do: it tries the first place of the rest and `part` more as starts, each for `steps`.
// Both begin small, so that the clock is asked before a slow pattern has taken long. Most searches end in the first
// call and never ask it.
struct PatternSearch::Reach {
  static constexpr size_t kMostFirst = 64, kLeastFirst = 4, kFirstCharacters = 16'000'000;
  static constexpr uint32_t kFirstSteps = 500, kMostStepsPerCall = 2'000'000;
  static constexpr std::int64_t kShortNs = 2'000'000;

  const Pattern::Code& code;
  size_t part;
  uint32_t steps;
  std::int64_t before = 0;  // the clock at the end of the last call

  Reach(const Pattern::Code& pattern, size_t rest)
      : code(pattern),
        part(std::clamp(kFirstCharacters / (rest + 1), kLeastFirst, kMostFirst)),
        steps(std::min(kFirstSteps, pattern.match_limit)) {}

  // After a call without a match: the next one tries more starts if this one was short, else fewer.
  void adapt(std::int64_t now) {
    if (before != 0) part = now - before < kShortNs ? std::max(part * 4, size_t{1}) : part / 4;
    part = std::min<size_t>(part, kMostStepsPerCall / steps);
    before = now;
  }

  // After a call in which a start needed more steps: more for one start, as far as the time allows. False: it allows
  // none.
  bool give_steps(std::int64_t now, std::int64_t deadline) {
    double factor = 8;
    const bool was_one_start = !code.in_parts || part == 0;
    if (was_one_start && before != 0)
      factor = std::min(factor, static_cast<double>(deadline - now) / static_cast<double>(now - before + 1));
    const auto more = static_cast<uint32_t>(std::min<double>(code.match_limit, factor * steps));
    if (more <= steps) return false;
    steps = more;
    part = 0;
    before = now;
    return true;
  }
};

// Whether the CPU time for this text is over by the thread's clock. The first call starts it.
bool PatternSearch::is_late(std::int64_t now) {
  if (deadline_ns_ == 0) {
    const double mib = static_cast<double>(text_.size()) / static_cast<double>(1 << 20);
    deadline_ns_ = now + static_cast<std::int64_t>(code_.max_seconds * (1 + mib) * 1e9);
  }
  if (now > deadline_ns_) fail_late();
  return fault_.has_value();
}

bool PatternSearch::fail_late() {
  fault_ = PatternFault{PatternFault::Kind::kLimit, "the search takes too much time", 0};
  return false;
}

bool PatternSearch::find(std::size_t from) {
  if (fault_ || from > text_.size()) return false;
  constexpr uint32_t kFindsPerCheck = 256;
  if (++num_finds_ % kFindsPerCheck == 0 && is_late(thread_cpu_ns())) return false;
  int code = PCRE2_ERROR_NOMATCH;
  for (Reach reach(code_, text_.size() - from);;) {
    const bool is_last = !code_.in_parts || text_.size() - from <= reach.part;
    scratch_->limit_steps(reach.steps);
    code = match(from, is_last ? PCRE2_UNSET : from + reach.part);
    const bool needs_steps = code == PCRE2_ERROR_MATCHLIMIT && reach.steps < code_.match_limit;
    if (!needs_steps && (is_last || code != PCRE2_ERROR_NOMATCH)) break;
    const std::int64_t now = thread_cpu_ns();
    if (is_late(now)) return false;
    if (needs_steps) {
      if (!reach.give_steps(now, deadline_ns_)) return fail_late();
      continue;
    }
    from += reach.part + 1;
    while (from < text_.size() && (static_cast<unsigned char>(text_[from]) & 0xC0) == 0x80) ++from;
    reach.adapt(now);
  }
  if (code >= 0) return true;
  if (code != PCRE2_ERROR_NOMATCH) fault_ = fault_of(code, code_.match_limit);
  return false;
}

bool PatternSearch::next() {
  if (!find(next_from_)) return false;
  const PatternSpan match = group(0);
  next_from_ = match.end;
  if (match.end <= match.begin)
    next_from_ += match.end < text_.size() ? utf8_sequence_length(text_.substr(match.end)) : 1;
  return true;
}

PatternSpan PatternSearch::group(std::size_t index) const {
  const PCRE2_SIZE* pairs = pcre2_get_ovector_pointer(scratch_->data.get());
  static_assert(PatternSpan::kUnset == PCRE2_UNSET);
  return {pairs[2 * index], pairs[2 * index + 1]};
}

}  // namespace mortise::parse
