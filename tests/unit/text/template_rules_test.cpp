// The template language: random templates against jinja2, errors with their place, limits, sandbox, spans.
#include "text/template/chat_template.h"

#include <cstdlib>

#include "text_test_support.h"

namespace mortise {
namespace {

using test::error_of;
using testing::HasSubstr;

Result<Rendered> render(std::string_view source, const Json& kwargs = Json::object()) {
  const auto chat = ChatTemplate::parse(source, "t.jinja");
  if (!chat.ok()) return chat.error();
  RenderInput input;
  input.messages = Json::parse(R"([{"role":"user","content":"hi"}])");
  input.kwargs = kwargs;
  return chat->render(input);
}

std::string text_of(std::string_view source, const Json& kwargs = Json::object()) {
  const auto rendered = render(source, kwargs);
  return rendered.ok() ? rendered->text : "error: " + rendered.error().to_string();
}

TEST(Template, RandomTemplatesAsJinja2) {
  const auto rows = testing_text::read_rows(testing_text::golden("random_templates.jsonl"));
  for (size_t i = 1; i < rows.size(); ++i) {
    const Json& row = rows[i];
    SCOPED_TRACE(row["template"].get<std::string>());
    const auto chat = ChatTemplate::parse(row["template"].get<std::string>(), "t");
    RenderInput input;
    input.messages = rows[0]["messages"];
    input.kwargs = rows[0]["kwargs"];
    input.add_generation_prompt = true;
    const Result<Rendered> rendered = chat.ok() ? chat->render(input) : Result<Rendered>(chat.error());
    if (row.contains("error")) {
      EXPECT_FALSE(rendered.ok()) << rendered->text;
      continue;
    }
    if (!rendered.ok()) {
      ADD_FAILURE() << rendered.error().to_string();
      continue;
    }
    EXPECT_EQ(rendered->text, row["text"].get<std::string>());
    std::vector<std::vector<size_t>> spans;
    for (const TextRange& span : rendered->assistant_spans) spans.push_back({span.begin, span.end});
    EXPECT_EQ(spans, row["spans"].get<std::vector<std::vector<size_t>>>());
  }
}

TEST(Template, ErrorsNameTheTemplateWithLineAndColumn) {
  EXPECT_EQ(error_of(render("a\nb\n{{ missing.x }}")), "t.jinja:3:11: 'missing' is undefined");
  EXPECT_EQ(error_of(render("\n{% for x in messages %}\n{{ x.role + none }}{% endfor %}")),
            "t.jinja:3:11: can only concatenate str (not \"NoneType\") to str");
  EXPECT_EQ(error_of(render("{{ messages[0].nope.x }}")), "t.jinja:1:20: 'dict object' has no attribute 'nope'");
  EXPECT_EQ(error_of(render("{{ raise_exception('no ' ~ 3) }}")), "t.jinja:1:4: no 3");
  EXPECT_THAT(error_of(render("é{{ 'é' + none }}")), HasSubstr("t.jinja:1:9: "));  // in characters
  EXPECT_THAT(error_of(render("{% if messages %}{{ no.x }}{% endif %}")), HasSubstr("t.jinja:1:23: "));
  EXPECT_THAT(error_of(render("{% for x in y %}")), HasSubstr("endfor"));
  EXPECT_THAT(error_of(render("{% frob %}")), HasSubstr("Encountered unknown tag 'frob'"));
  EXPECT_THAT(error_of(render("{% include 'x' %}")), HasSubstr("'include' is not supported"));
  EXPECT_THAT(error_of(render("{{ x|nope }}")), HasSubstr("No filter named 'nope'"));
  EXPECT_THAT(error_of(render("{{ x is nope }}")), HasSubstr("No test named 'nope'"));
  EXPECT_THAT(error_of(render("{{ 1 +")), HasSubstr("t.jinja:1:7: "));
  EXPECT_THAT(error_of(render("{# open")), HasSubstr("comment"));
  EXPECT_THAT(error_of(render("{% raw %}x")), HasSubstr("raw"));
  EXPECT_THAT(error_of(render("{{ 'abc }}")), HasSubstr("unexpected char"));
  EXPECT_THAT(error_of(render("{{ (1] }}")), HasSubstr("unexpected ']'"));
  EXPECT_THAT(error_of(ChatTemplate::parse("\xFF", "t.jinja")), HasSubstr("UTF-8"));
  EXPECT_EQ(text_of("{% if false %}{{ x|nope }}{% endif %}ok{{ 1 if true else x|nope }}"), "ok1");
}

TEST(Template, TheSandboxHolds) {
  EXPECT_THAT(text_of("{{ [1].append(2) }}"), HasSubstr("access to attribute 'append' of 'list' object is unsafe"));
  EXPECT_THAT(text_of("{{ {'a': 1}.pop('a') }}"), HasSubstr("is unsafe"));
  EXPECT_THAT(text_of("{{ ''.__class__.mro() }}"), HasSubstr("is unsafe"));
  EXPECT_THAT(text_of("{{ '{0.__class__.x}'.format(1) }}"), HasSubstr("is unsafe"));
  EXPECT_THAT(text_of("{{ range(100001) }}"), HasSubstr("Range too big"));
  EXPECT_THAT(text_of("{% set ns = namespace() %}{% set ns._x = 1 %}"), HasSubstr("underscore"));
}

TEST(Template, EverythingIsBounded) {
  EXPECT_THAT(text_of("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"), HasSubstr("recursion"));
  if (!test::kAddressSanitizer) {  // millions of steps take minutes there
    EXPECT_THAT(text_of("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"),
                HasSubstr("too much work"));
    EXPECT_THAT(
        text_of("{% for a in range(9999) %}{% for b in range(9999) %}{% set x = a + b %}{% endfor %}{% endfor %}"),
        HasSubstr("steps"));
  }
  EXPECT_THAT(text_of("{{ 'a' * 1000000000000 }}"), HasSubstr("too much data"));
  EXPECT_THAT(text_of("{{ [0] * 1000000000000 }}"), HasSubstr("too much data"));
  EXPECT_THAT(
      text_of("{% set ns = namespace(s='ab') %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}"),
      HasSubstr("too much data"));
  EXPECT_THAT(text_of("{{ '%1000000000d' % 1 }}"), HasSubstr("too big"));
  EXPECT_THAT(text_of("{{ 2 ** 127 }}"), HasSubstr("too large"));
  EXPECT_THAT(text_of("{% set ns = namespace(l=[]) %}{% for i in range(5000) %}{% set ns.l = [ns.l] %}{% endfor %}"),
              HasSubstr("nested too deeply"));
  EXPECT_THAT(text_of("{{ " + std::string(5000, '(') + "1" + std::string(5000, ')') + " }}"),
              HasSubstr("nested too deeply"));
  EXPECT_THAT(text_of("{{ " + std::string(5000, '-') + "1 }}"), HasSubstr("nested too deeply"));
  std::string sum = "{{ 1";
  for (int i = 0; i < 5000; ++i) sum += "+1";
  EXPECT_THAT(text_of(sum + " }}"), HasSubstr("nested too deeply"));
  std::string blocks;
  for (int i = 0; i < 500; ++i) blocks += "{% if 1 %}";
  EXPECT_THAT(text_of(blocks), HasSubstr("nested too deeply"));
}

// What grows without many steps: lists that hold one another, wide fields, searches, walks over large texts.
TEST(Template, WorkIsBounded) {
  const auto bounded = [](const std::string& source) { EXPECT_THAT(text_of(source), HasSubstr("too much")) << source; };
  bounded("{{ ('%(a)999999d' * 100000) % {'a': 1} }}");
  bounded("{{ ('{0:999999}' * 100000).format(1) }}");
  bounded("{{ 'x'.center(4611686018427387904, '\xF0\x9F\x98\x80') }}");  // times four bytes: 2 to the 64
  bounded("{{ [1] | batch(384307168202282326, 0) | list }}");
  bounded("{{ [1] | slice(384307168202282326) | list }}");
  bounded("{{ ([[1]] * 100000) | tojson(indent='x' * 10000000) }}");
  bounded("{{ range(99999) | list | tojson(separators=('x' * 10000000, 'y')) }}");
  bounded("{{ ('x' * 100000).join(['a'] * 100000) }}");
  bounded("{{ (['x' * 100000] * 100000) | join('a') }}");
  bounded("{% set s = 'a' * 4000000 %}{{ s.rfind('b' ~ 'a' * 2000000) }}");
  // Linear, though a naive search would take a day.
  EXPECT_EQ(text_of("{% set s = 'a' * 4000000 %}{{ s.find('a' * 2000000 ~ 'b') }} {{ s.count('a' * 2000000 ~ 'b') }}"),
            "-1 0");
  EXPECT_EQ(text_of("{% set s = 'a' * 1000000 %}{{ s.strip('bcdefghij' * 100000 ~ 'a') }}"), "");
}

TEST(Template, WorkOfSharedListsAndSearchesIsBounded) {
  if (test::kAddressSanitizer) GTEST_SKIP() << "a budget of work takes a minute under AddressSanitizer";
  const std::string lists =
      "{% set ns = namespace(a=[1], b=[1], t=(1,)) %}{% for i in range(60) %}{% set ns.a = [ns.a, ns.a] %}"
      "{% set ns.b = [ns.b, ns.b] %}{% set ns.t = (ns.t, ns.t) %}{% endfor %}";
  const std::string loop = "{% for i in range(3000) %}{% for j in range(3000) %}";
  const std::string ends = "{% endfor %}{% endfor %}";
  const std::string text = "{% set s = 'ab' * 1000000 %}";
  std::vector<std::string> sources = {
      lists + "{{ ns.a }}", lists + "{{ ns.a == ns.b }}", text + loop + "{% if 'x' in s %}{% endif %}" + ends,
      text + "{% for i in range(9999) %}{% for c in s %}{% break %}{% endfor %}{% endfor %}"};
  if (std::getenv("MORTISE_LONG") != nullptr) {
    for (const char* use : {"{{ ns.a | tojson }}", "{{ ns.a < ns.b }}", "{{ ns.a ~ 'x' }}", "{{ '%s' % [ns.a] }}",
                            "{{ [ns.b] | unique | list }}", "{{ ns.a in [ns.b] }}", "{{ [ns.a].index(ns.b) }}",
                            "{{ [ns.a, ns.b] | sort }}", "{{ '{}'.format(ns.a) }}"})
      sources.push_back(lists + use);
    for (const char* use : {"{% set n = s | length %}", "{% set n = s.strip() %}", "{% set n = s[1:2] %}",
                            "{% set n = s[-1] %}", "{% if -1 in l %}{% endif %}"})
      sources.push_back("{% set l = range(9000) | list %}" + text + loop + use + ends);
    sources.push_back(lists + "{{ {ns.t: 1} }}");
  }
  for (const std::string& source : sources) EXPECT_THAT(text_of(source), HasSubstr("error")) << source;
  EXPECT_THAT(text_of("{% set ns = namespace() %}{% set ns.a = ns %}{% set ns.b = ns %}{{ ns }}"), HasSubstr("error"));
}

TEST(Template, RecursionAsDeepAsDataNeeds) {
  // The limit is one of stack bytes, and a frame under ASan takes several times as many.
  const int kDepth = test::kAddressSanitizer ? 20 : 100;
  Json nested = "leaf";
  for (int i = 0; i < kDepth; ++i) nested = Json::array({nested});
  EXPECT_EQ(text_of("{% macro m(x) %}{% if x is string %}{{ x }}{% else %}{% for y in x %}{{ m(y) }}{% endfor %}{% "
                    "endif %}{% endmacro %}{{ m(v) }}",
                    {{"v", nested}}),
            "leaf");
}

TEST(Template, ElseOfALoopRunsWhereNoTurnCameToItsEnd) {
  EXPECT_EQ(text_of("{% for i in [] %}x{% else %}e{% endfor %}"), "e");
  EXPECT_EQ(text_of("{% for i in [1, 2] %}{{ i }}{% else %}e{% endfor %}"), "12");
  EXPECT_EQ(text_of("{% for i in [1, 2] %}{{ i }}{% break %}{% else %}e{% endfor %}"), "1e");
  EXPECT_EQ(text_of("{% for i in [1, 2] %}{{ i }}{% if i == 2 %}{% break %}{% endif %}{% else %}e{% endfor %}"), "12");
}

TEST(Template, ANamespaceMayHoldItself) {
  EXPECT_EQ(text_of("{% set ns = namespace(x=1) %}{% set ns.me = ns %}{{ ns.me.me.x }}"), "1");
  EXPECT_EQ(text_of("{% for i in [1, 2] %}{{ loop.changed(loop) }}{% endfor %}"), "TrueFalse");
}

TEST(Template, GenerationSpansCountCodePoints) {
  const auto rendered = render("é{% generation %}😀a{% endgeneration %}-{% generation %}{% endgeneration %}");
  ASSERT_OK(rendered);
  ASSERT_EQ(rendered->assistant_spans.size(), 2U);
  EXPECT_EQ(rendered->assistant_spans[0].begin, 1U);
  EXPECT_EQ(rendered->assistant_spans[0].end, 3U);
  EXPECT_EQ(rendered->assistant_spans[1].begin, 4U);
  EXPECT_EQ(rendered->assistant_spans[1].end, 4U);
  EXPECT_TRUE(ChatTemplate::parse("{% generation %}{% endgeneration %}", "t")->has_generation_blocks());
  EXPECT_FALSE(ChatTemplate::parse("x", "t")->has_generation_blocks());
}

TEST(Template, StrftimeNowShowsTheGivenTime) {
  const auto chat = ChatTemplate::parse("{{ strftime_now('%Y') }}", "t");
  RenderInput input;
  input.now_s = 1'000'000'000;
  EXPECT_EQ(chat->render(input)->text, "2001");
}

TEST(Template, PrintsAsPython) {
  EXPECT_EQ(text_of("{{ [1.0, 1e16, 1e-5, 0.1, true, none, 'a\\'b', 'é\\u200b'] }}"),
            R"([1.0, 1e+16, 1e-05, 0.1, True, None, "a'b", 'é\u200b'])");
  EXPECT_EQ(text_of("{{ v | tojson }}", {{"v", Json::parse(R"({"b":1.0,"a":[1e20,"<&>é"]})")}}),
            R"({"b": 1.0, "a": [1e+20, "<&>é"]})");
  EXPECT_EQ(text_of("{{ 'ΑΣ ΣΑΣ'.lower() }} {{ 'ß'.upper() }} {{ 'they\\'re' | title }}"), "ας σας SS They're");
}

}  // namespace
}  // namespace mortise
