# selftest.sh NAME ROOT: tests whether the lint NAME finds its faults. It builds a small good tree in a temporary
# folder, which the lint must accept, and then adds one fault after another, each of which the lint must name.
set -euo pipefail
name=$1 root=$2
here=$(cd "$(dirname "$0")" && pwd)
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
num_wrong=0

write() {  # write PATH: standard input becomes that file
  mkdir -p "$tree/$(dirname "$1")"
  cat >"$tree/$1"
}
run() { bash "$here/$name.sh" "$tree" 2>&1; }
accepts() {
  local out
  if ! out=$(run); then
    printf 'must accept %s, but said:\n%s\n' "$1" "$out"
    num_wrong=$((num_wrong + 1))
  fi
}
rejects() {  # rejects TEXT PATH...: the lint fails and says TEXT; then the paths are removed again
  local out text=$1
  shift
  if out=$(run) || ! grep -qF -- "$text" <<<"$out"; then
    printf 'must say "%s", but said:\n%s\n' "$text" "$out"
    num_wrong=$((num_wrong + 1))
  fi
  (cd "$tree" && rm -rf "$@")
}
function_of() {  # function_of N: a function of N lines from brace to brace
  echo "int f(int x) {"
  for ((i = 0; i < $1 - 2; i++)); do echo '  x += "{{("[0];  // {'; done
  echo "}"
}

