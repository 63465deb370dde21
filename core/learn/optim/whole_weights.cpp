// See weight_shards.h.
#include "learn/optim/weight_shards.h"
#include "model/weights/weight_units.h"

namespace mortise {

Result<WholeWeights> WholeWeights::gather(std::initializer_list<const Model*> models, GatheredLayers layers,
                                          GatheredMasters masters) {
  WholeWeights out;
  for (const Model* model : models) {
    if (model == nullptr) continue;
    ModelPart* const part = model->model_part();
    if (WeightShards* const shards = shards_of(*model); shards != nullptr) {
      out.shards_.push_back(shards);
      TRY(shards->gather_all());
      if (masters == GatheredMasters::kYes) {
        out.with_masters_.push_back(shards);
        TRY(shards->gather_masters());
      }
    }
    if (part == nullptr || layers == GatheredLayers::kOwnPart) continue;
    const bool gathers_layers = layers == GatheredLayers::kWhole;
    (gathers_layers ? out.parts_ : out.vocabularies_).push_back(part);
    TRY(gathers_layers ? part->gather_all() : part->gather_vocabulary());
  }
  return out;
}

Result<> PartWalk::reach(const NamedParameter& parameter) {
  if (shards_ == nullptr || is_common(parameter)) return {};
  const auto part = static_cast<int64_t>(part_of_matrix(parameter.name, shards_->units().parts.size()));
  if (part == part_) return {};
  leave();
  part_ = part;
  return shards_->open_whole(part);
}

void PartWalk::leave() {
  if (part_ >= 0) shards_->close_whole(part_);
  part_ = -1;
}

}  // namespace mortise
