#!/bin/bash
# mistakes.sh SDK_INCLUDE MORTISE_NOTE: the build of a pack names the cause of an author's mistake. The compiler's first
# error names a class that does not fit its macro. The note maker names names and defaults that every host refuses.
set -u
include=$1 note=$2
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
num_wrong=0
wrong() { echo "mistakes.sh: $*" >&2; num_wrong=$((num_wrong + 1)); }

# refused TEXT [OPTION ...] <SOURCE: the compiler refuses the source, and its first error contains TEXT.
refused() {
  local text=$1
  shift
  { echo '#include <mortise/cpp/mortise.hpp>' && cat; } >"$scratch/pack.cpp"
  if g++ -std=c++17 -fsyntax-only -I"$include" -DMORTISE_PACK_ID='"a.b"' -DMORTISE_PACK_VERSION='"1.0.0"' "$@" \
    "$scratch/pack.cpp" 2>"$scratch/log"; then
    wrong "compiles, though: $text"
  elif ! grep -qF -- "$text" <<<"$(grep -m 1 'error' "$scratch/log")"; then
    wrong "wanted '$text', the first error is: $(grep -m 1 error "$scratch/log")"
  fi
}
refused "a Reward has, in public: double score(const mortise::Row& row)" <<'CPP'
struct Match : mortise::Reward { double score(mortise::Row& row) { return double(row.completion().size()); } };
MORTISE_PACK(MORTISE_REWARD("match", Match))
CPP
refused "MORTISE_REWARD takes a class that derives from mortise::Reward" <<'CPP'
struct Match : mortise::TokenLoss { double score(const mortise::Row&) { return 0; } };
MORTISE_PACK(MORTISE_REWARD("match", Match))
CPP
refused "a TokenLoss has: template <class Real> Real token(Real logp, double old_logp, double adv) const" <<'CPP'
struct Clip : mortise::TokenLoss { template <class Real> Real token(Real logp, double old_logp, double adv) { return logp; } };
MORTISE_PACK(MORTISE_TOKEN_LOSS("clip", Clip))
CPP
refused "where the class declares \`metrics\`, and only there" <<'CPP'
struct Clip : mortise::TokenLoss {
  template <class Real, class Meter> Real token(Real logp, double old_logp, double adv, Meter& meter) const { return logp; }
};
MORTISE_PACK(MORTISE_TOKEN_LOSS("clip", Clip))
CPP
refused "a SequenceLoss has: template <class Real> Real sequence(Real mean_log_ratio, double adv) const" <<'CPP'
struct Whole : mortise::SequenceLoss { template <class Real> Real token(Real logp, double, double) const { return logp; } };
MORTISE_PACK(MORTISE_SEQUENCE_LOSS("whole", Whole))
CPP
refused "a KlEstimator has: template <class Real> Real token(Real logp, double ref_logp) const" <<'CPP'
struct K : mortise::KlEstimator { double token(double logp, double ref) const { return logp - ref; } };
MORTISE_PACK(MORTISE_KL_ESTIMATOR("k", K))
CPP
refused "a ContextLoss with accepts_cuda has: template <class Passes> void context(const Passes& passes, const" <<'CPP'
struct Near : mortise::ContextLoss {
  static constexpr bool accepts_cuda = true;
  void context(const mortise::LossBatch&, const mortise::Call&, mortise::Span<double>) const {}
  template <class Real> Real token(Real logp, double, double, double number) const { return number * logp; }
};
MORTISE_PACK(MORTISE_CONTEXT_LOSS("near", Near))
CPP
refused "a PassLoss has: template <class Passes> void compute(const Passes& passes, const mortise::Call& call) const" <<'CPP'
struct Rows : mortise::PassLoss { template <class Passes> void compute(const Passes& passes) const {} };
MORTISE_PACK(MORTISE_PASS_LOSS("rows", Rows))
CPP
refused "a KL estimator in passes has: template <class Passes> void compute(const Passes& passes, const mortise::Call&" <<'CPP'
struct Rows : mortise::KlEstimator { void compute(int) const {} };
MORTISE_PACK(MORTISE_PASS_KL("rows", Rows))
CPP
refused "Dual has no erf(); see its functions in mortise/cpp/autodiff.hpp" <<'CPP'
struct Bell : mortise::TokenLoss { template <class Real> Real token(Real logp, double old_logp, double adv) const { return adv * erf(logp - old_logp); } };
MORTISE_PACK(MORTISE_TOKEN_LOSS("bell", Bell))
CPP
refused "only a text can stand for a column, a file, a folder or a secret" <<'CPP'
struct Match : mortise::Reward {
  double hit = param("hit", 1.0, "of a match").file();
  double score(const mortise::Row&) { return hit; }
};
MORTISE_PACK(MORTISE_REWARD("match", Match))
CPP
refused "MORTISE_TARGET_MINOR is no minor that these headers know" -DMORTISE_TARGET_MINOR=99 </dev/null

