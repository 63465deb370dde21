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

# The table of columns in docs/architecture.md has them all.
page=docs/architecture.md
if [[ -f $page ]]; then
  while read -r tag name; do
    grep -E '^\|' "$page" | grep -F "\`$name\`" >/dev/null || fault "$page: no row of a table names the column $name"
  done <<<"$columns"
fi

# Most files of core/ that may name a column, columns.h not counted. Masks, weights and the policy's log-probs are in every computation.
# Those that try plugins from outside (core/conformance, and the evaluations of apps/mortise) are counted by themselves.
declare -A most=([ResponseMask]=16 [LogProb]=8 [Weight]=8 [Values]=7 [Advantages]=8 [OldLogProb]=11 [RolloutLogProb]=8)
usual=6
most_outside=5
files_of() { # files_of TAG FOLDER...: files there that name the column
  local tag=$1 folder folders=()
  shift
  for folder in "$@"; do
    if [[ -d $folder ]]; then folders+=("$folder"); fi
  done
  [[ ${#folders[@]} -gt 0 ]] || return 0
  grep -rlE "column::$tag\b" "${folders[@]}" --include='*.h' --include='*.cpp' | grep -v "^$header$" | sort || true
}
while read -r tag name; do
  files=$(files_of "$tag" core | grep -v '^core/conformance/' || true)
  count=$(grep -c . <<<"$files" || true)
  if [[ $count -gt ${most[$tag]:-$usual} ]]; then
    fault "$name: $count files of core/ name it, at most ${most[$tag]:-$usual} may: $(paste -sd' ' <<<"$files")"
  fi
  files=$(files_of "$tag" core/conformance apps/mortise)
  count=$(grep -c . <<<"$files" || true)
  if [[ $count -gt $most_outside ]]; then
    fault "$name: $count files of core/conformance and apps/mortise name it, at most $most_outside may: $(paste -sd' ' <<<"$files")"
  fi
done <<<"$columns"

# Nobody writes its name as a text: column::TAG::name is the name. Names of one word are words of other things too. Not meant: files
# with fields of their own of that name (samples, states, logs of completions), the timing of stages, and a help text.
folders=()
for folder in core apps/mortise; do
  if [[ -d $folder ]]; then folders+=("$folder"); fi
done
texts=$(cut -d' ' -f2 <<<"$columns" | grep _ | paste -sd'|' || true)
while read -r line; do
  [[ -z $line ]] || fault "$line: write column::TAG::name"
done < <([[ -z $texts ]] || grep -rnE "\"($texts)\"" "${folders[@]}" --include='*.h' --include='*.cpp' |
  grep -vE "^$header:|^core/(foundation/metrics/names|experience/selection/experience|train/report/(completion_files|step_metrics))\.cpp:" |
  grep -vE '^(core/learn/objective/entropy_controller\.h|apps/mortise/cmd_(generate|model)\.cpp):|^[^:]*:[0-9]*: *//' || true)

# Nobody declares one again: no member of a struct or class is a list or tensor of that name. Not meant: what a single sample, prompt
# or token brings before there is a table (sample, scored and prompt batches, backends, the scheduler and the server), what a plugin
# writes (layout.h, advantage_estimator.h), what an update hands to the table's owner (TokenTrace), gradients, a matrix of a file, and
# references to the table's own values, whose names end with _. Rooms below the table (text, model, generate) are not looked at.
names=$(cut -d' ' -f2 <<<"$columns" | paste -sd'|')
while read -r line; do
  [[ -z $line ]] || fault "$line: a column of the step's table; take it from there"
done < <(find "${folders[@]}" \( -name '*.h' -o -name '*.cpp' \) -print | sort | LC_ALL=C xargs -r awk -v names="$names" '
  FNR == 1 { depth = 0 }
  { sub(/\/\/.*/, "") }
  # Members stand in a struct or class, at its own indentation; parameters and locals of functions do not count.
  match($0, /^ *(struct|class) [A-Za-z_]+[^;(]*\{ *$/) { match($0, /^ */); in_type[++depth] = RLENGTH }
  depth && match($0, /^ *\};/) { match($0, /^ */); while (depth && in_type[depth] >= RLENGTH) --depth }
  depth {
    match($0, /^ */)
    if (RLENGTH != in_type[depth] + 2 || $0 ~ /^ *(using|static|\[\[)/) next
    if ($0 !~ /^ *(mutable |const )?(std::(vector|span|array|optional|unique_ptr)<.*(float|double|uint8_t)|at::Tensor|torch::Tensor)/) next
    if ($0 ~ /(double|at::Tensor)/) sub(/[ ,]values[,;]/, "")  # a word of other numbers too; a column holds floats
    line = $0
    gsub(/<[^<>]*(<[^<>]*>[^<>]*)*>/, "", line)
    gsub(/\{[^}]*\}|= *[^,;]*/, "", line)
    if (line !~ /\(/ && line ~ ("[ ,](" names ") *[,;]")) print FILENAME ":" FNR
  }' | grep -vE '^core/(foundation/batch/(sample|scored|prompt|step)_(batch|table|view)|plugin/host/kinds/(rollout_backend|layout|advantage_estimator))\.h:' |
  grep -vE '^core/(foundation/metrics/|text/|report/|model/|generate/|serve/|learn/(optim/|objective/actor_objective\.h|update/actor_learner\.h)|plugin/worker/messages\.h|conformance/(token_batch\.h|rollout_drive\.h|echo_engine\.cpp))' |
  grep -v '^apps/mortise/eval_tensors\.h:' || true)
finish
