// A head of windows whose matrix one process has, for tests of the passes that read it so.
#pragma once

#include <ATen/ops/empty_like.h>

#include <cmath>
#include <utility>

#include "model/head/head_windows.h"

namespace mortise {

inline constexpr int64_t kWindowBytes = 1;  // the smallest windows, of kHeadWindowRows rows

// The windows of a weight that is whole, and of its partner.
class TestWindows : public SpreadRows {
 public:
  TestWindows(VocabularyHead whole, at::Tensor d_weight) : whole_(std::move(whole)), d_weight_(std::move(d_weight)) {}

  [[nodiscard]] VocabularyHead head() {
    VocabularyHead out(at::empty_like(whole_.weight_VH).fill_(std::nan("")), whole_.softcap);  // never read
    out.rows = this;
    return out;
  }
  void pair_with(TestWindows& partner) { partner_ = &partner; }

  [[nodiscard]] int64_t num_walks_back() const { return num_walks_back_; }
  void walk(const Use& use) override {
    rows().walk_back([&](int64_t first, const at::Tensor& rows, const at::Tensor& /*d_rows*/) { use(first, rows); });
  }
  void walk_back(const UseBack& use) override {
    ++num_walks_back_;
    rows().walk_back(use);
  }
  [[nodiscard]] SpreadRows* partner() const override { return partner_; }
  void walk_with_partner(const UsePair& use) override {
    walk([&](int64_t first, const at::Tensor& rows) { use(first, rows, of_partner(first, rows)); });
  }
  void walk_back_with_partner(const UsePairBack& use) override {
    rows().walk_back([&](int64_t first, const at::Tensor& rows, const at::Tensor& d_rows) {
      use(first, rows, of_partner(first, rows), d_rows);
    });
  }
  at::Tensor pick(const at::Tensor& ids_N) override { return whole_.weight_VH.index_select(0, ids_N); }
  void add_gradient(const at::Tensor& ids_N, const at::Tensor& gradient_NH) override {
    d_weight_.index_add_(0, ids_N, gradient_NH);
  }

 private:
  [[nodiscard]] by_windows::WholeRows rows() const { return {whole_, d_weight_, kWindowBytes}; }
  [[nodiscard]] at::Tensor of_partner(int64_t first, const at::Tensor& rows) const {
    return partner_->whole_.weight_VH.narrow(0, first, rows.size(0));
  }

  VocabularyHead whole_;
  at::Tensor d_weight_;
  TestWindows* partner_ = nullptr;
  int64_t num_walks_back_ = 0;
};

}  // namespace mortise
