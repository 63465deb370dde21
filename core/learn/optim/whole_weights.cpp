// See weight_shards.h.
#include "learn/optim/weight_shards.h"

namespace mortise {

Result<WholeWeights> WholeWeights::gather(std::initializer_list<const Model*> models, const KeepsPart& keeps,
                                          GatheredLayers layers, GatheredMasters masters) {
  WholeWeights out;
  for (const Model* model : models) {
    if (model == nullptr) continue;
    ModelPart* const part = model->model_part();
    if (WeightShards* const shards = shards_of(*model); shards != nullptr) {
      const KeepsPart kept = part == nullptr ? keeps : KeepsPart();
      out.shards_.push_back(shards);
      TRY(shards->gather_all(kept));
      if (masters == GatheredMasters::kYes) {
        out.with_masters_.push_back(shards);
        TRY(shards->gather_masters(kept));
      }
    }
    if (part == nullptr || layers == GatheredLayers::kOwnPart) continue;
    const bool gathers_layers = layers == GatheredLayers::kWhole;
    (gathers_layers ? out.parts_ : out.vocabularies_).push_back(part);
    TRY(gathers_layers ? part->gather_all(keeps) : part->gather_vocabulary());
  }
  return out;
}

}  // namespace mortise
