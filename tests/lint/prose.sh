# Prose that fits a screen: lines of Markdown have at most 120 characters (code, tables, headings, HTML and what ./dev docs
# writes aside), and titles of commits at most 72, for commits made since the rule. No comment begins with "of", also
# behind code: it has a subject. A comment's line in C, C++, CUDA or Rust has at most 130 characters. Comments and pages use
# no old or invented word where a plain one says the same.
source "$(dirname "$0")/lib.sh"
while IFS= read -r line; do
  [[ -z $line ]] || fault "$line"
done < <(texts | grep '\.md$' | grep -vxF docs/algorithms.md | LC_ALL=C xargs -r awk '
  FNR == 1 { in_code = 0 }
  /^[ \t]*(```|~~~)/ { in_code = !in_code; next }
  in_code || /^[ \t]*[|<#]/ || /^(    |\t)/ && !/^[ \t]*([-*]|[0-9]+\.) / { next }
  {
    gsub(/[\200-\277]/, "")  # a character of several bytes counts once
    gsub(/`[^`]*`/, "")  # code is not broken
  }
  length($0) > 120 { print FILENAME ":" FNR ": " length($0) " characters (at most 120)" }
')
# A page of docs/ begins with what it is for: the first thing under its title is a sentence. Lists of
# pages (README.md) need none.
while IFS= read -r line; do
  [[ -z $line ]] || fault "$line"
done < <(texts | grep -E '^docs/.*\.md$' | grep -v README | LC_ALL=C xargs -r awk '
  FNR == 1 { is_open = 1; next }
  !is_open || /^[ \t]*$/ { next }
  { is_open = 0 }
  /^(```|\||#|!|<|[-*] |\*\*|[0-9]+\.)/ { print FILENAME ":" FNR ": the page begins without a sentence that says what it is for" }')
# Comments of whole lines, and behind code. One that begins with "of" may continue a sentence of the line above.
comments() { # MARK ENDINGS: MARK begins a comment in files whose names end so
  texts | grep -E "$2" | LC_ALL=C xargs -r awk -v mark="$1" '
    FNR == 1 { open_at = 0 }
    {
      at = match($0, "(^|[ \t])(" mark ")[/!]* ") ? RSTART + RLENGTH : 0
      is_whole = at && substr($0, 1, at - 1) ~ /^[ \t]*[^ \t]+ $/
      if (at && substr($0, at) ~ /^[Oo]f / && !(is_whole && open_at == at))
        print FILENAME ":" FNR ": a comment begins with \"of\": write a sentence with a subject"
      open_at = at && !/[.:]$/ ? at : 0
    }'
}
while IFS= read -r line; do
  [[ -z $line ]] || fault "$line"
done < <(comments '//|/[*]' '\.(h|hpp|c|cpp|cu|cuh|rs)$'; comments '#' '(\.(py|toml|sh|awk|cmake)|CMakeLists\.txt|/dev)$')
while IFS= read -r line; do
  [[ -z $line ]] || fault "$line"
done < <(texts | grep -E '\.(h|hpp|c|cpp|cu|cuh|rs)$' | LC_ALL=C xargs -r awk '
  /^[ \t]*\/\// {
    gsub(/[\200-\277]/, "")
    if (length($0) > 130) print FILENAME ":" FNR ": a comment of " length($0) " characters (at most 130)"
  }')
# Words, each with what to write instead. Words of a picture that a type defines once (a supervisor) are fine.
while IFS= read -r line; do
  [[ -z $line ]] || fault "$line"
done < <(texts | grep -E '\.(h|hpp|c|cpp|cu|cuh|rs|md|sh|py|toml|cmake)$' | grep -vE '^(tests/lint/|third_party_notes/)' | LC_ALL=C xargs -r awk '
  BEGIN {
    split("mend=fix mends=fixes mended=fixed anew=again reckon=compute reckons=computes reckoned=computed thereof=its whereof=of_which zygote=fork_server crew=pool keeper=supervisor beside=next_to dear=expensive hence=so whence=from_where albeit=although shall=must upon=on", pairs, " ")
    for (i in pairs) { split(pairs[i], pair, "="); plain[pair[1]] = pair[2] }
    count = split("stands for=is|goes on=continues|comes by=comes from|at hand=current", pairs, "|")
    for (i = 1; i <= count; ++i) { split(pairs[i], pair, "="); phrases[pair[1]] = pair[2] }
  }
  {
    text = tolower($0)
    for (phrase in phrases) {
      if (index(text, phrase) && (" " text " ") ~ ("[^a-z_]" phrase "[^a-z_]"))
        print FILENAME ":" FNR ": the words \"" phrase "\": write \"" phrases[phrase] "\""
    }
    while (match(text, /[a-z_]+/)) {
      word = substr(text, RSTART, RLENGTH)
      text = substr(text, RSTART + RLENGTH)
      if (word in plain) { gsub("_", " ", plain[word]); print FILENAME ":" FNR ": the word \"" word "\": write \"" plain[word] "\"" }
    }
  }')
first=${MORTISE_PROSE_SINCE:-f6a1802}  # the last commit before the rule; the self-test names its own
if git -C . rev-parse --quiet --verify "$first^{commit}" >/dev/null 2>&1; then
  while IFS= read -r title; do
    [[ ${#title} -le 72 ]] || fault "commit title of ${#title} characters (at most 72): $title"
  done < <(git log --no-merges --format=%s "$first"..HEAD)
fi
finish
