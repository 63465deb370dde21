// Names of the hub, as users write them.
//
//   Qwen/Qwen2.5-0.5B-Instruct            a model, at its branch "main"
//   Qwen/Qwen2.5-0.5B-Instruct@v1.0       at a branch, a tag or a commit
//   hf://Qwen/Qwen2.5-0.5B-Instruct       the same; needed where a folder here could be meant
//   hf://datasets/openai/gsm8k/main/train files of a data set (data_path.h); a revision as in openai/gsm8k@COMMIT/main/train
// Thread rule: free functions without state.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "foundation/base/env.h"
#include "foundation/base/result.h"

namespace mortise {

enum class HubKind { kModel, kDataset };

struct HubName {
  HubKind kind = HubKind::kModel;
  std::string repo;               // "Qwen/Qwen2.5-0.5B-Instruct"
  std::string revision = "main";  // branch, tag, "refs/pr/3" or a commit of 40 hexadecimal digits
  std::string path;               // for a data set: what follows the repository's name

  // "models/Qwen/Qwen2.5-0.5B-Instruct": for locks and messages.
  [[nodiscard]] std::string full() const;
};

[[nodiscard]] bool is_commit(std::string_view revision);  // 40 hexadecimal digits, in small letters

// What `text` names on the hub; nothing if it is a path of this machine. A text without "hf://" is a name of the hub if it
// has exactly one "/", is no path here, and its first part is no folder here. kind kConfig if an hf:// name is wrong.
Result<std::optional<HubName>> find_hub_name(Env& env, const std::string& text, HubKind kind);

}  // namespace mortise
