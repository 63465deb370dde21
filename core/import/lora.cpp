// Adapters: the same few settings under three names.
#include "import/frameworks.h"

namespace mortise {

void translate_lora(Translation& t, const LoraNames& names, const Json& modules) {
  t.set("model.lora_rank", t.integer(names.rank), {names.rank});
  t.set("model.lora_alpha", t.number(names.alpha), {names.alpha});
  t.set("model.target_modules", t.is_null(names.modules) ? modules : Json(t.texts(names.modules)), {names.modules});
  if (!names.rslora.empty() && t.flag(names.rslora)) t.set("model.use_rslora", true, {names.rslora});
  if (!names.dropout.empty() && !t.is_null(names.dropout))
    t.set("model.lora_dropout", t.number(names.dropout), {names.dropout});
}

}  // namespace mortise
