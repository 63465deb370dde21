// Experience: prompts with their completions and rewards, group by group. It can be split, joined, and saved in
// checkpoints. A group is a prompt with its n rows, which are adjacent (prompt-major).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "foundation/base/result.h"
#include "foundation/batch/prompt_batch.h"
#include "foundation/batch/sample_batch.h"
#include "foundation/batch/scored_batch.h"

namespace mortise {

struct Experience {
  PromptBatch prompts;
  SampleBatch samples;
  ScoredBatch scored;

  [[nodiscard]] int64_t num_groups() const { return static_cast<int64_t>(prompts.prompts.size()); }
};

// These groups of `from`, in this order, with new numbers. They may have no rewards yet.
Experience take_groups(const Experience& from, std::span<const int64_t> groups);

// Adds the groups of `more`, which has the same rewards and n. The result has the step and epoch of `more`.
void append_groups(Experience& to, const Experience& more);

// All of it as bytes, and back. An Error names `where` if they are not of this form.
std::string encode_experience(const Experience& experience);
Result<Experience> decode_experience(std::string_view bytes, std::string_view where);

}  // namespace mortise
