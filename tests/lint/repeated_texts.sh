# A text that three files of core/ or apps/ write in the same words is one fact: it belongs in one place, such as
# foundation/base/hints.h. Counted are literals of one line with 40 characters or more. Not counted: the tables of the
# import, whose reasons stand next to the settings of three frameworks, and comments.
source "$(dirname "$0")/lib.sh"
folders=()
for folder in core apps; do
  if [[ -d $folder ]]; then folders+=("$folder"); fi
done
[[ ${#folders[@]} -gt 0 ]] || finish
while IFS= read -r line; do
  [[ -z $line ]] || fault "$line"
done < <(find "${folders[@]}" \( -name '*.h' -o -name '*.cpp' \) ! -path 'core/import/*' -print | sort | LC_ALL=C xargs -r awk '
  /^[ \t]*\/\// { next }
  {
    line = $0
    while (match(line, /"([^"\\]|\\.)*"/)) {
      text = substr(line, RSTART + 1, RLENGTH - 2)
      line = substr(line, RSTART + RLENGTH)
      if (length(text) < 40 || text !~ /[a-z] [a-z]/ || (text, FILENAME) in seen) continue
      seen[text, FILENAME] = 1
      files[text] = files[text] " " FILENAME
      ++num_files[text]
    }
  }
  END { for (text in num_files) if (num_files[text] >= 3) print "\"" text "\" is in" files[text] ": write it in one place" }' | sort)
finish
