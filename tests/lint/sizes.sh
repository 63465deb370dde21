# Files: none over 600 lines, nine of ten under 400, core/train/loop/trainer.cpp under 300. Functions: under 70 lines from brace
# to brace. Prints the median and the 90th percentile of the files. Braces in strings and comments do not count.
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
finish
