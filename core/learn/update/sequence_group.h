// Sequence parallel in the learner: the ranks that share the tokens of each micro-batch (model/layers/sequence.h), and
// which of its response tokens a rank has.
//
// The ranks of a group run the same passes. Each computes the layers and the head for its own tokens. Log-probs go to
// all ranks of the group, so that each sees the micro-batch whole where the objective does.
//
// Errors are kept, as those of a WeightGate: status() tells the first one, and numbers after it have no meaning. Whoever
// runs a pass asks for it. Thread rule: one thread at a time; the calls are collectives of the group.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dist/communicator.h"
#include "foundation/base/result.h"
#include "foundation/batch/kept_tokens.h"
#include "model/layers/sequence.h"

namespace mortise {

class SequenceGroup : public TokenExchange {
 public:
  // `size` neighbours among `ranks` share tokens. They connect in the first pass. If `tensor_size` neighbours share the
  // layers, these come first: a group has one rank out of each of `size` neighbouring ones.
  SequenceGroup(Communicator& ranks, int size, int tensor_size = 1)
      : ranks_(&ranks), size_(size), tensor_size_(tensor_size) {}

  [[nodiscard]] int rank() const override { return ranks_->rank() / tensor_size_ % size_; }
  [[nodiscard]] int size() const override { return size_; }
  void all_to_all(const at::Tensor& input, std::span<const int64_t> input_sizes, const at::Tensor& output,
                  std::span<const int64_t> output_sizes) override;
  // The tensor becomes the sum over the ranks.
  void sum(const at::Tensor& tensor);
  // The bytes of each rank.
  Result<std::vector<std::string>> exchange(const std::string& bytes);

  [[nodiscard]] Result<> status() const;

 private:
  [[nodiscard]] Result<Communicator*> group() const;
  // call(communicator of the group), unless something has failed.
  template <class Call>
  void run(const Call& call);

  Communicator* ranks_;
  int size_, tensor_size_;
  std::optional<Error> error_;
};

// The response tokens of a micro-batch, and which of them this rank computes. [R] counts all, [O] its own.
class TargetShare {
 public:
  TargetShare() = default;
  // It has all of them.
  explicit TargetShare(int64_t num_targets) : num_targets_(num_targets) {}
  // `predict_index_R` are the packed tokens that predict them.
  TargetShare(std::shared_ptr<SequenceGroup> group, const SequenceShard& shard, const at::Tensor& predict_index_R);

  [[nodiscard]] int64_t num_targets() const { return num_targets_; }  // R
  [[nodiscard]] bool is_whole() const { return group_ == nullptr; }
  // This rank's values.
  [[nodiscard]] at::Tensor own(const at::Tensor& whole_R) const;
  [[nodiscard]] KeptTokens own(const KeptTokens& whole_R) const;
  template <class T>
  [[nodiscard]] std::vector<T> own(std::vector<T> whole_R) const {
    if (is_whole()) return whole_R;
    std::vector<T> out;
    for (const int64_t place : places_) out.push_back(whole_R[static_cast<size_t>(place)]);
    return out;
  }
  // Its values in their places, and nothing in those of other ranks.
  template <class T>
  [[nodiscard]] std::vector<T> in_place(std::vector<T> own_O) const {
    if (is_whole()) return own_O;
    std::vector<T> out(static_cast<size_t>(num_targets_));
    for (size_t i = 0; i < places_.size(); ++i) out[static_cast<size_t>(places_[i])] = own_O[i];
    return out;
  }
  // The values of all ranks.
  [[nodiscard]] at::Tensor whole(const at::Tensor& own_O) const;
  [[nodiscard]] std::vector<double> whole(const std::vector<double>& own_O) const;
  // visit(rank, place among those of that rank) for all targets in order. Precondition: !is_whole().
  template <class Visit>
  void visit_whole(const Visit& visit) const {
    std::vector<int64_t> next(static_cast<size_t>(group_->size()), 0);
    for (const int rank : owners_) visit(rank, next[static_cast<size_t>(rank)]++);
  }
  // The sum over the ranks of a number that each has of its own tokens.
  void sum(const at::Tensor& tensor) const {
    if (!is_whole()) group_->sum(tensor);
  }
  [[nodiscard]] SequenceGroup* group() const { return group_.get(); }

 private:
  int64_t num_targets_ = 0;
  std::shared_ptr<SequenceGroup> group_;  // null: the rank has all tokens
  std::vector<int> owners_;               // [R] the rank of each
  std::vector<int64_t> places_;           // [O] in [R]
  at::Tensor index_O_;                    // the same
};

}  // namespace mortise