case $name in
  type_names)
    printf 'struct One {\n  struct Inner {};\n};\nclass Two : One {};\nstruct Two;\n' | write core/a/a.h
    printf 'struct Three {\n  struct Inner {};\n};\n' | write core/b/b.h
    accepts "types of different names, nested ones and declarations of the same"
    printf 'struct Two {};\n' | write core/b/c.h
    rejects "Two is defined in core/a/a.h core/b/c.h" core/b/c.h
    printf 'enum class Three : int { kA };\n' | write core/a/e.h
    rejects "Three is defined in core/a/e.h core/b/b.h" core/a/e.h
    ;;
  plugin_names)
    printf 'MORTISE_TOKEN_LOSS("zigzag", Zigzag)\nMORTISE_REWARD("length", Length)\n' | write plugins/a.cpp
    printf 'MORTISE_DESCRIPTOR(inner)\n' | write plugins/b.cpp
    printf '// zigzag has no say\nint length = 0;  // "length"\nconst char* a = "the length of it", *b = "http://x/zigzags";\n' | write core/a/a.cpp
    printf '# why\ncore/b/* zigzag an example\n' | write tests/lint/plugin_names_allowed.txt
    printf 'if (name == "zigzag") f();\n' | write core/b/b.cpp
    accepts "comments, ordinary words, other words, and exceptions"
    printf 'int b;\nif (name == "length") f();\n' | write core/a/b.cpp
    rejects "core/a/b.cpp:2: names the plugin 'length'" core/a/b.cpp
    printf 'error("take zigzag out");\n' | write core/a/b.cpp
    rejects "core/a/b.cpp:1: names the plugin 'zigzag'" core/a/b.cpp
    printf 'find("rollout_backend", "inner");\n' | write core/a/b.cpp
    rejects "core/a/b.cpp:1: names the plugin 'inner'" core/a/b.cpp
    printf 'core/b/* zigzag an example\ncore/c/* zigzag an example\n' | write tests/lint/plugin_names_allowed.txt
    rejects "'core/c/* zigzag' is not needed" nothing
    printf 'core/b/* zigzag\n' | write tests/lint/plugin_names_allowed.txt
    rejects "'core/b/* zigzag' has no reason" nothing
    ;;
  includes)
    printf '#pragma once\n#include <vector>\n// a std::map\nstd::vector<int> a();\nconst char* b = "std::string";\n' | write core/a.h
    printf '#pragma once\n#include <map>\n#include <string>\nstd::pair<int, std::string_view> a();\n' | write core/b.h
    accepts "what is included, by itself or by what must define it; comments and literals"
    printf '#pragma once\n#include <vector>\n\nstd::vector<std::string> a();\n' | write core/c.h
    rejects "core/c.h:4: std::string needs #include <string>" core/c.h
    printf '#pragma once\nvoid f(const at::Tensor& a);\n' | write core/c.h
    rejects "core/c.h:2: at::Tensor needs #include <(ATen|c10|torch)/" core/c.h
    printf '#pragma once\n#include <string>\nnlohmann::ordered_json f();\n' | write core/c.h
    rejects "core/c.h:3: nlohmann::ordered_json needs #include <nlohmann/json" core/c.h
    printf 'int f();\n' | write core/c.h
    rejects "core/c.h: no #pragma once" core/c.h
    ;;
  rooms)
    printf '| 0 | `foundation` | all | no |\n' | write docs/architecture.md
    echo 'int a;' | write core/foundation/a.cpp
    accepts "a table that agrees with the folders"
    echo 'int b;' | write core/extra/b.cpp
    rejects "core/extra: docs/architecture.md has no row for it" core/extra
    printf '| 0 | `foundation` | all | no |\n| 1 | `gone` | nothing | yes |\n' | write docs/architecture.md
    rejects "the room 'gone' is not in core/" docs/architecture.md
    ;;
  columns)
    printf 'using Novelty = Column<"novelty", float, Level::kToken>;\nusing All = std::tuple<Novelty>;\n' |
      write core/foundation/batch/columns.h
    for i in 1 2 3 4 5 6; do echo 'auto a = table.get<column::Novelty>();' | write core/learn/a$i.cpp; done
    echo 'std::vector<float> novelty_of(std::span<const float> novelty, int a);' | write core/learn/a.h
    accepts "a column that six files name, and a parameter of that name"
    echo 'auto a = table.get<column::Novelty>();' | write core/train/b.cpp
    rejects "novelty: 7 files of core/ name it, at most 6 may" core/train/b.cpp
    printf 'struct Input {\n  std::span<const float> novelty{};  // [N]\n};\n' | write core/learn/b.h
    rejects "core/learn/b.h:2:" core/learn/b.h
    printf 'class A {\n  std::vector<float> novelty;\n};\n' | write core/experience/b.h
    rejects "a column of the step's table" core/experience/b.h
    for member in 'std::vector<float> novelty = {};' 'std::vector<double> novelty;' 'std::span<float> novelty;' \
      'std::vector<float> a, novelty;' 'at::Tensor novelty;' 'std::optional<std::vector<uint8_t>> novelty{};' 'std::span<const float> novelty, b;'; do
      printf 'struct Input {\n  int a;\n  %s  // [N]\n};\n' "$member" | write core/conformance/b.cpp
      rejects "core/conformance/b.cpp:3: a column of the step's table" core/conformance/b.cpp
    done
    printf 'struct Input {\n  std::vector<float> novelty_of(int a);\n  int f() {\n    std::vector<float> novelty = g();\n  }\n};\nstd::vector<float> novelty;\n' | write apps/mortise/b.cpp
    accepts "functions and locals"
    printf 'The column `novelty`.\n\n| stage | puts |\n|---|---|\n| a | `novelties` |\n' | write docs/architecture.md
    rejects "docs/architecture.md: no row of a table names the column novelty" docs
    printf 'using Novelty = Column<"novelty_a", float, Level::kToken>;\nusing All = std::tuple<Novelty>;\n' | write core/foundation/batch/columns.h
    printf '// "novelty_a"\nf(in.tokens("novelty_a"));\n' | write apps/mortise/b.cpp
    rejects "apps/mortise/b.cpp:2:f(in.tokens(\"novelty_a\"));: write column::TAG::name" apps/mortise/b.cpp
    for i in 1 2 3 4 5 6; do echo 'a<column::Novelty>();' | write core/conformance/a$i.cpp; done
    rejects "novelty_a: 6 files of core/conformance and apps/mortise name it, at most 5 may" core/conformance
    echo '// moved' | write core/foundation/batch/columns.h
    rejects "no column is found in it" core/foundation/batch/columns.h
    ;;
  choices)
    printf 'constexpr auto choice_names(Way) {\n  return std::array<std::string_view, 2>{"fast", "plain"};\n}\n' | write core/config/keys/a.h
    printf '// way == "fast"\nif (way == Way::kFast || name == "other" || f("fast")) g();\n' | write core/train/a.cpp
    printf 'if (text == "fast") g();\n' | write core/import/a.cpp
    accepts "enums, other texts, comments, and rooms that read texts"
    printf 'int a;\nif (way != "plain") g();\n' | write core/learn/b.h
    rejects "core/learn/b.h:2: compares a text with a choice of a key" core/learn/b.h
    printf 'if ("fast" == way) g();\n' | write core/conformance/b.cpp
    rejects "core/conformance/b.cpp:1:" core/conformance/b.cpp
    printf '// none\n' | write core/config/keys/a.h
    rejects "core/config/keys: no choices are found in it" core/config/keys
    ;;
  kinds)
    printf '    {.id = A,\n     .name = "one",\n     .name = "two_b",\n     .name = "three",\n     .name = "four",\n' | write core/plugin/host/kinds/kinds.h
    printf 'find("one"); find("two_b"); find("three");\n// "four" is no use\nint four = MORTISE_KIND_FOUR_MORE;\n' | write core/a/a.cpp
    printf 'f("one", "two_b", "three", "four");\n' | write tests/a.cpp
    accepts "the table, three kinds, comments, other words, and tests"
    printf 'find("one");\nfind("two_b");\nfind("three");\nis(MORTISE_KIND_FOUR);\n' | write apps/a.cpp
    rejects "apps/a.cpp: names 4 kinds of plugins" apps/a.cpp
    printf '// nothing\n' | write core/plugin/host/kinds/kinds.h
    rejects "core/plugin/host/kinds/kinds.h: no kind is found in it" nothing
    ;;
  glued_text)
    printf 'log("a " + b);\n// "a " + b + " c"\nlog(fmt::format("a {} c", b));\nf("a" + b, "c" "d");\n' | write core/a/a.cpp
    printf 'log("a " + b + " c");\n' | write core/parse/a.cpp
    accepts "two pieces, comments, fmt, and core/parse"
    printf 'int a;\nlog("a " + std::to_string(b) + " c");\n' | write core/a/b.cpp
    rejects "core/a/b.cpp:2: a text is glued" core/a/b.cpp
    printf 'log("a " +\n    b + " c");\n' | write core/a/b.cpp
    rejects "core/a/b.cpp:1: a text is glued" core/a/b.cpp
    printf 'return a + ": " + b;\n' | write core/a/b.cpp
    rejects "core/a/b.cpp:1: a text is glued" core/a/b.cpp
    printf 'return std::string(a(1, 2)) + " of " + f(b);\n' | write apps/mortise/b.cpp
    rejects "apps/mortise/b.cpp:1: a text is glued" apps/mortise/b.cpp
    ;;
  stages)
    printf 'Result<> load(RunParts& parts);\n' | write core/train/run/run_parts.cpp
    printf 'Result<> save(const RunSettings& run);\nRunParts& parts_;\nRunParts& parts = *out.parts;\n' | write core/train/loop/a.cpp
    printf 'Result<> close(const OpenRun& run);\n' | write core/train/loop/run_loop.h
    printf 'OpenRun run = TRY(open());\nRunParts& parts_ = *open;\nOpenRun& open_;\n' | write core/train/loop/sft.cpp
    accepts "the wiring, members, and stages that take groups"
    printf 'Result<> save(const RunParts& parts, bool resumes);\n' | write core/train/loop/a.h
    rejects "core/train/loop/a.h:1:" core/train/loop/a.h
    printf 'void f(int a,\n       RunParts* parts) {}\n' | write core/train/resume/a.cpp
    rejects "core/train/resume/a.cpp:2:" core/train/resume/a.cpp
    printf 'void f(\n    const std::unique_ptr<RunParts>& parts);\n' | write core/train/resume/a.h
    rejects "core/train/resume/a.h:2:" core/train/resume/a.h
    printf 'Result<> f(RunParts& parts\n);\n' | write core/train/loop/b.h
    rejects "core/train/loop/b.h:1:" core/train/loop/b.h
    printf 'Result<> f(int a, const OpenRun& open, int b);\n' | write core/train/report/a.h
    rejects "core/train/report/a.h:1:" core/train/report/a.h
    ;;
  directions)
    echo '#include "foundation/base/result.h"' | write core/text/a.cpp
    echo '#include <ATen/ops/mm.h>' | write core/model/a.cpp
    echo '#include "mortise/cpp/mortise.hpp"' | write plugins/policy_loss/gspo/gspo.cpp
    echo '#include "../abi.h"' | write sdk/include/mortise/kinds/a.h
    echo '#include "../shared/clip.h"' | write plugins/policy_loss/clip.cpp
    echo '#include "parse/json.h"' | write core/foundation/a.cpp
    echo '#include "parse/json.h"' | write plugins/reward/a.cpp
    echo '#include "sandbox/call_filter.h"' | write plugins/reward/c.cpp
    accepts "includes in the right direction"
    echo '#include "../policy_loss/clip.h"' | write plugins/reward/b.cpp
    rejects "plugins/reward/b.cpp:1:" plugins/reward/b.cpp
    echo '#include "text/tokenizer/bpe.h"' | write core/foundation/b.cpp
    rejects "core/foundation may not include core/text (its level is higher)" core/foundation/b.cpp
    echo '#  include "config/load.h"' | write core/text/b.cpp
    rejects "core/text may not include core/config (its level is the same)" core/text/b.cpp
    echo '#include "train/loop/trainer.h"' | write core/learn/b.h
    rejects "core/learn may not include core/train" core/learn/b.h
    echo '#include <ATen/core/Tensor.h>' | write core/experience/b.h
    rejects "core/experience/b.h:1: libtorch (ATen/core/Tensor.h) is not for this folder" core/experience/b.h
    echo '#include <c10/util/Half.h>' | write tests/unit/text/b.cpp
    rejects "tests/unit/text/b.cpp:1: libtorch" tests/unit/text/b.cpp
    echo '#include <torch/torch.h>' | write core/model/b.cpp
    rejects "<torch/torch.h> costs seconds" core/model/b.cpp
    echo '#include "../model/a.h"' | write core/learn/b.cpp
    rejects "leaves its folder" core/learn/b.cpp
    echo '#include "foundation/base/rng.h"' | write plugins/reward/b.cpp
    rejects "a plugin includes the SDK, core/parse and core/sandbox only, not core/foundation" plugins/reward/b.cpp
    echo '#include "foundation/base/rng.h"' | write core/parse/b.cpp
    rejects "core/parse may not include core/foundation (its level is higher)" core/parse/b.cpp
    echo '#include "parse/json.h"' | write core/sandbox/b.cpp
    rejects "core/sandbox may not include core/parse (its level is the same)" core/sandbox/b.cpp
    echo '#include "parse/json.h"' | write sdk/include/mortise/b.h
    rejects "the SDK includes itself" sdk/include/mortise/b.h
    echo '#include "foundation/base/rng.h"' | write sdk/include/mortise/b.h
    rejects "the SDK includes itself" sdk/include/mortise/b.h
    echo '#include "elsewhere/a.h"' | write core/text/b.cpp
    rejects 'is of no room of core/' core/text/b.cpp
    ;;
  guarded_readers)
    {
      echo '#include "parse/json.h"'
      echo '// Json::parse and std::regex, in a comment'
      echo 'auto a = parse_json("std::regex Json::parse", "f"), b = Charsmap::parse(x), c = vocab_json;'
      echo 'void accept(int); int d = SemVer::parse(text), e = x >> jsonl; const char* f = "_json.dumps";'
    } | write core/text/a.cpp
    echo '#include <pcre2.h>' | write core/parse/a.cpp
    echo 'auto v = Json::parse(line);' | write tests/unit/a.cpp
    accepts "the guarded readers, names that look like others, and tests"
    for code in 'auto v = nlohmann::json::parse(text);' 'auto v = Json::parse(text, nullptr, false);' 'bool v = nlohmann::ordered_json::accept(text);' \
      'auto v = nlohmann::json::from_cbor(bytes);' 'bool v = Value::sax_parse(a, b, &c);' 'auto v = nlohmann::basic_json<>::parse(text);' \
      'using Tree = nlohmann::json; auto v = Tree::parse(text);'; do
      echo "$code" | write plugins/reward/b.cpp
      rejects "plugins/reward/b.cpp:1: JSON is read with parse_json" plugins/reward/b.cpp
    done
    echo 'auto v = R"({"a": 1})"_json;' | write apps/b.cpp
    rejects "apps/b.cpp:1: JSON literals" apps/b.cpp
    echo 'std::cin >> json;' | write apps/b.cpp
    rejects "apps/b.cpp:1: JSON is read with parse_json" apps/b.cpp
    for code in '#include <regex>' '#include <regex.h>' '#include <pcre2.h>' 'std::regex r(text);' 'if (std::regex_match(a, b)) c();' 'regcomp(&r, text, 0);'; do
      printf '\n%s\n' "$code" | write core/model/b.cpp
      rejects "core/model/b.cpp:2: regular expressions" core/model/b.cpp
    done
    ;;
  sizes)
    for i in 1 2 3 4 5 6 7 8 9 10 11 12; do function_of 69 | write "core/text/small_$i.cpp"; done
    { echo 'namespace a {'; for i in $(seq 100); do echo "int v$i = 0;"; done; echo '}'; } | write core/text/values.cpp
    { echo 'constexpr auto kTable = std::to_array<Row>({'; seq 90 | sed 's/.*/    {"a", &},/'; echo '});'; } | write core/text/table.cpp
    accepts "functions of 69 lines and a table of 90, in files that are short"
    { echo 'bool operator==(const S& a, const S& b) {'; seq 90 | sed 's/.*/  a.x();/'; echo '}'; } | write core/text/b.cpp
    rejects "core/text/b.cpp:1: a function of 92 lines" core/text/b.cpp
    { echo 'const auto f = [](int x) {'; seq 90 | sed 's/.*/  a.x();/'; echo '};'; } | write core/text/b.cpp
    rejects "core/text/b.cpp:1: a function of 92 lines" core/text/b.cpp
    function_of 70 | write core/text/b.cpp
    rejects "core/text/b.cpp:1: a function of 70 lines" core/text/b.cpp
    { echo 'struct S {'; echo '  S() : a_{1},'; echo '        b_(2) '; function_of 80 | sed 's/^int f(int x) //'; echo '  int a_, b_;'; echo '};'; } | write core/text/b.h
    rejects "core/text/b.h:4: a function of 80 lines" core/text/b.h
    { echo 'def f(a,'; echo '      b):'; seq 66 | sed 's/.*/    a = """/'; echo '    c = 1  # {'; echo; echo 'd = f(1, 2)'; } | write apps/a.py
    { echo 'class A:'; echo '    def f(self):'; seq 40 | sed 's/.*/        a = 1/'; echo; echo '    def g(self):'; seq 40 | sed 's/.*/        a = 1/'; } | write apps/c.py
    accepts "functions of Python under 70 lines"
    { echo 'class A:'; echo '    async def f(self):'; seq 69 | sed 's/.*/        a = 1/'; } | write apps/b.py
    rejects "apps/b.py:2: a function of 70 lines" apps/b.py
    seq 601 | sed 's|^|# |' | write apps/b.py
    rejects "apps/b.py:1: 601 lines (at most 600)" apps/b.py
    seq 601 | sed 's|^|// |' | write core/text/b.cpp
    rejects "core/text/b.cpp:1: 601 lines (at most 600)" core/text/b.cpp
    seq 300 | sed 's|^|// |' | write core/train/loop/trainer.cpp
    rejects "300 lines (under 300)" core/train/loop/trainer.cpp
    for i in 1 2 3; do seq 450 | sed 's|^|// |' | write core/text/b$i.cpp; done
    rejects "nine of ten files" core/text/b1.cpp core/text/b2.cpp core/text/b3.cpp
    ;;
  braced_try)
    {
      echo 'Result<int> f() {'
      echo '  const A a{TRY(g(1, 2)), 3};  // {1, TRY(x)}'
      echo '  for (int i = 0, n = 3; i < n; ++i) { h(i, TRY(g(1, i))); }'
      echo '  out.push_back({"{1, TRY(x)", [&] { return TRY(g(2, 3)); }});'
      echo '  return B{a, f(RETRY(1))};'
      echo '}'
    } | write core/text/a.cpp
    accepts "a TRY that comes first, in calls, in blocks, in texts"
    printf 'Result<A> f() {\n  return A{name,\n           TRY(g())};\n}\n' | write core/text/b.cpp
    rejects "core/text/b.cpp:3: TRY behind a comma in braces" core/text/b.cpp
    printf 'Result<> f() {\n  all.push_back({spec, std::move(TRY(g(1)))});\n  return {};\n}\n' | write core/text/b.cpp
    rejects "core/text/b.cpp:2: TRY behind a comma in braces" core/text/b.cpp
    ;;
  pipes)
    printf 'ls a || head -n 1 b\n# ls | head\ngrep -q a <<<"$b"\nls | grep a >/dev/null\nls | sort\n' | write apps/a.sh
    accepts "pipes that are read to their end"
    printf '\nx=$(ls /usr/lib |%s -n 1)\n' ' head' | write apps/b.sh
    rejects "apps/b.sh:2:" apps/b.sh
    printf 'readelf -n a |%s a\n' ' grep -qE' | write apps/b.sh
    rejects "apps/b.sh:1:" apps/b.sh
    printf 'cat a |%s a\n' ' grep -i -m 1' | write dev
    rejects "dev:1:" dev
    ;;
  forbidden_text)
    printf 'See %s and /usr/include, ${HOME}/%s/x\n' 'http://example.org/' home | write docs/a.md
    accepts "a text without addresses of one machine"
    printf '// in /%s/main/core\n' work | write core/text/b.cpp
    rejects "core/text/b.cpp:1:" core/text/b.cpp
    printf 'cd /%s/x\n' root | write apps/b.sh
    rejects "apps/b.sh:1:" apps/b.sh
    printf '\nurl = https://%s.org/simple\n' pypi | write docs/b.md
    rejects "docs/b.md:2:" docs/b.md
    printf 'deb http://%s.debian.org/debian bookworm main\n' deb | write b.txt
    rejects "b.txt:1:" b.txt
    ;;
  prose)
    long=$(printf 'word %.0s' {1..30})
    printf '# %s\n\nshort\n\n| %s |\n\n```\n%s\n```\n\n    %s\n' "$long" "$long" "$long" "$long" | write docs/a.md
    accepts "short prose; long headings, tables and code"
    printf '# B\n\n| what | for |\n|---|---|\n' | write docs/b.md
    rejects "docs/b.md:3: the page begins without a sentence" docs/b.md
    printf 'short\n\nA page.\n\n- %s\n' "$long" | write docs/b.md
    rejects "docs/b.md:5: 152 characters (at most 120)" docs/b.md
    printf '// What the models have, each\n// of them.\nint a;  // one of a row, and\n        // of a group\n' | write core/a.h
    printf 'a = 1  # one of two\nb = "#of"\n' | write configs/a.toml
    accepts "of inside a sentence"
    printf 'int b;\n  // Of a model: its size.\n' | write core/b.h
    rejects 'core/b.h:2: a comment begins with "of"' core/b.h
    printf 'int a;  // one\nint b;  // of a model\n' | write core/b.h
    rejects 'core/b.h:2: a comment begins with "of"' core/b.h
    printf 'int a; /* of a model */\n' | write core/b.c
    rejects 'core/b.c:1: a comment begins with "of"' core/b.c
    printf 'a = 1  %s one\nb = 2  %s of a model\n' '#' '#' | write configs/b.toml
    rejects 'configs/b.toml:2: a comment begins with "of"' configs/b.toml
    printf '%s\n' "// $(printf 'w%.0s' {1..127})" "int a;  // $long" "// \"$(printf '\xe2\x96\x81%.0s' {1..100})\" and more words" | write core/c.h
    accepts "comments of 130 characters, and long lines of code"
    printf '  /// %s\n' "$(printf 'w%.0s' {1..125})" | write sdk/a.rs
    rejects "sdk/a.rs:1: a comment of 131 characters (at most 130)" sdk/a.rs
    printf 'The mending crews of men_anew.\n' | write docs/b.md
    accepts "words that only look like refused ones"
    printf 'Start.\n\nStart Anew, or not.\n' | write docs/b.md
    rejects 'docs/b.md:3: the word "anew": write "again"' docs/b.md
    printf 'The stand forces hands. It is at handles, and goes one by one.\n' | write docs/b.md
    printf 'Start.\n\nA pattern stands for its files.\n' | write docs/c.md
    rejects 'docs/c.md:3: the words "stands for": write "is"' docs/b.md docs/c.md
    printf '# The page.\nlist_of = 1  # the one at hand\n' | write apps/c.py
    rejects 'apps/c.py:2: the words "at hand": write "current"' apps/c.py
    printf 'return error("mend it");\n' | write core/b.cpp
    rejects 'core/b.cpp:1: the word "mend": write "fix"' core/b.cpp
    git -C "$tree" init -q
    for title in before "$(printf 't%.0s' {1..72})" "$(printf 'u%.0s' {1..73})"; do
      git -C "$tree" -c user.name=a -c user.email=a@b commit -q --allow-empty -m "$title"
    done
    export MORTISE_PROSE_SINCE=HEAD~2
    rejects "commit title of 73 characters (at most 72): uuu" nothing
    export MORTISE_PROSE_SINCE=HEAD~1
    git -C "$tree" -c user.name=a -c user.email=a@b commit -q --amend --allow-empty -m "short"
    accepts "titles of 72 characters and less"
    ;;
  links)
    printf '# One `a.b`\n\n## What is equal, and [why](https://x.y)\n\n[here](#what-is-equal-and-why), [there](b/c.md#two)\n' | write docs/a.md
    printf '## Two\n\n[up](../a.md#one-ab), [folder](..), [web](https://example.org/#no), `[code](none.md)`\n\n```\n## No heading\n[code](none.md)\n```\n' | write docs/b/c.md
    accepts "links to pages, folders, headings and the web; code"
    printf '[a](a.md)\n\n[b](b/d.md)\n' | write docs/d.md
    rejects "docs/d.md:3: there is no docs/b/d.md" docs/d.md
    printf 'See `docs/a`, `docs/b/*.md` and `docs/NAME.md`.\n\n```\ndocs/none.md\n```\n' | write docs/d.md
    printf 'A kind is `core/a/judge.h`.\n' | write CONTRIBUTING.md
    accepts "paths with and without an ending, patterns, the example of a kind"
    printf 'See `core/a/judge.h`.\n' | write docs/d.md
    rejects "docs/d.md:1: there is no core/a/judge.h" docs/d.md CONTRIBUTING.md
    printf '# D\n\nSee `docs/b/d.md`.\n' | write docs/d.md
    rejects "docs/d.md:3: there is no docs/b/d.md" docs/d.md
    printf 'See `docs/none/`, not `docs/b/`.\n' | write docs/d.md
    rejects "docs/d.md:1: there is no docs/none/" docs/d.md
    printf 'See `docs/a/`.\n' | write docs/d.md
    rejects "docs/d.md:1: there is no docs/a/" docs/d.md
    printf 'See `docs/b/c.m`, or `docs/*.txt`.\n' | write docs/README.md
    rejects "docs/README.md:1: there is no docs/b/c.m" nothing
    rejects "docs/README.md:1: there is no docs/*.txt" docs/README.md
    printf '[a](a.md#two)\n' | write docs/d.md
    rejects "docs/d.md:1: docs/a.md has no heading #two" docs/d.md
    printf '[a](b/c.md#no-heading)\n' | write docs/d.md
    rejects "docs/d.md:1: docs/b/c.md has no heading #no-heading" docs/d.md
    ;;
  metric_names)
    mkdir -p "$tree/plugins"
    printf '    {"length/mean", "tokens", "a", kMean},\n    {"time/{any}", "s", "b", kSum},\n    {"perf/rate", "", "c", kLast},\n    {"row/at/end", "", "c", kLast},\n' |
      write core/foundation/metrics/names.cpp
    printf 'add_summary("length", all);\nadd("perf/" + name("rate"));\nadd(fmt::format("row/{}/end", f("at")));\n' | write core/train/a.cpp
    accepts "names in one text, from pieces, of summaries, and patterns"
    printf '    {"perf/most", "", "d", kMax},\n' >>"$tree/core/foundation/metrics/names.cpp"
    printf '// most of perf "perf/most"\nint most;\nf("the most perf", "most perf/");\n' | write core/train/b.cpp
    rejects "nothing writes perf/most (no text has this name or its parts)" core/train/b.cpp
    ;;
  repeated_texts)
    fact='"a sentence that says what to do, in many words"'
    for file in core/a/a core/b/b; do printf 'f(%s);\ng(%s);\n' "$fact" "$fact" | write $file.cpp; done
    for file in core/import/a core/import/b; do echo "f($fact);" | write $file.cpp; done
    for file in a b c; do printf 'f("few words only");\n// %s\n' "$fact" | write apps/$file.cpp; done
    accepts "two files, tables of the import, comments and short texts"
    echo "f($fact);" | write core/c/c.h
    rejects 'in many words" is in core/a/a.cpp core/b/b.cpp core/c/c.h: write it in one place' core/c
    ;;
  readmes)
    for folder in core core/text docs; do echo "# $folder" | write $folder/README.md; done
    printf '// A.\nint a;\n' | write core/text/tokenizer/a.h
    printf '/* B. */\nint b;\n' | write core/text/tokenizer/b.c
    echo 1 | write build/x/y.txt
    accepts "folders and files that say what they are"
    echo '// A.' | write core/model/a.h
    rejects "core/model: has no README.md" core/model
    echo '// A.' | write apps/a.cpp
    rejects "apps: has no README.md" apps
    printf '#include "a.h"\n// A.\n' | write core/text/a.cpp
    rejects "core/text/a.cpp:1: the file does not begin with a comment" core/text/a.cpp
    printf '//\n// A.\n' | write core/text/a.cu
    rejects "core/text/a.cu:1: the file does not begin with a comment" core/text/a.cu
    : | write docs/README.md
    rejects "docs: has no README.md" docs
    ;;
  third_party)
    printf 'find_package(Threads REQUIRED)\nfind_package(Boost 1.81 REQUIRED)\npkg_check_modules(pcre2 REQUIRED IMPORTED_TARGET libpcre2-8)\n' | write cmake/MortiseDependencies.cmake
    printf '# list\nbuild libboost1.81-dev\nbuild libpcre2-dev\n' | write apps/dev/apt_packages.txt
    printf 'torch==1 --hash=sha256:0\n' | write apps/dev/torch_requirements.txt
    printf 'trl==1\n' | write tests/oracles_requirements.txt
    good() {
      printf '`libboost1.81-dev` `torch` `trl`\n' | write third_party_notes/boost.md
      printf '`libpcre2-dev`\n' | write third_party_notes/pcre2.md
    }
    good
    accepts "a page for each"
    rm "$tree/third_party_notes/pcre2.md"
    rejects "pcre2 has no page" third_party_notes
    good
    printf '`libboost1.81-dev` `torch`\n' | write third_party_notes/boost.md
    rejects "trl is on no page" third_party_notes
    good
    echo 'build libnew-dev' >>"$tree/apps/dev/apt_packages.txt"
    rejects "libnew-dev is on no page" third_party_notes
    ;;
  exit_codes)
    mkdir -p "$tree"/{core/foundation/base,apps/dev,docs}
    cp "$root/core/foundation/base/result.h" "$tree/core/foundation/base/"
    cp "$root/apps/dev/lib.sh" "$tree/apps/dev/"
    cp "$root/docs/exit_codes.md" "$tree/docs/"
    accepts "the table as it is"
    sed -i 's/  kSignal = 8,/  kSignal = 8,\n  kNew = 9,/' "$tree/core/foundation/base/result.h"
    rejects "no row | 9 | \`kNew\` |" nothing
    cp "$root/core/foundation/base/result.h" "$tree/core/foundation/base/"
    grep -v '`kRankFailure`' "$root/docs/exit_codes.md" | write docs/exit_codes.md
    rejects "no row | 7 | \`kRankFailure\` |" docs
    grep -v exit_download "$root/docs/exit_codes.md" | write docs/exit_codes.md
    rejects "\`exit_download\`" docs
    ;;
  security)
    printf '## Attacks\n| a | b | `Suite.Name` |\n## More\n`Other.Word`\n' | write SECURITY.md
    printf 'TEST_F(Suite, Name) {}\n' | write tests/a_test.cpp
    accepts "a test that is there"
    printf 'TEST_F(Suite, NameAndMore) {}\n' | write tests/a_test.cpp
    rejects "SECURITY.md: there is no test Suite.Name" tests
    ;;
  format)
    command -v clang-format-14 >/dev/null || { echo "skipped: clang-format-14 is not installed"; exit 77; }
    cp "$root/.clang-format" "$tree/"
    printf 'int f() { return 1; }\n' | write core/a.cpp
    accepts "a formatted file"
    printf 'int f()   { return 1; }\n' | write core/b.cpp
    rejects "core/b.cpp: not formatted" core/b.cpp
    ;;
  *)
    echo "no self-test for '$name'"
    exit 1
    ;;
esac
[[ $num_wrong -eq 0 ]]
