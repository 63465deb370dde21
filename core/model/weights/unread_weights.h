// UnreadWeights: the folder of a model whose matrices are read part by part (weight_units.h), because a rank keeps only some of
// their numbers. The files are mapped while a part is read. Files that change meanwhile are an error. Cost: each read parses the
// headers of all files again.
// Thread rule: one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "foundation/base/env.h"
#include "foundation/base/result.h"
#include "model/weights/model_config.h"
#include "model/weights/parameters.h"
#include "model/weights/weight_files.h"

namespace mortise {

class UnreadWeights {
 public:
  // `env` has to live as long. `has_new_head`: the folder does not have the classifier's head of `config`.
  UnreadWeights(Env& env, Path folder, ModelConfig config, bool has_new_head);

  // From now on whatever was read goes to it, before anybody else sees the numbers: the places in `parameters`.
  using Change = std::function<Result<>(std::span<const size_t> places, std::span<const NamedParameter> parameters)>;
  void change_by(Change change) { change_ = std::move(change); }

  // Reads what every rank has whole, and checks all the rest but the numbers. Returns how the folder stores it.
  Result<StoredLayout> read_common(const std::vector<NamedParameter>& parameters);
  // Gives the matrices of a part (embedding, layers from 1, head) memory and their numbers.
  Result<> read(int64_t part, const std::vector<NamedParameter>& parameters);
  // The same of all parts, in one pass over the files.
  Result<> read_all(const std::vector<NamedParameter>& parameters);
  [[nodiscard]] const Path& folder() const { return folder_; }

 private:
  struct FileState {
    uint64_t size_bytes = 0;
    int64_t modified_ns = 0;
    friend bool operator==(const FileState&, const FileState&) = default;
  };
  [[nodiscard]] Result<std::vector<FileState>> state_of_files() const;
  Result<> read_matrices(const std::vector<size_t>& indices, const std::vector<NamedParameter>& parameters);
  // Those that the folder has.
  [[nodiscard]] std::vector<NamedParameter> stored(const std::vector<NamedParameter>& parameters) const;

  Env& env_;
  Path folder_;
  ModelConfig config_;
  bool has_new_head_;
  Change change_;
  std::vector<FileState> files_;  // as read_common() found them
};

}  // namespace mortise
