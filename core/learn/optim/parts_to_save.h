// PartsToSave: weights that ranks share, part by part (embedding, layers, head), while some ranks write files of them.
//
// A rank that comes to a parameter of another part tells the others, who are at parts of their own or have written all of theirs.
// The ranks then gather these parts, each for the rank that wants it. So a rank has one part more than its own at a time.
//
// Cost: as many bytes as gathering all parts once, if the files of a rank have each part in one place; and a message per part.
// Thread rule: one thread at a time.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "dist/communicator.h"
#include "learn/optim/weight_shards.h"
#include "model/model.h"

namespace mortise {

class PartsToSave : public NumbersToSave {
 public:
  // Does a rank have only some of its numbers?
  [[nodiscard]] static bool is_shared(const Model& model);
  // Borrows both. `model` is one that is shared. Nobody else gives all of it memory meanwhile.
  PartsToSave(const Model& model, Communicator& ranks);
  PartsToSave(const PartsToSave&) = delete;
  PartsToSave& operator=(const PartsToSave&) = delete;
  ~PartsToSave() override { leave(); }

  // A collective: other ranks make this call too, or finish().
  Result<> reach(const std::string& parameter) override;
  // A collective: this rank has written its files, or failed, and helps until all have. They may be written again then.
  Result<> finish();

 private:
  // Tells what this rank wants, and gathers what all want. False: nobody wants any.
  Result<bool> gather_wanted(int64_t own);
  Result<> gather(int64_t part, bool keeps);
  void leave();

  Communicator* ranks_;
  WeightShards* shards_;                    // null: weights are not spread
  ModelPart* split_;                        // null: layers are not split
  std::map<std::string, int64_t> part_of_;  // the part of each parameter that lies on several ranks
  int64_t part_ = -1;                       // that has memory; -1: none
};

}  // namespace mortise
