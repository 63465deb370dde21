// Starts sums of buckets and puts the results in place.
#include "learn/update/bucket_sums.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <utility>

namespace mortise {

Result<> BucketSums::start_in(const std::function<void()>& backward, Communicator& ranks) {
  return ready_.run(backward, [&](size_t) { return start_next(ranks); });
}

Result<> BucketSums::start_others(Communicator& ranks) {
  while (num_started_ < buckets().size()) TRY(start_next(ranks));
  return {};
}

Result<> BucketSums::start_next(Communicator& ranks) {
  const c10::NoGradGuard no_grad;
  return start(num_started_++, ranks);
}

Result<> AllSums::finish() {
  while (!on_their_way_.empty()) TRY(finish_oldest());
  return {};
}

Result<> AllSums::start(size_t bucket, Communicator& ranks) {
  const ParameterRange range = buckets()[bucket];
  Sum sum;
  for (const OptimizedParameter& parameter : parameters().subspan(range.begin, range.end - range.begin)) {
    at::Tensor& grad = parameter.tensor.mutable_grad();
    if (!grad.defined()) grad = at::zeros_like(parameter.tensor.detach());
    sum.gradients.push_back(grad);
  }
  const bool is_in_place = sum.gradients.size() == 1 && sum.gradients.front().is_contiguous();
  if (!is_in_place) {
    const auto is_copy = [](const Sum& one) { return one.copy.defined(); };
    while (std::ranges::count_if(on_their_way_, is_copy) >= kMostCopies) TRY(finish_oldest());
    sum.copy = flatten(sum.gradients);
  }
  sum.pending = TRY(ranks.start_all_reduce_sum(is_in_place ? sum.gradients.front() : sum.copy, "gradients"));
  on_their_way_.push_back(std::move(sum));
  return {};
}

Result<> AllSums::finish_oldest() {
  const c10::NoGradGuard no_grad;
  const Sum sum = std::move(on_their_way_.front());
  on_their_way_.pop_front();
  TRY(sum.pending->wait());
  if (sum.copy.defined()) unflatten(sum.copy, sum.gradients);
  return {};
}

at::Tensor flatten(std::span<const at::Tensor> tensors) {
  std::vector<at::Tensor> flat;
  for (const at::Tensor& tensor : tensors) flat.push_back(tensor.reshape({-1}));
  return at::cat(flat);
}

void unflatten(const at::Tensor& flat, std::span<const at::Tensor> tensors) {
  int64_t begin = 0;
  for (const at::Tensor& tensor : tensors) {
    tensor.copy_(flat.narrow(0, begin, tensor.numel()).view(tensor.sizes()));
    begin += tensor.numel();
  }
}

}  // namespace mortise
