// The next tokens from hidden states that lie on a device.
//
// With kernels the logits stay there, and 16 bytes for each row come to the host, with 8 for each likeliest token that a row
// wants. Without kernels sample_plain draws all rows on the host.
// The kernel adds probabilities in another order than the host, so a draw within rounding (about 1e-6) of the border between
// two tokens may take the other one.
// Ranks that sample together draw as on the CPU (sample/shared_tokens.h): each for some of the rows. With kernels they
// exchange 16 bytes for each row and rank, which stay on the devices.
// Memory: logits of a block of rows, twice if a row has penalties or barred tokens. Thread rule: one thread.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <optional>
#include <span>
#include <vector>

#include "generate/device/device_history.h"
#include "generate/schedule/runner.h"
#include "generate/schedule/runner_layers.h"
#include "model/device/kernel_table.h"

namespace mortise {

// A row of the hidden states, and the sample that gets its token.
struct DrawRow {
  RunningSample* sample = nullptr;
  const DeviceHistory* history = nullptr;  // null: no edits
  int64_t num_later = 0;                   // tokens of the sample that are drawn already, but not yet in its sequence
};

struct DrawnToken {
  SampledToken token;
  std::vector<TokenLogProb> top;  // the likeliest tokens, as many as the request wants
};

// What the kernels need to know of rows. Arrays are bytes, on the host or on the device.
struct DrawInputs {
  at::Tensor draws;         // MortiseCudaDraw of each row
  at::Tensor edits;         // MortiseCudaEdits of each row; undefined if none has any
  at::Tensor num_top = {};  // int32, the likeliest tokens that each row wants; undefined if none wants any
  int32_t most_top = 0;     // places for them in each row
  at::Tensor allowed = {};  // on the device: the sets of tokens that patterns allow, to which `edits` points

  [[nodiscard]] DrawInputs on(const c10::Device& device) const;
};

// As bytes, where the logits are.
struct DrawnRows {
  at::Tensor drawn;  // MortiseCudaDrawn of each row
  at::Tensor top;    // MortiseCudaTop, [rows, most_top]; undefined if no row wants any
};

// Draws that the device has started. Their tokens come to the host while the device continues.
struct StartedDraws {
  DrawnRows rows;
  std::optional<HostCopy> drawn = {}, top = {};  // the numbers of both, where they are defined
  at::Tensor num_top = {};                       // as in DrawInputs, on the host
  at::Tensor allowed = {};                       // as there, until the draws are done

  [[nodiscard]] at::Tensor ids() const { return rows.drawn.view(at::kLong).select(1, 0); }
};

class DeviceSampler {
 public:
  // `kernels`: null for none.
  DeviceSampler(const RunnerLayers& layers, RandomPurpose purpose, const DeviceKernels* kernels)
      : layers_(layers), purpose_(purpose), kernels_(kernels) {}

  // The tokens that rows[i] draws from row i of `hidden_NH`.
  [[nodiscard]] std::vector<DrawnToken> run(const at::Tensor& hidden_NH, std::span<const DrawRow> rows) const;

  // Needs kernels. Starts the draws, and does not wait for them.
  [[nodiscard]] StartedDraws start(const at::Tensor& hidden_NH, std::span<const DrawRow> rows) const;
  // Waits for the tokens.
  static std::vector<DrawnToken> finish(StartedDraws& draws);

  // The parts of start(): what the host tells, the work of the device, which takes only device memory, and the copy to the
  // host. Ranks that sample together list no likeliest tokens.
  [[nodiscard]] DrawInputs inputs(std::span<const DrawRow> rows) const;
  [[nodiscard]] DrawnRows draw(const at::Tensor& hidden_NH, const DrawInputs& placed) const;
  static StartedDraws fetch(const DrawnRows& rows, const DrawInputs& inputs);
  // Where the copy of the head lies that draws read; null: they read the head itself.
  [[nodiscard]] const void* place_of_head() const {
    const at::Tensor copy = layers_.head().rounded_VH;
    return copy.defined() ? copy.const_data_ptr() : nullptr;
  }
  // Rows whose logits are there at the same time.
  static int64_t rows_of_block(int64_t vocab_size, bool has_edits);

 private:
  void draw_on_host(const at::Tensor& logits_NV, std::span<const DrawRow> rows, std::span<DrawnToken> out) const;
  [[nodiscard]] at::Tensor place_allowed(std::span<const DrawRow> rows, MortiseCudaEdits* edits) const;
  [[nodiscard]] at::Tensor gather_drawn(const at::Tensor& own, int64_t num_rows) const;
  [[nodiscard]] DrawnRows draw_block(const at::Tensor& logits_NV, const DrawInputs& placed, int64_t begin) const;
  [[nodiscard]] double uniform_of(const DrawRow& row) const;

  const RunnerLayers& layers_;
  RandomPurpose purpose_;
  const DeviceKernels* kernels_;
};

}  // namespace mortise
