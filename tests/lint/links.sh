# Links in pages lead somewhere: [text](path#heading) names a file or folder of the tree, and a heading that the page has.
# Paths of the tree in `code` exist too. Links of the web are not followed. Headings become anchors as on GitHub: lower
# case, spaces to '-', no punctuation.
source "$(dirname "$0")/lib.sh"
pages=$(texts | grep '\.md$' || true)
[[ -n $pages ]] || finish
anchors=$(LC_ALL=C xargs -r awk '
  FNR == 1 { in_code = 0 }
  /^[ \t]*(```|~~~)/ { in_code = !in_code; next }
  !in_code && /^#+ / {
    sub(/^#+ +/, "")
    while (match($0, /\[[^]]*\]\([^)]*\)/)) {  # a link in a heading: its text
      link = substr($0, RSTART, RLENGTH)
      text = substr(link, 2, index(link, "]") - 2)
      $0 = substr($0, 1, RSTART - 1) text substr($0, RSTART + RLENGTH)
    }
    line = tolower($0)
    gsub(/[^a-z0-9_ -]/, "", line)
    gsub(/ /, "-", line)
    print FILENAME "#" line
  }' <<<"$pages")
links=$(LC_ALL=C xargs -r awk '
  FNR == 1 { in_code = 0 }
  /^[ \t]*(```|~~~)/ { in_code = !in_code; next }
  in_code { next }
  {
    line = $0
    gsub(/`[^`]*`/, "", line)
    while (match(line, /\]\([^) ]+\)/)) {
      print FILENAME "\t" FNR "\t" substr(line, RSTART + 2, RLENGTH - 3)
      line = substr(line, RSTART + RLENGTH)
    }
  }' <<<"$pages")
while IFS=$'\t' read -r page number target; do
  case $target in '' | http:* | https:* | mailto:*) continue ;; esac
  path=${target%%#*}
  file=$page
  if [[ -n $path ]]; then
    file=$(realpath -ms --relative-to=. "$(dirname "$page")/$path")
    if [[ ! -e $file ]]; then
      fault "$page:$number: there is no $file"
      continue
    fi
  fi
  if [[ $target == *#* && $file == *.md ]] && ! grep -qxF -- "$file#${target#*#}" <<<"$anchors"; then
    fault "$page:$number: $file has no heading #${target#*#}"
  fi
done <<<"$links"
# Paths of the tree in `code`, outside of blocks. A name without its ending (`step_table`) and a pattern are fine. Not
# meant are placeholders (NAME), and the examples of CONTRIBUTING.md: the kind judge, the family acme.
is_there() { # bash answers a pattern without * or ? with itself if it ends with a /, so a plain path is asked for
  if [[ $1 == *[*?]* ]]; then compgen -G "$1" >/dev/null || compgen -G "$1.*" >/dev/null; return; fi
  [[ -e $1 ]] || { [[ $1 != */ ]] && compgen -G "$1.*" >/dev/null; }
}
while IFS=$'\t' read -r page number path; do
  [[ $page == CONTRIBUTING.md && $path =~ judge|acme ]] && continue
  [[ -n $path && ! $path =~ (^|/)[A-Z]{3,}(/|\.|$) || $path =~ README|CHANGELOG|RULES ]] || continue
  is_there "$path" || fault "$page:$number: there is no $path"
done < <(LC_ALL=C xargs -r awk '
  FNR == 1 { in_code = 0 }
  /^[ \t]*(```|~~~)/ { in_code = !in_code; next }
  in_code { next }
  {
    line = $0
    while (match(line, /`[^`]+`/)) {
      count = split(substr(line, RSTART + 1, RLENGTH - 2), words, " ")
      line = substr(line, RSTART + RLENGTH)
      for (i = 1; i <= count; ++i) {
        sub(/[.,:;]+$/, "", words[i])
        if (words[i] ~ /^(core|apps|plugins|sdk|tests|docs|configs|cmake|third_party_notes)\/[A-Za-z0-9_.\/*-]+$/)
          print FILENAME "\t" FNR "\t" words[i]
      }
    }
  }' <<<"$pages")
finish
