// See roofline.h. One version of each loop per instruction set, chosen as the decode kernels are.
#include "roofline.h"

#include <time.h>

#include <algorithm>
#include <vector>

#include "foundation/base/team.h"
#include "generate/kernels/kernels.h"
#include "model/tensor/aligned.h"

namespace mortise {
namespace {

constexpr int kChains = 12;  // more than two units of latency four need, and few enough for 16 registers

// A template cannot carry the instruction set that it is compiled for, so this is a macro. The inner loops are unrolled.
#define MORTISE_PROBES(NAME, TARGET, WIDTH)                                                               \
  using Vec_##NAME = float __attribute__((vector_size(4 * (WIDTH))));                                     \
  TARGET float multiply_add_##NAME(int64_t rounds, float a, float b) {                                    \
    Vec_##NAME acc[kChains];                                                                              \
    for (int i = 0; i < kChains; ++i) acc[i] = Vec_##NAME{} + b * static_cast<float>(i);                  \
    for (int64_t r = 0; r < rounds; ++r) {                                                                \
      for (int i = 0; i < kChains; ++i) acc[i] = acc[i] * a + b;                                          \
    }                                                                                                     \
    Vec_##NAME sum = {};                                                                                  \
    for (const Vec_##NAME& x : acc) sum += x;                                                             \
    return sum[0] + sum[(WIDTH)-1];                                                                       \
  }                                                                                                       \
  TARGET float read_##NAME(const float* data, int64_t size) {                                             \
    constexpr int64_t kStep = 8 * (WIDTH);                                                                \
    Vec_##NAME acc[8] = {};                                                                               \
    for (int64_t i = 0; i + kStep <= size; i += kStep) {                                                  \
      for (int64_t line = 0; line < kStep; line += 16) __builtin_prefetch(data + i + line + 1024);        \
      for (int v = 0; v < 8; ++v) acc[v] += *reinterpret_cast<const Vec_##NAME*>(data + i + v * (WIDTH)); \
    }                                                                                                     \
    Vec_##NAME sum = {};                                                                                  \
    for (const Vec_##NAME& x : acc) sum += x;                                                             \
    return sum[0] + sum[(WIDTH)-1];                                                                       \
  }

MORTISE_PROBES(base, , 4)
#ifdef __x86_64__
MORTISE_PROBES(avx2, [[gnu::target("avx2,fma")]], 8)
MORTISE_PROBES(avx512, [[gnu::target("avx512f,prefer-vector-width=512")]], 16)
#endif
#undef MORTISE_PROBES

struct Probes {
  float (*multiply_add)(int64_t rounds, float a, float b);
  float (*read)(const float* data, int64_t size);
  int64_t width;
};

Probes choose() {
#ifdef __x86_64__
  if (find_kernels(Isa::kAvx512) != nullptr) return {multiply_add_avx512, read_avx512, 16};
  if (find_kernels(Isa::kAvx2) != nullptr) return {multiply_add_avx2, read_avx2, 8};
#endif
  return {multiply_add_base, read_base, 4};
}

// Processor time of all threads: another program on the machine does not count.
double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

template <class Job>
double best_seconds(Team& team, int passes, Job job) {
  double best = 1e9;
  for (int i = 0; i < passes; ++i) {
    const double start = cpu_seconds();
    team.run(job);
    best = std::min(best, (cpu_seconds() - start) / team.size());
  }
  return best;
}

}  // namespace

Roofline measure_roofline(int threads) {
  constexpr int64_t kFloats = int64_t{64} << 20;  // 256 MiB a thread
  constexpr int64_t kRounds = 4'000'000;
  const Probes probes = choose();
  Team team(threads);
  std::vector<float> results(static_cast<size_t>(threads) * 16);  // a line each: the loops may not be optimised away
  std::vector<FloatBuffer> buffers(static_cast<size_t>(threads));
  for (FloatBuffer& buffer : buffers) buffer.reserve(kFloats);
  team.run([&](int member) {  // touched by the thread that reads it
    std::fill_n(buffers[static_cast<size_t>(member)].data(), kFloats, 1.0F);
  });
  const auto keep = [&](int member) -> float& { return results[static_cast<size_t>(member) * 16]; };
  const double read = best_seconds(
      team, 12, [&](int member) { keep(member) += probes.read(buffers[static_cast<size_t>(member)].data(), kFloats); });
  const double compute =
      best_seconds(team, 12, [&](int member) { keep(member) += probes.multiply_add(kRounds, 0.5F, keep(member)); });
  Roofline out;
  out.read_bytes_per_s = static_cast<double>(threads * kFloats) * sizeof(float) / read;
  out.flops_per_s = 2.0 * static_cast<double>(threads * kRounds * kChains * probes.width) / compute;
  return out;
}

}  // namespace mortise
