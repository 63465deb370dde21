// See compute_team.h.
#include "model/tensor/compute_team.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <utility>

#include "foundation/base/team.h"

extern "C" {
// NOLINTBEGIN(readability-identifier-naming)
void omp_set_num_threads(int num_threads);
// MKL's number of threads for the calling thread; 0: the number for all. Libtorch may be built without MKL.
__attribute__((weak)) int MKL_Set_Num_Threads_Local(int num_threads);
// NOLINTEND(readability-identifier-naming)
}

namespace mortise {
namespace {

constexpr int64_t kRangesPerThread = 8;  // a thread that loses its core keeps the others waiting for one range only

thread_local int threads_next_to_libtorch = 0;  // where a LibtorchAlone lives; 0: libtorch's number

int set_mkl_threads(int num_threads) {
  return MKL_Set_Num_Threads_Local != nullptr ? MKL_Set_Num_Threads_Local(num_threads) : 0;
}

// While it lives, libtorch has its threads again within a LibtorchAlone.
class LibtorchShares {
 public:
  explicit LibtorchShares(int num_threads)
      : before_(at::get_num_threads()), next_to_libtorch_(std::exchange(threads_next_to_libtorch, 0)) {
    ::omp_set_num_threads(num_threads);
  }
  LibtorchShares(const LibtorchShares&) = delete;
  LibtorchShares& operator=(const LibtorchShares&) = delete;
  ~LibtorchShares() {
    ::omp_set_num_threads(before_);
    threads_next_to_libtorch = next_to_libtorch_;
  }

 private:
  int before_;
  int next_to_libtorch_;
};

struct Shared {
  std::mutex mutex;
  std::unique_ptr<Team> team;
};

// Never freed: another thread may still compute while the program ends.
Shared& shared() {
  static Shared* const shared = new Shared;
  return *shared;
}

bool run_on_team(int num_threads, int64_t count, const std::function<void(int, int64_t)>& task) {
  const std::unique_lock lock(shared().mutex, std::try_to_lock);
  if (!lock.owns_lock()) return false;
  std::unique_ptr<Team>& team = shared().team;
  if (team == nullptr || team->size() != num_threads) team = std::make_unique<Team>(num_threads, Team::Placement::kOwn);
  team->run_tasks(count, [&](int member, int64_t i) {
    const OneThread alone;
    task(member, i);
  });
  return true;
}

}  // namespace

OneThread::OneThread()
    : num_threads_(at::get_num_threads()),
      next_to_libtorch_(std::exchange(threads_next_to_libtorch, 0)),
      mkl_threads_(set_mkl_threads(1)) {
  ::omp_set_num_threads(1);
}

OneThread::~OneThread() {
  ::omp_set_num_threads(num_threads_);
  set_mkl_threads(mkl_threads_);
  threads_next_to_libtorch = next_to_libtorch_;
}

int compute_threads() { return threads_next_to_libtorch > 0 ? threads_next_to_libtorch : at::get_num_threads(); }

LibtorchAlone::LibtorchAlone(bool is_on) {
  if (!is_on || threads_next_to_libtorch > 0 || at::get_num_threads() == 1) return;
  threads_ = at::get_num_threads();
  threads_next_to_libtorch = threads_;
  mkl_threads_ = set_mkl_threads(threads_);  // else it follows OpenMP's number
  ::omp_set_num_threads(1);
}

LibtorchAlone::~LibtorchAlone() {
  if (threads_ == 0) return;
  ::omp_set_num_threads(threads_);
  set_mkl_threads(mkl_threads_);
  threads_next_to_libtorch = 0;
}

void compute_tasks(int64_t count, const std::function<void(int, int64_t)>& task) {
  const int num_threads = compute_threads();
  if (count <= 1 || num_threads == 1 || at::in_parallel_region()) {
    for (int64_t i = 0; i < count; ++i) task(0, i);
    return;
  }
  if (run_on_team(num_threads, count, task)) return;
  const LibtorchShares shares(num_threads);
  std::atomic<int64_t> next{0};
  at::parallel_for(0, num_threads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t member = begin; member < end; ++member) {
      for (int64_t i = next.fetch_add(1); i < count; i = next.fetch_add(1)) task(static_cast<int>(member), i);
    }
  });
}

void compute_ranges(int64_t count, int64_t grain, const std::function<void(int64_t, int64_t)>& body) {
  if (count <= 0) return;
  const int64_t most = std::max<int64_t>(1, count / std::max<int64_t>(1, grain));
  const int64_t ranges = std::min(most, compute_threads() * kRangesPerThread);
  compute_tasks(ranges, [&](int, int64_t i) { body(count * i / ranges, count * (i + 1) / ranges); });
}

}  // namespace mortise
