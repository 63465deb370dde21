#!/bin/bash
# pack_page.sh PAGE BUILD_DIR: runs the ```sh author and ```sh colleague blocks of docs/packs.md in order and as they
# stand, each with a home folder of its own, in a folder that has a build, a model and data. Then those for several
# signers, and what the page says is refused.
set -euo pipefail
page=$1 build_dir=$2
scratch=$(mktemp -d)
trap 'chmod -R u+w "$scratch"; rm -rf "$scratch"' EXIT
fail() { echo "pack_page.sh: $*" >&2; exit 1; }
mkdir -p "$scratch/build" "$scratch/author" "$scratch/colleague"
ln -s "$build_dir" "$scratch/build/release"
cd "$scratch"
"$build_dir/bin/make_task" task --seed 3 >log 2>&1 || fail "no task: $(cat log)"
cp -r task/model task/data .
# A file for each user: one shell keeps its PATH from block to block.
for user in author colleague; do
  awk -v start="^\`\`\`sh $user\$" '$0 ~ start { on = 1; next } /^```/ { on = 0 } on' "$page" >"$user.sh"
  [[ $(grep -c . "$user.sh") -ge 5 ]] || fail "the page has too few commands of the $user"
done
unset XDG_DATA_HOME XDG_CONFIG_HOME MORTISE_PACK_STORE MORTISE_PLUGIN_PATH
for user in author colleague; do
  HOME=$scratch/$user bash -euxo pipefail "$user.sh" >log 2>&1 || fail "a command of the $user failed: $(tail -n 30 log)"
  cp log "$user.log"
done
grep -q 'good for 90 days' author.log || fail "not published: $(cat author.log)"
grep -q '1 golden test passed' colleague.log || fail "the golden test did not run: $(cat colleague.log)"
grep -q 'reward spelling: runs in a worker process' colleague.log || fail "the rights were not shown"
[[ -d colleague/.local/share/mortise/store/objects && ! -e author/.local/share/mortise/store/packs ]] || fail "another home"
[[ $(wc -l <out/metrics.jsonl) == 1 && $(wc -l <out_locked/metrics.jsonl) == 1 ]] || fail "no training"
grep -qF "\"source\": \"$scratch/public\"" mortise.lock || fail "the lock does not say where the pack came from: $(cat mortise.lock)"
# A publisher with several keys. minisign signs once, if it is there.
mkdir signers
awk '/^```sh signers$/ { on = 1; next } /^```/ { on = 0 } on' "$page" >signers/signers.sh
command -v minisign >/dev/null || sed -i '/minisign/d' signers/signers.sh
[[ $(grep -c 'mortise pack' signers/signers.sh) -ge 7 ]] || fail "the page has too few commands of several signers"
(
  cd signers
  export HOME=$PWD PATH="$build_dir/bin:$PATH"
  for name in ann bob cas dan; do mortise pack keygen --public $name.pub --secret $name.sec; done
  cp ../acme.spelling-0.1.0.mpack .
  bash -euxo pipefail signers.sh
  mortise pack install acme.spelling --index public
  mortise pack list
) >log 2>&1 || fail "a command for several signers failed: $(tail -n 30 log)"
grep -q 'are now signed by 2 of the keys' log || fail "the keys were not rotated: $(cat log)"
grep -q 'signed by [0-9A-F]*, [0-9A-F]*  from' log || fail "not installed with two signatures: $(cat log)"
# What must not pass.
export HOME=$scratch/colleague PATH="$build_dir/bin:$PATH"
refused() {  # refused CODE TEXT COMMAND...
  local code=$1 text=$2 got=0
  shift 2
  "$@" >log 2>&1 || got=$?
  [[ $got == "$code" ]] || fail "$* ended with $got, not $code: $(cat log)"
  grep -qF -- "$text" log || fail "$* did not say '$text': $(cat log)"
}
HOME=$scratch/author refused 4 'rule P16' mortise train run.toml trainer.default_local_dir=out2 \
  plugins.files='["acme.spelling/build/lib/mortise/packs/acme.spelling.so"]'
refused 2 'cannot loosen plugins.trust' mortise train run.toml plugins.trust=any
cp acme.spelling-0.1.0.mpack bad.mpack
cp acme.spelling-0.1.0.mpack.minisig bad.mpack.minisig
mortise pack verify bad.mpack --public acme.pub >log || fail "the good one is refused: $(cat log)"
printf x >>bad.mpack
refused 4 'rule P2' mortise pack verify bad.mpack --public acme.pub
refused 4 'rule P17' env HOME="$scratch/author" mortise plugin check acme.spelling-0.1.0.mpack
mortise plugin check acme.spelling-0.1.0.mpack --jobs 2 --timeout 60s >log || fail "the archive is no good pack: $(cat log)"
grep -q 'golden test tests/two_rows.toml: passed' log || fail "plugin check ran no golden test: $(cat log)"
mortise pack keygen --public evil.pub --secret evil.sec >log
cp acme.spelling-0.1.0.mpack swapped.mpack
mortise pack sign swapped.mpack --secret evil.sec >log
refused 4 'rule P17' mortise pack verify swapped.mpack --public acme.pub
refused 4 'rule P17' mortise pack install swapped.mpack
refused 4 'rule P16' mortise pack install acme.spelling/build/../../acme.spelling
sed -i 's/0.25/0.26/' acme.spelling/tests/two_rows.expected.jsonl
mortise pack build acme.spelling -o wrong.mpack >log
refused 4 'the reward of row 2 is 0.25, expected 0.26' mortise pack install wrong.mpack --trust any --store other_store
[[ ! -e other_store/packs ]] || fail "a pack whose golden test failed was installed"
if command -v minisign >/dev/null; then
  minisign -V -p acme.pub -m acme.spelling-0.1.0.mpack >log || fail "minisign refuses our signature: $(cat log)"
fi
mortise pack remove acme.spelling@0.1.0 >log
refused 4 'not installed' mortise train run.toml --locked trainer.default_local_dir=out3
refused 4 "installed from $scratch/public" mortise train run.toml --locked trainer.default_local_dir=out3
refused 4 'install the pack that the run had' mortise train run.toml plugins.trust=signed
mortise pack trust --revoke "$(mortise pack inspect acme.spelling-0.1.0.mpack --json | grep -A 1 '"signed_by"' | grep -o '[0-9A-F]\{16\}')" >log
refused 4 'rule P18' mortise pack install acme.spelling-0.1.0.mpack
echo "pack_page: ok"