# unusable TEXT OPTION ...: the note maker refuses the C pack below, built with the OPTIONs, and says TEXT.
cat >"$scratch/pack.c" <<'C'
#include <mortise/mortise.h>
#ifndef ID
#define ID "acme.match"
#define NAME "match"
#define PARAM "hit"
#define TYPE MORTISE_PARAM_F64
#define DEFAULT "1.0"
#endif
#ifndef COUNT
#define COUNT 1
#endif
static const mortise_param one = {sizeof(mortise_param), TYPE, PARAM, DEFAULT, "score", 0, 2, 1, 0, 0};
static const mortise_param* const params[] = {&one, &one};
static const mortise_reward_vtable vtable = {sizeof(mortise_reward_vtable), 0, 0, 0, 0, 0, 0, 0};
static const mortise_descriptor plugin = {sizeof(mortise_descriptor), 0, MORTISE_KIND_REWARD, NAME, "one", 0, 0, COUNT, params, 0, 0, &vtable};
static const mortise_descriptor* const plugins[] = {&plugin, &plugin};
const mortise_pack mortise_pack_v1 = {sizeof(mortise_pack), 1, 1, PLUGINS, ID, "1.0.0", plugins, 0};
C
unusable() {
  local text=$1
  shift
  gcc -shared -fPIC -I"$include" "$@" -o "$scratch/pack.so" "$scratch/pack.c" || { wrong "does not compile: $*"; return; }
  if "$note" "$scratch/pack.so" >"$scratch/note.c" 2>"$scratch/log"; then
    [[ $text == fine ]] || wrong "the note maker takes it, though: $text"
  elif ! grep -qF -- "$text" "$scratch/log"; then
    wrong "wanted '$text', the note maker says: $(cat "$scratch/log")"
  fi
}
with() { unusable "$1" -DPLUGINS=1 -DID="\"$2\"" -DNAME="\"$3\"" -DPARAM="\"$4\"" -DTYPE="$5" -DDEFAULT="$6"; }
with fine acme.my-match match hit MORTISE_PARAM_F64 '"1.0"'
with fine acme.match match hit MORTISE_PARAM_F64 '"none"'
with "the pack id 'match' is not dotted lower-case words" match match hit MORTISE_PARAM_F64 0
with "the pack id 'acme.' is not dotted lower-case words" acme. match hit MORTISE_PARAM_F64 0
with "the plugin name 'Match' is not [a-z][a-z0-9_]*" acme.match Match hit MORTISE_PARAM_F64 0
with "the parameter name 'hit-rate' is not [a-z][a-z0-9_]*" acme.match match hit-rate MORTISE_PARAM_F64 0
with "the default of 'hit' is 'much', not a number" acme.match match hit MORTISE_PARAM_F64 '"much"'
with "the default of 'hit' is '0.5', not an integer" acme.match match hit MORTISE_PARAM_I64 '"0.5"'
with "the default of 'hit' is '3.0', out of its own range" acme.match match hit MORTISE_PARAM_F64 '"3.0"'
with "the default of 'hit' is 'yes', not true or false" acme.match match hit MORTISE_PARAM_BOOL '"yes"'
unusable "two plugins of kind mortise.reward/1 are named 'match'" -DPLUGINS=2
unusable "plugin 'match' has two parameters 'hit'" -DPLUGINS=1 -DCOUNT=2
unusable "does not export mortise_pack_v1" -DPLUGINS=1 -Dmortise_pack_v1=mortise_pack_v7
# A source of ABI 0 makes a pack of ABI 0, and one of ABI 1 a pack of ABI 1.
for abi in 0 1; do
  unusable fine -DPLUGINS=1 -DMORTISE_TARGET_MINOR=2 -Dmortise_pack_v1=mortise_pack_v$abi
  gcc -I"$include" -x c -c "$scratch/note.c" -o "$scratch/note.o" && grep -qF "{\"abi\":$abi," "$scratch/note.o" ||
    wrong "the note of a pack with mortise_pack_v$abi is not of ABI $abi"
done

[[ $num_wrong -eq 0 ]] && echo "mistakes: all are told by their cause"
