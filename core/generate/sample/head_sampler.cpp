// See head_sampler.h.
#include "generate/sample/head_sampler.h"

#include <algorithm>
#include <limits>

#include "foundation/metrics/op_timer.h"

namespace mortise {
namespace {

constexpr int64_t kLogitBytes = int64_t{32} << 20;
constexpr int64_t kPanelsPerChunk = kChunkLogits / kPanelColumns;

}  // namespace

HeadSampler::HeadSampler(int64_t hidden_size, int64_t vocab_size, double softcap, const Kernels& kernels)
    : kernels_(kernels),
      softcap_(static_cast<float>(softcap)),
      vocab_size_(vocab_size),
      padded_size_((vocab_size + kPanelColumns - 1) / kPanelColumns * kPanelColumns),
      num_chunks_((padded_size_ + kChunkLogits - 1) / kChunkLogits),
      input_stride_(padded_stride(hidden_size)),
      // Rows are a chunk and a line apart, modulo any power of two, so that a chunk of many rows stays in the cache.
      logit_stride_((padded_size_ + 1023) / 1024 * 1024 + kChunkLogits + 16),
      block_rows_(std::clamp<int64_t>(kLogitBytes / (logit_stride_ * 4) / 8 * 8, 8, 64)) {}

void HeadSampler::reserve_inputs(int64_t rows) { input_.reserve(rows * input_stride_); }

void HeadSampler::move_to_front(int64_t first, int64_t count) {
  if (first > 0) std::copy(input(first), input(first + count), input(0));
}

void HeadSampler::score_chunks(const PackedLinear& head, int64_t first_row, int64_t rows, int64_t chunk_begin,
                               int64_t chunk_end) {
  const float* const x = input(first_row);
  for (int64_t c = chunk_begin; c < chunk_end; ++c) {
    const int64_t panel_end = std::min((c + 1) * kPanelsPerChunk, head.panels);
    const int64_t size = panel_end * kPanelColumns - c * kChunkLogits;
    {
      const OpTimer timer("head", 2.0 * static_cast<double>(rows * head.in * size),
                          4.0 * static_cast<double>(head.panel_words() * (panel_end - c * kPanelsPerChunk)));
      for (int64_t p = c * kPanelsPerChunk; p < panel_end; ++p) {
        head.multiply(kernels_, p, x, input_stride_, rows, logits_.data() + p * kPanelColumns, logit_stride_, false);
      }
    }
    const OpTimer timer("softmax", 0, 4.0 * static_cast<double>(rows * size));
    for (int64_t i = 0; i < rows; ++i) {
      float* const row = logits_.data() + i * logit_stride_;
      if (softcap_ > 0.0F) kernels_.softcap(row + c * kChunkLogits, size, softcap_);
      if (panel_end == head.panels)
        std::fill(row + vocab_size_, row + padded_size_, -std::numeric_limits<float>::infinity());
      kernels_.exp_sum(row + c * kChunkLogits, size, inverse_temperature_[static_cast<size_t>(first_row + i)],
                       &chunk_max_[static_cast<size_t>(i * num_chunks_ + c)],
                       &chunk_sum_[static_cast<size_t>(i * num_chunks_ + c)]);
    }
  }
}

void HeadSampler::sample_jobs(std::span<const SampleJob> jobs, std::span<SampledToken> out, int64_t first_row,
                              SamplingScratch& scratch) const {
  const OpTimer timer("choice of tokens");
  for (size_t j = 0; j < jobs.size(); ++j) {
    const SampleJob& job = jobs[j];
    const int64_t i = job.row - first_row;
    const LogitRow row{logits_.data() + i * logit_stride_, vocab_size_, padded_size_,
                       chunk_max_.data() + i * num_chunks_, chunk_sum_.data() + i * num_chunks_};
    const double uniform = job.params->greedy() ? 0.0 : unit_double(random_u64(job.key));
    out[j] = sample_token(kernels_, row, {job.params, job.edits, uniform}, scratch);
    if (job.num_top_log_probs > 0)
      append_top_log_probs(kernels_, row, *job.params, job.num_top_log_probs, scratch, *job.top);
  }
}

void HeadSampler::run(const PackedLinear& head, std::span<const SampleJob> jobs, std::span<SampledToken> out,
                      Team& team) {
  if (jobs.empty()) return;
  const int64_t num_rows = jobs.back().row + 1;
  const int members = team.members_for(num_rows * head.in * padded_size_);
  inverse_temperature_.resize(static_cast<size_t>(num_rows));
  for (const SampleJob& job : jobs)
    inverse_temperature_[static_cast<size_t>(job.row)] = job.params->inverse_temperature();
  const int64_t block = std::min(block_rows_, num_rows);
  logits_.reserve(block * logit_stride_);
  chunk_max_.resize(static_cast<size_t>(block * num_chunks_));
  chunk_sum_.resize(static_cast<size_t>(block * num_chunks_));
  scratch_.resize(static_cast<size_t>(team.size()));
  const auto job = [&](int member) {
    size_t first_job = 0;
    for (int64_t first = 0; first < num_rows; first += block) {
      const int64_t rows = std::min(block, num_rows - first);
      score_chunks(head, first, rows, num_chunks_ * member / members, num_chunks_ * (member + 1) / members);
      if (members > 1) team.join();
      size_t last_job = first_job;
      while (last_job < jobs.size() && jobs[last_job].row < first + rows) ++last_job;
      const size_t count = last_job - first_job;
      const auto part = [&](int m) {
        return first_job + count * static_cast<size_t>(m) / static_cast<size_t>(members);
      };
      sample_jobs(jobs.subspan(part(member), part(member + 1) - part(member)),
                  out.subspan(part(member), part(member + 1) - part(member)), first,
                  scratch_[static_cast<size_t>(member)]);
      first_job = last_job;
      if (members > 1) team.join();
    }
  };
  if (members == 1) {
    job(0);
  } else {
    team.run(job);
  }
}

}  // namespace mortise
