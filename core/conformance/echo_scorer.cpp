// The reward models of the simulated host: they score texts by a hash.
#include "conformance/echo_scorer.h"

#include <limits>
#include <string_view>

#include "plugin/host/abi_struct.h"

namespace mortise::check {
namespace {

constexpr std::string_view kNoFolder = "no folder is named", kEmpty = "there is nothing to score";

struct Model {
  const mortise_host* host;
};

int32_t open(const mortise_host* host, mortise_call* call, const mortise_score_model_options* options,
             void** model) noexcept {
  if (read_abi_struct(options).folder.size == 0)
    return host->fail(call, MORTISE_NOT_FOUND, {kNoFolder.data(), kNoFolder.size()});
  *model = new Model{host};
  return MORTISE_OK;
}

void close(void* model) noexcept { delete static_cast<Model*>(model); }

// FNV-1a over the texts.
uint64_t mix(uint64_t hash, mortise_text text) {
  for (uint64_t i = 0; i < text.size; ++i) hash = (hash ^ static_cast<unsigned char>(text.data[i])) * 1099511628211U;
  return hash;
}

int32_t score(void*, mortise_call*, const mortise_score_model_in* in_raw, mortise_score_model_out* out_raw) noexcept {
  const auto in = read_abi_struct(in_raw);
  const auto out = read_abi_struct(out_raw);
  for (int64_t i = 0; i < in.num_rows; ++i) {
    if (out.num_tokens != nullptr) out.num_tokens[i] = static_cast<int64_t>(in.completions[i].size);
    if (in.completions[i].size == 0) {
      out.scores[i] = std::numeric_limits<double>::quiet_NaN();
      if (out.row_failed != nullptr)
        out.row_failed(out.sink, i, MORTISE_INVALID_ARGUMENT, {kEmpty.data(), kEmpty.size()});
      continue;
    }
    uint64_t hash = mix(mix(14695981039346656037U, in.prompts[i]), in.completions[i]);
    if (in.messages != nullptr) hash = mix(hash, in.messages[i]);
    out.scores[i] = static_cast<double>(hash % 4001) / 1000.0 - 2.0;
  }
  return MORTISE_OK;
}

constexpr mortise_score_model_vtable kScorer = {sizeof(mortise_score_model_vtable), 0, open, close, score};

}  // namespace

const mortise_score_model_vtable* echo_scorer() { return &kScorer; }

}  // namespace mortise::check
