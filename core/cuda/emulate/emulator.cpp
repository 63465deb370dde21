// See emulator.h.
#include "cuda/emulate/emulator.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <span>
#include <utility>

#include "cuda/emulate/fiber.h"

namespace mortise::cuda {

struct Shadow {  // who touched one element; epochs count barriers from 1, 0 is never
  uint32_t write_epoch = 0, read_epoch = 0;
  int writer = -1;
  int reader = -1;  // the thread that read in read_epoch; kMany: several threads
  bool atomic = false;
};

struct SharedBlock {
  const void* key = nullptr;
  size_t count = 0;
  std::unique_ptr<char[]> data;
  std::unique_ptr<Shadow[]> shadow;
};

namespace {

// With ThreadSanitizer neighbouring blocks have threads of their own, because it knows no two orders of one thread. It
// misses a race only if no two neighbouring blocks have it.
#if defined(MORTISE_TSAN)
constexpr bool kIsWatched = true;
#else
constexpr bool kIsWatched = false;
#endif
// A thread that waits then enters the next one itself. The sanitizers learn of switches with the host alone.
#if defined(MORTISE_TSAN) || defined(MORTISE_ASAN)
constexpr bool kHops = false;
#else
constexpr bool kHops = true;
#endif

constexpr int kMany = -2;

struct Meeting {  // where threads wait for one another
  unsigned arrived = 0;
  uint32_t generation = 0;
  const char* file = nullptr;
  int line = 0;
  uint64_t values[2][kMostExchanged][kWarp] = {};
};

// Where ThreadSanitizer orders the threads of one block: at every second barrier each. A fast thread is at the next
// barrier before a slow one has left this one.
struct BlockOrder {
  uint64_t places[2] = {};
};

struct CudaThread {
  Fiber fiber;
  Index3 index{};
  unsigned number = 0;
  bool done = false;
  const Meeting* waits_at = nullptr;
  uint32_t waits_for = 0;  // generation that must pass
};

class Machine {
 public:
  void run(Index3 grid, Index3 block, void (*body)(const void*), const void* argument);
  void barrier(const char* file, int line);
  const uint64_t (*exchange(const uint64_t* values, unsigned count, const char* file, int line))[kWarp];
  SharedBlock* shared(const void* key, size_t count, size_t element_bytes);
  void touch(SharedBlock& shared, size_t index, Access access, const char* name);

  EmulatorOptions options;
  std::vector<BarrierSite> passed;
  CudaThread* current = nullptr;
  bool saw_race = false;  // ThreadSanitizer reported one
  bool is_running = false;
  Index3 grid_size{}, block_size{}, block_index{};

 private:
  static void enter(void* machine);
  void run_block(unsigned num_threads);
  void start_threads(unsigned num_threads, std::vector<unsigned>& turns);
  void end_block(unsigned num_threads);
  CudaThread* next_thread();
  unsigned wait(Meeting& meeting, unsigned expected, const char* file, int line);
  void note(const std::string& what);
  [[noreturn]] void stop();
  void check(SharedBlock& shared, size_t index, Access access, const char* name);
  void order(std::vector<unsigned>& numbers);
  uint64_t random() { return state_ = state_ * 6364136223846793005ULL + 1442695040888963407ULL; }
  [[nodiscard]] std::string where() const;
  void note_barrier(const char* file, int line);
  [[nodiscard]] bool is_left_out(const char* file, int line) const;
  void let_others_run();
  void deadlock();
  void note_reported_race();

