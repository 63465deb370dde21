// Adapters: the same few settings under three names.
#include "config/fields.h"
#include "config/import/frameworks.h"
#include "foundation/base/text.h"

namespace mortise {

void translate_lora(Translation& t, const LoraNames& names, const Json& modules) {
  if (find_field("model.lora_rank") == nullptr) {
    return t.problem(names.asked, quote(names.asked) + " is not supported: adapters are not trained yet",
                     "train all weights");
  }
  t.set("model.lora_rank", t.integer(names.rank), {names.rank});
  t.set("model.lora_alpha", t.number(names.alpha), {names.alpha});
  t.set("model.target_modules", t.is_null(names.modules) ? modules : Json(t.texts(names.modules)), {names.modules});
  if (!names.dropout.empty() && !t.is_null(names.dropout) && t.number(names.dropout) != 0) {
    t.problem(names.dropout, quote(names.dropout) + " is not supported: models and adapters run without dropout",
              "set it to 0");
  }
}

}  // namespace mortise
