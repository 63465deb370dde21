#!/bin/bash
# pack_https.sh BUILD_DIR: a publisher, a user and a second machine, each with a home folder of its own, and an index on a
# web server whose certificate is of a company's own authority. Install, lock, train, resume elsewhere, revoke.
set -euo pipefail
build_dir=$1
scratch=$(mktemp -d)
server=
trap '[[ -z $server ]] || kill "$server"; chmod -R u+w "$scratch"; rm -rf "$scratch"' EXIT
fail() { echo "pack_https.sh: $*" >&2; exit 1; }
mkdir -p "$scratch"/{alice,bob,carol}
cd "$scratch"
export PATH="$build_dir/bin:$PATH"
unset XDG_DATA_HOME XDG_CONFIG_HOME MORTISE_PACK_STORE MORTISE_PLUGIN_PATH SSL_CERT_FILE SSL_CERT_DIR
# as HOME CODE TEXT COMMAND...: the command ends with this code and says this text.
as() {
  local home=$1 code=$2 text=$3 got=0
  shift 3
  HOME=$scratch/$home "$@" >log 2>&1 || got=$?
  [[ $got == "$code" ]] || fail "$home: $* ended with $got, not $code: $(cat log)"
  grep -qF -- "$text" log || fail "$home: $* did not say '$text': $(cat log)"
}

# The publisher.
cd alice
as alice 0 'secret' mortise pack keygen --public k.pub --secret k.sec
for version in 1_0_0 1_2_0; do
  as alice 0 'test.versions' mortise pack build "$build_dir/tests/packs/versions/v$version.so" -o "v$version.mpack"
  as alice 0 'signed with' mortise pack sign "v$version.mpack" --secret k.sec
done
as alice 0 'good for' mortise pack publish v1_0_0.mpack --to public --secret k.sec --name Alice
cd ..

# The web server, with a certificate for localhost alone.
openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj '/CN=Company' -keyout ca.key -out ca.pem 2>log || fail "$(cat log)"
openssl req -newkey rsa:2048 -nodes -subj '/CN=localhost' -keyout server.key -out server.csr 2>log || fail "$(cat log)"
openssl x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -out server.pem \
  -extfile <(echo 'subjectAltName=DNS:localhost') 2>log || fail "$(cat log)"
python3 - alice/public >port 2>server.log <<'PYTHON' &
import functools, http.server, ssl, sys

handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=sys.argv[1])
httpd = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain("server.pem", "server.key")
httpd.socket = context.wrap_socket(httpd.socket, server_side=True)
print(httpd.server_address[1], flush=True)
httpd.serve_forever()
PYTHON
server=$!
until [[ -s port ]]; do
  kill -0 "$server" 2>/dev/null || { server=; fail "the server ended: $(cat server.log)"; }
  sleep 0.1
done
index=https://localhost:$(cat port)

# A user. Without the company's authority the connection is refused, and so it is for another name of the host.
cd bob
as bob 0 'trusted: the key' mortise pack trust ../alice/k.pub --ids 'test.*' --name Alice --index "$index"
as bob 4 'rule P24' mortise pack install test.versions
as bob 4 'rule P24' env SSL_CERT_FILE="$scratch/ca.pem" mortise pack install test.versions --index "${index/localhost/127.0.0.1}"
export SSL_CERT_FILE=$scratch/ca.pem
as bob 0 'installed test.versions@1.0.0' mortise pack install test.versions
"$build_dir/bin/make_task" . --seed 3 --tiny >log 2>&1 || fail "no task: $(cat log)"
cat >run.toml <<'RUN'
[plugins]
trust = "signed"
[model]
path = "model"
[data]
train_files = ["data/train.jsonl"]
train_batch_size = 4
max_prompt_length = 8
max_response_length = 3
[actor]
ppo_mini_batch_size = 4
[rollout]
n = 2
[[reward]]
use = "test.versions/aged"
[trainer]
default_local_dir = "out"
total_training_steps = 2
save_freq = 1
RUN
as bob 0 'done: 1 step;' mortise train run.toml trainer.total_training_steps=1
as bob 0 'mortise.lock' mortise pack lock run.toml
grep -qF "\"source\": \"$index\"" mortise.lock || fail "the lock does not name the index: $(cat mortise.lock)"
grep -qF "\"source\": \"$index\"" out/global_step_1/mortise.lock || fail "the checkpoint has no lock"
cd ..

# Another machine: it is told what to install from where, and continues.
cp -r bob/model bob/data bob/run.toml bob/mortise.lock bob/out carol/
cd carol
as carol 0 'trusted: the key' mortise pack trust ../alice/k.pub --ids 'test.*' --name Alice --index "$index"
as carol 4 "installed from $index" mortise train run.toml --locked
as carol 0 'installed test.versions@1.0.0' mortise pack install test.versions@1.0.0
as carol 0 'done: 2 steps' mortise train run.toml --locked
cd ..

# A new version does not change a locked run. A withdrawn archive is used by no run of those who read the index.
(cd alice && as alice 0 'good for' mortise pack publish v1_2_0.mpack --to public --secret k.sec)
(cd bob && as bob 0 '1.2.0' mortise pack outdated && as bob 0 'installed test.versions@1.2.0' mortise pack install test.versions)
(cd bob && as bob 0 'done: 2 steps' mortise train run.toml --locked)
(cd alice && as alice 0 'good for' mortise pack publish --to public --secret k.sec --revoke v1_0_0.mpack)
(cd bob && as bob 0 'is revoked' mortise pack outdated && as bob 4 'rule P18' mortise train run.toml --locked trainer.default_local_dir=out2)
(cd bob && as bob 0 'REVOKED' mortise pack list)
echo "pack_https: ok"