  FiberHost host_;
  void (*body_)(const void*) = nullptr;
  const void* argument_ = nullptr;
  std::vector<std::unique_ptr<CudaThread>> threads_;  // those of the running block
  std::vector<std::unique_ptr<CudaThread>> others_;   // those of the block before it
  std::vector<std::unique_ptr<SharedBlock>> shared_;
  std::vector<Meeting> warps_;
  Meeting block_;
  std::vector<BlockOrder> orders_;  // one for each block of the grid
  BlockOrder* order_ = nullptr;     // that of the block
  uint64_t begin_ = 0, end_ = 0;    // where the grid is ordered behind the host, and the host behind the grid
  std::string error_;
  uint64_t state_ = 1;
  unsigned num_left_ = 0;  // threads of the block that are not done
  std::vector<unsigned> turns_;
  size_t together_ = 0, first_ = 0, turn_ = 0;  // next_thread() looks at turns_[first_ + turn_], of `together_` threads
  bool moved_ = false, moved_together_ = false;  // since it began with the first ones, and with these ones
};

Machine the_machine;  // NOLINT: kernels find it without an argument, and often
Machine& machine() { return the_machine; }

std::string text_of(const Index3& i) { return fmt::format("{},{},{}", i.x, i.y, i.z); }

std::string Machine::where() const {
  return fmt::format(" (block {}, thread {})", text_of(block_index), text_of(current->index));
}

void Machine::note(const std::string& what) {
  const Unwatched unwatched;
  error_ = what + where();
}

void Machine::note_reported_race() {
  if (saw_race && error_.empty()) note("data race: see the report of ThreadSanitizer");
}

// The host throws and never comes back here, so nothing on this stack may own memory.
void Machine::stop() {
  for (;;) host_.leave(current->fiber);
}

void Machine::order(std::vector<unsigned>& numbers) {
  if (options.schedule == Schedule::kBackward) std::reverse(numbers.begin(), numbers.end());
  if (options.schedule != Schedule::kShuffled) return;
  for (size_t i = numbers.size(); i > 1; --i) std::swap(numbers[i - 1], numbers[(random() >> 33) % i]);
}

void Machine::enter(void* machine) {
  auto& self = *static_cast<Machine*>(machine);
  self.body_(self.argument_);
  self.current->done = true;
  --self.num_left_;
  for (;;) self.host_.leave(self.current->fiber);
}

void Machine::run(Index3 grid, Index3 block, void (*body)(const void*), const void* argument) {
  const unsigned num_threads = block.x * block.y * block.z;
  if (num_threads == 0 || num_threads > 1024 || num_threads % kWarp != 0)
    throw EmulatorError(fmt::format("a block has {} threads: it needs whole warps, at most 1,024", num_threads));
  if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.y > 65535 || grid.z > 65535)
    throw EmulatorError("a device takes no grid of " + text_of(grid));
  grid_size = grid;
  block_size = block;
  body_ = body;
  argument_ = argument;
  state_ = options.seed;
  std::vector<unsigned> blocks(size_t{grid.x} * grid.y * grid.z);
  for (unsigned i = 0; i < blocks.size(); ++i) blocks[i] = i;
  order(blocks);
  orders_.assign(blocks.size(), {});
  saw_race = false;
  is_running = true;
  release_order(begin_);
  for (const unsigned b : blocks) {
    block_index = {b % grid.x, b / grid.x % grid.y, b / (grid.x * grid.y)};
    order_ = &orders_[b];
    if (kIsWatched) threads_.swap(others_);
    run_block(num_threads);
    end_block(num_threads);
    if (!error_.empty()) break;
  }
  is_running = false;
  acquire_order(end_);
  if (!error_.empty()) throw EmulatorError(std::exchange(error_, {}));
}

void Machine::start_threads(unsigned num_threads, std::vector<unsigned>& turns) {
  while (threads_.size() < num_threads) threads_.push_back(std::make_unique<CudaThread>());
  for (unsigned i = 0; i < num_threads; ++i) {
    CudaThread& thread = *threads_[i];
    thread.number = turns[i] = i;
    thread.index = {i % block_size.x, i / block_size.x % block_size.y, i / (block_size.x * block_size.y)};
    thread.done = false;
    thread.waits_at = nullptr;
    thread.fiber.start(&Machine::enter, this);
    FiberHost::begin(thread.fiber, begin_);
  }
}

void Machine::end_block(unsigned num_threads) {
  note_reported_race();
  for (unsigned i = 0; i < num_threads; ++i) FiberHost::end(threads_[i]->fiber, end_, threads_[i]->done);
  const Unwatched unwatched;  // the host is not ordered behind the block yet
  shared_.clear();
}

void Machine::run_block(unsigned num_threads) {
  block_ = Meeting{};
  warps_.resize(num_threads / kWarp);
  for (Meeting& warp : warps_)
    warp.arrived = 0;  // what a thread that was stopped left; its values are written before they are read
  turns_.resize(num_threads);
  start_threads(num_threads, turns_);
  order(turns_);
  num_left_ = num_threads;
  // Schedule::kForward runs a warp until it waits for others. Its stacks then stay in the CPU's cache.
  together_ = options.schedule == Schedule::kForward ? kWarp : num_threads;
  first_ = turn_ = 0;
  moved_ = moved_together_ = false;
  while ((current = next_thread()) != nullptr) {
    host_.enter(current->fiber);
    note_reported_race();
    if (!error_.empty()) return;
  }
  if (num_left_ > 0) deadlock();
}

// The next thread that need not wait, in the order of the turns; null if there is none. Those that run together have turns
// until all of them wait.
CudaThread* Machine::next_thread() {
  for (;;) {
    while (turn_ < together_) {
      CudaThread& thread = *threads_[turns_[first_ + turn_++]];
      if (thread.done || (thread.waits_at != nullptr && thread.waits_at->generation == thread.waits_for)) continue;
      moved_ = moved_together_ = true;
      return &thread;
    }
    turn_ = 0;
    if (std::exchange(moved_together_, false)) {
      if (options.schedule == Schedule::kShuffled) order(turns_);
      continue;
    }
    first_ += together_;
    if (first_ < turns_.size()) continue;
    first_ = 0;
    if (!std::exchange(moved_, false)) return nullptr;
  }
}

// The current thread waits: others run until it is entered again.
void Machine::let_others_run() {
  CudaThread& own = *current;
  CudaThread* const next = kHops ? next_thread() : nullptr;
  if (next == nullptr) return host_.leave(own.fiber);
  current = next;
  FiberHost::hop(own.fiber, next->fiber);
}

void Machine::deadlock() {
  for (const auto& thread : threads_) {
    if (thread->done || !thread->waits_at) continue;
    current = thread.get();
    error_ = fmt::format("a thread waits at {}:{} for threads that do not come{}", thread->waits_at->file,
                         thread->waits_at->line, where());
    break;
  }
}

// Returns which half of the meeting's values this round uses.
unsigned Machine::wait(Meeting& meeting, unsigned expected, const char* file, int line) {
  if (meeting.arrived == 0) {
    meeting.file = file;
    meeting.line = line;
  } else if (meeting.line != line || (meeting.file != file && std::strcmp(meeting.file, file) != 0)) {
    note(fmt::format("threads wait at different places: {}:{} and {}:{}", meeting.file, meeting.line, file, line));
    stop();
  }
  const uint32_t generation = meeting.generation;
  current->waits_at = &meeting;
  current->waits_for = generation;
  if (++meeting.arrived == expected) {
    meeting.arrived = 0;
    ++meeting.generation;
  } else {
    let_others_run();
  }
  current->waits_at = nullptr;
  return generation & 1;
}

void Machine::note_barrier(const char* file, int line) {
  const Unwatched unwatched;
  for (const BarrierSite& site : passed) {
    if (site.line == line && site.file == file) return;
  }
  passed.push_back({file, line});
}

bool Machine::is_left_out(const char* file, int line) const {
  const Unwatched unwatched;
  return std::ranges::find(options.left_out, BarrierSite{file, line}) != options.left_out.end();
}

void Machine::barrier(const char* file, int line) {
  if (!options.left_out.empty() && is_left_out(file, line)) return;
  if (block_.arrived == 0) note_barrier(file, line);  // wait() checks that the others come to the same one
  const uint64_t& place = order_->places[block_.generation & 1];
  release_order(place);
  wait(block_, block_size.x * block_size.y * block_size.z, file, line);
  acquire_order(place);
}

const uint64_t (*Machine::exchange(const uint64_t* values, unsigned count, const char* file, int line))[kWarp] {
  Meeting& meeting = warps_[current->number / kWarp];
  auto* const places = meeting.values[meeting.generation & 1];
  for (unsigned i = 0; i < count; ++i) places[i][current->number % kWarp] = values[i];
  return meeting.values[wait(meeting, kWarp, file, line)];
}

SharedBlock* Machine::shared(const void* key, size_t count, size_t element_bytes) {
  const Unwatched unwatched;
  for (const auto& block : shared_) {
    if (block->key == key) return block.get();
  }
  auto made = std::make_unique<SharedBlock>();
  made->key = key;
  made->count = count;
  made->data = std::make_unique<char[]>(count * element_bytes);
  made->shadow = std::make_unique<Shadow[]>(count);
  shared_.push_back(std::move(made));
  return shared_.back().get();
}

void Machine::check(SharedBlock& shared, size_t index, Access access, const char* name) {
  const auto element = [&] { return fmt::format("{}[{}]", name, index); };
  if (index >= shared.count) return note(fmt::format("{} is beyond its {} elements", element(), shared.count));
  if (!options.notes_accesses) return note_reported_race();
  Shadow& shadow = shared.shadow[index];
  const uint32_t epoch = block_.generation + 1;
  const auto me = static_cast<int>(current->number);
  const bool other_wrote = shadow.write_epoch == epoch && shadow.writer != me;
  const bool other_read = shadow.read_epoch == epoch && shadow.reader != me;
  if (access == Access::kRead || access == Access::kAtomic) {
    if (shadow.write_epoch == 0) return note(element() + " is read before anything wrote it");
    if (other_wrote && !(access == Access::kAtomic && shadow.atomic))
      return note(fmt::format("data race: {} is read without a barrier after another thread wrote it", element()));
  }
  if (access == Access::kRead) {
    shadow.reader = shadow.read_epoch == epoch && shadow.reader != me ? kMany : me;
    shadow.read_epoch = epoch;
    return;
  }
  if (other_read)
    return note(fmt::format("data race: {} is written without a barrier after another thread read it", element()));
  if (access == Access::kWrite && other_wrote)
    return note(fmt::format("data race: two threads write {} without a barrier", element()));
  // An atomic by several threads stays "another thread" for everybody who reads it in this epoch.
  shadow.writer = access == Access::kAtomic && other_wrote ? kMany : me;
  shadow.atomic = access == Access::kAtomic;
  shadow.write_epoch = epoch;
}

void Machine::touch(SharedBlock& shared, size_t index, Access access, const char* name) {
  check(shared, index, access, name);
  if (!error_.empty()) stop();
}

}  // namespace

