#!/bin/bash
# quickstart.sh PAGE BUILD_DIR TASK: runs the ```sh blocks of docs/plugins/quickstart.md in order, in a folder with what
# a reader has: a build at build/release, a model and data. Then checks the output of the run.
set -euo pipefail
page=$1 build_dir=$2 task=$3
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
fail() { echo "quickstart.sh: $*" >&2; exit 1; }
mkdir "$scratch/build" "$scratch/home"
ln -s "$build_dir" "$scratch/build/release"
cp -r "$task/model" "$task/data" "$scratch/"
awk '/^```sh$/ { on = 1; next } /^```/ { on = 0 } on' "$page" >"$scratch/commands.sh"
[[ $(grep -c . "$scratch/commands.sh") -ge 20 ]] || fail "the page has too few commands"
cd "$scratch"
began=$SECONDS
HOME=$scratch/home bash -euxo pipefail commands.sh >log 2>&1 || fail "a command of the page failed: $(tail -n 30 log)"
[[ $(wc -l <out/metrics.jsonl) == 3 ]] || fail "not three steps of training"
grep -q '"critic/score/mean":' out/metrics.jsonl || fail "no reward in the metrics"
grep -q '"reward":1' scores.jsonl && grep -q '"reward":0.25' scores.jsonl || fail "other scores: $(cat scores.jsonl)"
echo "quickstart: the page's commands took $((SECONDS - began)) s"
