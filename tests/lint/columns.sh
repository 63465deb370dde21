# A column of a step is said in one place (core/foundation/batch/columns.h) and named by few files: the stage that makes it, those that
# compute with it, and input_columns.h if plugins see it. What carries columns (tables, slices, calls, checkpoints) names none.
source "$(dirname "$0")/lib.sh"
header=core/foundation/batch/columns.h
# A declaration may be broken after its =.
columns=$(sed -zE 's/ =\n +/ = /g' "$header" | sed -nE 's/^using ([A-Za-z]+) = Column<"([a-z_]+)".*/\1 \2/p')
[[ -n $columns ]] || fault "$header: no column is found in it"

# The list that checkpoints are read by has them all.
all=$(sed -n '/^using All = /,/;/p' "$header")
while read -r tag name; do
  grep -qwE "$tag" <<<"$all" || fault "$header: column::All lacks $tag"
done <<<"$columns"

# Most files of core/ that may name a column, columns.h not counted. Masks, weights and the policy's log-probs are in every computation.
declare -A most=([ResponseMask]=16 [LogProb]=8 [Weight]=8 [Values]=7 [Advantages]=8 [OldLogProb]=11 [RolloutLogProb]=8)
usual=6
while read -r tag name; do
  files=$(grep -rlE "column::$tag\b" core --include='*.h' --include='*.cpp' | grep -v "^$header$" | sort || true)
  count=$(grep -c . <<<"$files" || true)
  if [[ $count -gt ${most[$tag]:-$usual} ]]; then
    fault "$name: $count files of core/ name it, at most ${most[$tag]:-$usual} may: $(paste -sd' ' <<<"$files")"
  fi
done <<<"$columns"

# Nobody declares one again. Not meant: what a single sample or prompt, a reward or a backend brings, before there is a table.
names=$(cut -d' ' -f2 <<<"$columns" | paste -sd'|')
folders=()
for folder in core/foundation/batch core/experience core/plugin/host/kinds core/learn core/train; do
  if [[ -d $folder ]]; then folders+=("$folder"); fi
done
while read -r line; do
  [[ -z $line ]] || fault "$line: a column of the step's table; take it from there"
done < <(grep -rnE "std::(span<const |vector<)(float|uint8_t)> ($names)(\{\})?;" "${folders[@]}" --include='*.h' |
  grep -vE '^core/(foundation/batch/(sample|scored|prompt)_batch|plugin/host/kinds/(rollout_backend|layout))\.h:' || true)
finish