EmulatorOptions& emulator_options() { return machine().options; }
const std::vector<BarrierSite>& barriers_passed() { return machine().passed; }
void forget_barriers() { machine().passed.clear(); }
void run_grid(Index3 grid, Index3 block, void (*body)(const void*), const void* argument) {
  machine().run(grid, block, body, argument);
}
const Index3& thread_index() { return machine().current->index; }
const Index3& block_index() { return machine().block_index; }
const Index3& block_size() { return machine().block_size; }
const Index3& grid_size() { return machine().grid_size; }
SharedBlock* shared_block(const void* key, size_t count, size_t element_bytes) {
  return machine().shared(key, count, element_bytes);
}
void* shared_data(SharedBlock* block) { return block->data.get(); }
void touch_shared(SharedBlock* block, size_t index, Access access, const char* name) {
  machine().touch(*block, index, access, name);
}
void pass_barrier(const char* file, int line) { machine().barrier(file, line); }
// The values of other lanes are read here, because ThreadSanitizer does not look at this file.
void exchange_in_warp(uint64_t* values, unsigned count, unsigned source, const char* file, int line) {
  const auto* const all = machine().exchange(values, count, file, line);
  for (unsigned i = 0; i < count; ++i) values[i] = all[i][source % kWarp];
}
unsigned vote_in_warp(bool vote, const char* file, int line) {
  const uint64_t own = vote ? 1 : 0;
  const uint64_t* const votes = machine().exchange(&own, 1, file, line)[0];
  unsigned bits = 0;
  for (unsigned lane = 0; lane < kWarp; ++lane) bits |= static_cast<unsigned>(votes[lane]) << lane;
  return bits;
}
unsigned lane_index() { return machine().current->number % kWarp; }

}  // namespace mortise::cuda

#if defined(MORTISE_TSAN)
extern "C" {
// Every race is reported, also one at the line of an earlier one. The launch fails then, and not the whole process.
__attribute__((visibility("default"))) const char* __tsan_default_options() {
  return "suppress_equal_stacks=0:suppress_equal_addresses=0:exitcode=0";
}

// Comes behind the text of the report. The sanitizer holds locks here.
__attribute__((visibility("default"))) void __tsan_on_report(void*) {
  if (!mortise::cuda::machine().is_running) std::abort();
  mortise::cuda::machine().saw_race = true;
}
}
#endif
