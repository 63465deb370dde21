// See recorded_rows.h.
#include "train/loop/recorded_rows.h"

#include <utility>

namespace mortise {

RecordedRows recorded_rows(PromptBatch prompts) {
  RecordedRows out;
  out.prompts = std::move(prompts);
  std::vector<uint8_t> mask;
  for (size_t i = 0; i < out.prompts.prompts.size(); ++i) {
    const Prompt& prompt = out.prompts.prompts[i];
    Sample& sample = out.samples.rows.emplace_back();
    sample.prompt_index = static_cast<int64_t>(i);
    sample.token_ids = prompt.response_ids;
    mask.insert(mask.end(), prompt.response_mask.begin(), prompt.response_mask.end());
  }
  out.table = make_step_table(out.prompts, out.samples);
  out.table.put<column::ResponseMask>(std::move(mask));
  return out;
}

}  // namespace mortise
