// See head_sampler.h.
#include "generate/sample/head_sampler.h"

#include <algorithm>
#include <limits>

#include "foundation/metrics/op_timer.h"

namespace mortise {
namespace {

constexpr int64_t kLogitBytes = int64_t{32} << 20;
constexpr int64_t kPanelsPerChunk = kChunkLogits / kPanelColumns;
constexpr int64_t kSharedHead = 1 << 18;       // weights of a head that every core keeps in its cache
constexpr int64_t kChoiceMultiplyAdds = 5000;  // as long as one choice of a token takes, at least
constexpr int64_t kTaskRows = 32;
constexpr int64_t kTasksPerMember = 4;  // enough that a member without a core holds nobody up for long

int64_t part_begin(int64_t count, int64_t part, int64_t parts) { return count * part / parts; }

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

struct HeadSampler::Pass {
  const PackedLinear& head;
  std::span<const SampleJob> jobs;
  std::span<SampledToken> out;
  int64_t num_rows;

  // The first job of a row, or of the rows after it.
  [[nodiscard]] size_t first_job(int64_t row) const {
    return static_cast<size_t>(std::ranges::lower_bound(jobs, row, {}, &SampleJob::row) - jobs.begin());
  }
};

void HeadSampler::reserve(Block& block, int64_t rows) const {
  block.logits.reserve(rows * logit_stride_);
  block.max.resize(static_cast<size_t>(rows * num_chunks_));
  block.sum.resize(static_cast<size_t>(rows * num_chunks_));
}

void HeadSampler::score_chunks(const Pass& pass, Block& block, int64_t first_row, int64_t rows, int64_t chunk_begin,
                               int64_t chunk_end) const {
  const PackedLinear& head = pass.head;
  const float* const x = input(first_row);
  float* const logits = block.logits.data();
  for (int64_t c = chunk_begin; c < chunk_end; ++c) {
    const int64_t panel_end = std::min((c + 1) * kPanelsPerChunk, head.panels);
    const int64_t size = panel_end * kPanelColumns - c * kChunkLogits;
    {
      const OpTimer timer("head", 2.0 * static_cast<double>(rows * head.in * size),
                          4.0 * static_cast<double>(head.panel_words() * (panel_end - c * kPanelsPerChunk)));
      for (int64_t p = c * kPanelsPerChunk; p < panel_end; ++p) {
        head.multiply(kernels_, p, x, input_stride_, rows, logits + p * kPanelColumns, logit_stride_, false);
      }
    }
    const OpTimer timer("softmax", 0, 4.0 * static_cast<double>(rows * size));
    for (int64_t i = 0; i < rows; ++i) {
      float* const row = logits + i * logit_stride_;
      if (softcap_ > 0.0F) kernels_.softcap(row + c * kChunkLogits, size, softcap_);
      if (panel_end == head.panels)
        std::fill(row + vocab_size_, row + padded_size_, -std::numeric_limits<float>::infinity());
      const auto at = static_cast<size_t>(i * num_chunks_ + c);
      kernels_.exp_sum(row + c * kChunkLogits, size, inverse_temperature_[static_cast<size_t>(first_row + i)],
                       &block.max[at], &block.sum[at]);
    }
  }
}

void HeadSampler::sample_jobs(const Pass& pass, const Block& block, size_t first_job, size_t last_job,
                              int64_t first_row, SamplingScratch& scratch) const {
  const OpTimer timer("choice of tokens");
  for (size_t j = first_job; j < last_job; ++j) {
    const SampleJob& job = pass.jobs[j];
    const int64_t i = job.row - first_row;
    const LogitRow row{block.logits.data() + i * logit_stride_, vocab_size_, padded_size_,
                       block.max.data() + i * num_chunks_, block.sum.data() + i * num_chunks_};
    const double uniform = job.params->greedy() ? 0.0 : unit_double(random_u64(job.key));
    pass.out[j] = sample_token(kernels_, row, {job.params, job.edits, uniform}, scratch);
    if (job.num_top_log_probs > 0)
      append_top_log_probs(kernels_, row, *job.params, job.num_top_log_probs, scratch, *job.top);
  }
}

// Each task scores and samples its own rows.
void HeadSampler::share_rows(const Pass& pass, Team& team) {
  const int64_t size = team.size();
  const int64_t tasks = size * ((pass.num_rows + size * kTaskRows - 1) / (size * kTaskRows));
  for (Block& block : blocks_) reserve(block, std::min(kTaskRows, pass.num_rows));
  team.run_tasks(tasks, [&](int member, int64_t i) {
    const int64_t first = part_begin(pass.num_rows, i, tasks), last = part_begin(pass.num_rows, i + 1, tasks);
    Block& block = blocks_[static_cast<size_t>(member)];
    score_chunks(pass, block, first, last - first, 0, num_chunks_);
    sample_jobs(pass, block, pass.first_job(first), pass.first_job(last), first, scratch_[static_cast<size_t>(member)]);
  });
}

// Members share the vocabulary of a block of rows, then its jobs.
void HeadSampler::share_chunks(const Pass& pass, int members, Team& team) {
  const int64_t size = std::min(block_rows_, pass.num_rows);
  Block& block = blocks_.front();
  reserve(block, size);
  const auto run = [&](int64_t count, const auto& work) {  // work(member, begin, end) on parts of [0, count)
    const int64_t parts = members == 1 ? 1 : std::min(count, members * kTasksPerMember);
    const auto task = [&](int member, int64_t i) {
      work(member, part_begin(count, i, parts), part_begin(count, i + 1, parts));
    };
    if (members == 1) return task(0, 0);
    team.run_tasks(parts, task);
  };
  for (int64_t first = 0; first < pass.num_rows; first += size) {
    const int64_t rows = std::min(size, pass.num_rows - first);
    run(num_chunks_, [&](int, int64_t begin, int64_t end) { score_chunks(pass, block, first, rows, begin, end); });
    const size_t first_job = pass.first_job(first);
    const auto num_jobs = static_cast<int64_t>(pass.first_job(first + rows) - first_job);
    run(num_jobs, [&](int member, int64_t begin, int64_t end) {
      sample_jobs(pass, block, first_job + static_cast<size_t>(begin), first_job + static_cast<size_t>(end), first,
                  scratch_[static_cast<size_t>(member)]);
    });
  }
}

void HeadSampler::run(const PackedLinear& head, std::span<const SampleJob> jobs, std::span<SampledToken> out,
                      Team& team) {
  if (jobs.empty()) return;
  const Pass pass{head, jobs, out, jobs.back().row + 1};
  inverse_temperature_.resize(static_cast<size_t>(pass.num_rows));
  for (const SampleJob& job : jobs)
    inverse_temperature_[static_cast<size_t>(job.row)] = job.params->inverse_temperature();
  scratch_.resize(static_cast<size_t>(team.size()));
  blocks_.resize(static_cast<size_t>(team.size()));
  const int64_t choices = static_cast<int64_t>(jobs.size()) * kChoiceMultiplyAdds;
  const int members = team.members_for(pass.num_rows * head.in * padded_size_ + choices);
  if (members > 1 && head.in * padded_size_ <= kSharedHead && pass.num_rows >= 8 * members) {
    share_rows(pass, team);
  } else {
    share_chunks(pass, members, team);
  }
}

}  // namespace mortise
