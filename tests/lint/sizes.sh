# Files: none over 600 lines, nine of ten under 400, core/train/loop/trainer.cpp under 300. Functions: under 70 lines from brace
# to brace, and in Python from `def` to the last line. Prints the median and the 90th percentile of the C++ files.
# Braces in strings and comments do not count.
source "$(dirname "$0")/lib.sh"
mapfile -t files < <(sources)
[[ ${#files[@]} -gt 0 ]] || finish
lengths=()
while read -r lines file; do
  [[ $file != total ]] || continue
  lengths+=("$lines")
  if [[ $lines -gt 600 ]]; then fault "$file:1: $lines lines (at most 600): split it by what it does"; fi
  if [[ $file == core/train/loop/trainer.cpp && $lines -ge 300 ]]; then fault "$file:1: $lines lines (under 300): the trainer is the sentence of stages, no more"; fi
done < <(wc -l "${files[@]}")
sorted=$(printf '%s\n' "${lengths[@]}" | sort -n)
count=${#files[@]}
median=$(sed -n "$(((count + 1) / 2))p" <<<"$sorted")
ninth=$(sed -n "$(((count * 9 + 9) / 10))p" <<<"$sorted")
echo "files: $count, median $median lines, 90th percentile $ninth, longest $(tail -n 1 <<<"$sorted")"
if [[ $ninth -ge 400 ]]; then fault "nine of ten files must be under 400 lines; the 90th percentile is $ninth"; fi
long=$(printf '%s\n' "${files[@]}" | xargs awk -v limit=70 -f "$(dirname "$0")/code_of.awk" -f "$(dirname "$0")/function_lengths.awk")
[[ -z $long ]] || while read -r line; do fault "$line"; done <<<"$long"
mapfile -t scripts < <(texts | grep '\.py$' || true)
[[ ${#scripts[@]} -gt 0 ]] || finish
while read -r lines file; do
  if [[ $file != total && $lines -gt 600 ]]; then fault "$file:1: $lines lines (at most 600): split it by what it does"; fi
done < <(wc -l "${scripts[@]}")
while read -r line; do
  [[ -z $line ]] || fault "$line"
done < <(printf '%s\n' "${scripts[@]}" | xargs awk -v limit=70 '
  function close_to(indent) {  # the functions that a line of this indentation ends
    for (; depth > 0 && indents[depth] >= indent; --depth) {
      if (last - firsts[depth] + 1 >= limit)
        print file ":" firsts[depth] ": a function of " last - firsts[depth] + 1 " lines (under " limit ")"
    }
  }
  FNR == 1 { close_to(0); file = FILENAME }
  /^[ \t]*(#|$)/ || /^[ \t]*\)/ { next }  # a closing parenthesis ends no function
  { match($0, /^ */); indent = RLENGTH; close_to(indent); last = FNR }
  /^ *(async )?def / { indents[++depth] = indent; firsts[depth] = FNR }
  END { close_to(0) }')
finish
