// The next tokens from hidden states that lie on a device.
//
// With kernels the logits stay there, and 16 bytes for each row come to the host. Rows with penalties, barred tokens,
// typical_p or wanted top log-probs, and all rows without kernels, are drawn by sample_plain on the host.
// The kernel adds probabilities in another order than the host, so a draw within rounding (about 1e-6) of the border between
// two tokens may take the other one.
// Memory: logits of a block of rows. Thread rule: one thread.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <optional>
#include <span>
#include <vector>

#include "generate/device/kernel_table.h"
#include "generate/schedule/runner.h"

namespace mortise {

// A row of the hidden states, whose sample gets the token.
struct DeviceDraw {
  RunningSample* sample = nullptr;
  SampledToken* out = nullptr;
};

// Draws that the device has started. Their tokens come to the host while the device continues.
struct StartedDraws {
  at::Tensor drawn;  // MortiseCudaDrawn of each row as bytes, where the logits are
  at::Tensor host;   // the same on the host, when `copied` has happened
  std::optional<c10::Event> copied = {};

  [[nodiscard]] at::Tensor ids() const { return drawn.view(at::kLong).select(1, 0); }
};

class DeviceSampler {
 public:
  // `kernels`: null for none.
  DeviceSampler(const Model& model, RandomPurpose purpose, const DeviceKernels* kernels)
      : model_(model), purpose_(purpose), kernels_(kernels) {}

  // rows[i] draws from row i of `hidden_NH`.
  void run(const at::Tensor& hidden_NH, std::span<const DeviceDraw> rows) const;

  // Whether the device draws the next token of this sample.
  [[nodiscard]] bool draws_on_device(const RunningSample& sample) const;
  // Starts the draws of samples that the device draws, and does not wait for them. `num_later`: how many
  // tokens of each sample are drawn already, but not yet in its sequence.
  [[nodiscard]] StartedDraws start(const at::Tensor& hidden_NH, std::span<const RunningSample* const> samples,
                                   int64_t num_later) const;
  // Waits for the tokens.
  static std::vector<SampledToken> finish(StartedDraws& draws);

 private:
  void draw_on_host(const at::Tensor& logits_NV, std::span<const DeviceDraw> rows) const;
  [[nodiscard]] at::Tensor start_draws(const at::Tensor& logits_NV, std::span<const RunningSample* const> samples,
                                       int64_t num_later) const;
  [[nodiscard]] double uniform_of(const RunningSample& sample, int64_t num_later = 0) const;

  const Model& model_;
  RandomPurpose purpose_;
  const DeviceKernels* kernels_;
};

}  // namespace mortise
