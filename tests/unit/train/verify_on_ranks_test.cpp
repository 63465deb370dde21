// Ranks that verify a checkpoint together: who reads which bytes, and who learns of a bad one.
#include "train/resume/verify_on_ranks.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <mutex>

#include "checkpoint/writer.h"
#include "config/load.h"
#include "foundation/base/tensor_pieces.h"
#include "support/forwarding_env.h"
#include "support/temp_dir.h"
#include "support/thread_ranks.h"
#include "train/resume/resume.h"

namespace mortise {
namespace {

using test::error_of;
using testing::HasSubstr;

constexpr int kRanks = 3;

// Counts how often a rank maps each file, and their bytes.
class ReadCounts : public test::ForwardingEnv {
 public:
  ReadCounts() : ForwardingEnv(default_env()) {}
  Result<MappedFile> map_file(const Path& path) override {
    MappedFile file = TRY(base().map_file(path));
    ++times[path.filename().string()];
    bytes += file.bytes().size();
    return file;
  }
  std::map<std::string, int> times;
  uint64_t bytes = 0;
};

// Moments of which each of three ranks has a third.
struct Moments final : Stateful {
  static constexpr int64_t kPart = int64_t{1} << 20;

  explicit Moments(int of_rank) : rank(of_rank), own(kPart, static_cast<float>(of_rank + 1)) {}
  [[nodiscard]] int64_t part() const { return static_cast<int64_t>(own.size()); }
  [[nodiscard]] std::string state_name() const override { return "moments"; }
  Result<> save_state(StateWriter& writer) const override {
    const TensorView view{"", DType::kF32, {part()}, std::as_bytes(std::span(own)), nullptr};
    writer.put_source("m", DType::kF32, std::array{part() * kRanks},
                      std::make_shared<RankedTensor>(view, part() * rank, part()));
    return {};
  }
  Result<> load_state(StateReader& reader) override {
    const TensorView all = TRY(reader.get_tensor("m", DType::kF32, std::array{part() * kRanks}));
    return read_tensor_bytes(all, static_cast<uint64_t>(part() * rank) * sizeof(float),
                             std::as_writable_bytes(std::span(own)));
  }
  int rank;
  std::vector<float> own;
};

// A checkpoint of three ranks, with files of unequal sizes.
Path save_step(const Path& run_dir, int64_t step) {
  CheckpointWriterOptions options;
  options.sync = false;
  std::vector<WrittenPart> parts;
  std::vector<CheckpointRequest> requests;
  std::vector<Moments> states;
  Path temporary;
  for (int rank = 0; rank < kRanks; ++rank) states.emplace_back(rank);
  for (int rank = 0; rank < kRanks; ++rank) {
    StatefulRegistry registry;
    EXPECT_OK(registry.add(states[static_cast<size_t>(rank)]));
    CheckpointRequest& request = requests.emplace_back();
    request.place = {step, {}};
    request.state = registry.save().value();
    for (int file = 0; file < 4; ++file)
      request.files.push_back(checkpoint_text_file("huggingface/file_" + std::to_string(file),
                                                   std::string(size_t{1000} << (3 * file), 'a')));
    CheckpointWriter writer(default_env(), run_dir, options);
    if (rank == 0) temporary = writer.begin(request).value();
    parts.push_back(writer.write_part(temporary, request, {rank, kRanks}).value());
  }
  return CheckpointWriter(default_env(), run_dir, options).commit(temporary, requests[0], parts).value().path;
}

std::vector<std::string> entries_of(const Path& checkpoint) {
  std::vector<std::string> names;
  const Manifest manifest = read_manifest(default_env(), checkpoint).value();
  for (const ManifestEntry& entry : manifest.entries) names.push_back(entry.path);
  return names;
}

void flip_last_byte(const Path& path) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(-1, std::ios::end);
  const char byte = static_cast<char>(file.get());
  file.seekp(-1, std::ios::end);
  file.put(static_cast<char>(byte ^ 1));
}

TEST(VerifyOnRanks, EachFileIsHashedByOneRank) {
  const test::TempDir dir;
  const Path checkpoint = save_step(dir.path(), 3);
  std::vector<ReadCounts> reads(kRanks);
  test::on_ranks(kRanks, [&](Communicator& ranks) {
    EXPECT_OK(verify_on_ranks(reads[static_cast<size_t>(ranks.rank())], ranks, checkpoint));
  });
  uint64_t total = 0, largest = 0;
  const Manifest manifest = read_manifest(default_env(), checkpoint).value();
  for (const ManifestEntry& entry : manifest.entries) {
    int times = 0;
    for (ReadCounts& read : reads) times += read.times[Path(entry.path).filename().string()];
    EXPECT_EQ(times, 1) << entry.path;
    total += entry.size_bytes;
    largest = std::max(largest, entry.size_bytes);
  }
  uint64_t sum = 0;
  for (const ReadCounts& read : reads) {
    sum += read.bytes;
    EXPECT_LE(read.bytes, total / kRanks + largest / 4);
  }
  EXPECT_EQ(sum, total);
}

TEST(VerifyOnRanks, ABadByteInAnyFileIsFoundByAllRanks) {
  const test::TempDir dir;
  const Path older = save_step(dir.path(), 1);
  const Path newest = save_step(dir.path(), 3);
  const std::vector<std::string> names = entries_of(newest);
  ASSERT_GE(names.size(), 9U);
  for (const std::string& name : names) {
    flip_last_byte(newest / name);
    std::vector<std::string> errors(kRanks);
    test::on_ranks(kRanks, [&](Communicator& ranks) {
      errors[static_cast<size_t>(ranks.rank())] = error_of(verify_on_ranks(default_env(), ranks, newest));
      const auto found = find_newest_on_ranks(default_env(), ranks, dir.path());
      EXPECT_OK(found);
      if (!found.ok() || !found->has_value()) return ADD_FAILURE() << name;
      EXPECT_EQ((*found)->ref.path, older);
      EXPECT_EQ((*found)->warnings.size(), 1U);
      EXPECT_THAT((*found)->warnings.front(), HasSubstr("'" + name + "' was changed"));
    });
    for (const std::string& error : errors) {
      EXPECT_EQ(error, errors.front());
      EXPECT_THAT(error, testing::ContainsRegex("rank [012]: checkpoint entry '" + name + "' was changed"));
      EXPECT_THAT(error, HasSubstr("resume from an earlier one"));
    }
    flip_last_byte(newest / name);
  }
  flip_last_byte(newest / kManifestFile);
  test::on_ranks(kRanks, [&](Communicator& ranks) {
    EXPECT_FALSE(verify_on_ranks(default_env(), ranks, newest).ok());
    EXPECT_EQ(find_newest_on_ranks(default_env(), ranks, dir.path()).value()->ref.path, older);
  });
}

// A file that one rank does not see counts as missing, whoever has its share.
TEST(VerifyOnRanks, AMissingFileIsFound) {
  const test::TempDir dir;
  const Path checkpoint = save_step(dir.path(), 3);
  for (const std::string& name : entries_of(checkpoint)) {
    std::filesystem::rename(checkpoint / name, checkpoint / "away");
    test::on_ranks(kRanks, [&](Communicator& ranks) {
      EXPECT_THAT(error_of(verify_on_ranks(default_env(), ranks, checkpoint)), HasSubstr("'" + name + "' is missing"));
      EXPECT_THAT(error_of(find_newest_on_ranks(default_env(), ranks, dir.path())),
                  HasSubstr("no checkpoint can be loaded"));
    });
    std::filesystem::rename(checkpoint / "away", checkpoint / name);
  }
}

// A disk without any file.
class Elsewhere : public test::ForwardingEnv {
 public:
  Elsewhere() : ForwardingEnv(default_env()) {}
  bool exists(const Path&) override { return false; }
};

// A rank whose disk is not the others'.
TEST(VerifyOnRanks, ARankThatDoesNotSeeTheCheckpointIsNamed) {
  const test::TempDir dir;
  const Path checkpoint = save_step(dir.path(), 3);
  Elsewhere elsewhere;
  test::on_ranks(kRanks, [&](Communicator& ranks) {
    Env& env = ranks.rank() == 2 ? static_cast<Env&>(elsewhere) : default_env();
    const std::string error = error_of(verify_on_ranks(env, ranks, checkpoint));
    EXPECT_THAT(error, HasSubstr("rank 2: it does not see the checkpoint that rank 0 has chosen"));
    EXPECT_THAT(error, HasSubstr("a disk that all ranks share"));
    EXPECT_EQ(error_of(find_newest_on_ranks(env, ranks, dir.path())), error);
  });
}

// A rank whose disk has a copy of another run: its own files are whole, and nobody would hash most of them.
TEST(VerifyOnRanks, ARankThatSeesAnotherCheckpointOfThisNameIsNamed) {
  class Redirected : public test::ForwardingEnv {
   public:
    Redirected(Path from, Path to) : ForwardingEnv(default_env()), from_(std::move(from)), to_(std::move(to)) {}
    Result<std::string> read_file(const Path& path, uint64_t max_bytes) override {
      return base().read_file(path.parent_path() == from_ ? to_ / path.filename() : path, max_bytes);
    }

   private:
    Path from_, to_;
  };
  const test::TempDir dir, other;
  const Path checkpoint = save_step(dir.path(), 3);
  Redirected elsewhere(checkpoint, save_step(other.path(), 1));
  test::on_ranks(kRanks, [&](Communicator& ranks) {
    Env& env = ranks.rank() == 1 ? static_cast<Env&>(elsewhere) : default_env();
    const std::string error = error_of(verify_on_ranks(env, ranks, checkpoint));
    EXPECT_THAT(error, HasSubstr("rank 1: its manifest of this checkpoint is not the one that rank 0 sees"));
    EXPECT_THAT(error, HasSubstr("a disk that all ranks share"));
    EXPECT_EQ(error_of(find_newest_on_ranks(env, ranks, dir.path())), error);
  });
}

// Also if the command line names the checkpoint: no rank leaves while the others wait for it.
TEST(VerifyOnRanks, ANamedCheckpointThatOneRankDoesNotSeeIsAnErrorOnAll) {
  const test::TempDir dir;
  const Path checkpoint = save_step(dir.path(), 3);
  const LoadedConfig loaded = load_config(default_env(), "", {}).value();
  RegistryOptions no_packs;
  no_packs.use_environment = no_packs.use_user_packs = false;
  const PluginRegistry registry = PluginRegistry::open(no_packs).value();
  Elsewhere elsewhere;
  test::on_ranks(kRanks, [&](Communicator& ranks) {
    Env& env = ranks.rank() == 2 ? static_cast<Env&>(elsewhere) : default_env();
    const auto found = find_resume(env, loaded, ranks, registry, RunKind::kTrain, {.mode = checkpoint.string()});
    EXPECT_THAT(error_of(found), HasSubstr("rank 2: it does not see the checkpoint that rank 0 has chosen"));
    const auto absent = find_resume(env, loaded, ranks, registry, RunKind::kTrain, {.mode = "absent"});
    EXPECT_THAT(error_of(absent), HasSubstr("there is no such checkpoint"));
  });
}

// A rank that fails says nothing about the checkpoint: the run does not fall back to an older one.
TEST(VerifyOnRanks, AFailedRankIsNoDamage) {
  const test::TempDir dir;
  save_step(dir.path(), 1);
  const auto refuse = [](const Path&) -> Result<Manifest> {
    return Error{ErrorKind::kRankFailure, "rank 2 was killed", "", ""};
  };
  const auto candidates = resume_candidates(default_env(), dir.path()).value();
  ASSERT_EQ(candidates.size(), 1U);
  EXPECT_EQ(first_valid(dir.path(), candidates, refuse).error().kind, ErrorKind::kRankFailure);
}

// The bytes of a safetensors file in front of its tensors: the length of the header, and the header.
uint64_t head_bytes(const Path& path) {
  uint64_t header = 0;
  std::ifstream(path, std::ios::binary).read(reinterpret_cast<char*>(&header), sizeof(header));
  return sizeof(header) + header;
}

// A rank reads its own part of the state, and only the heads of the files of other ranks: these are cut behind their
// heads once the checkpoint is open, so that a read of another rank's numbers ends this program with SIGBUS.
TEST(VerifyOnRanks, ARankLoadsItsPartOfTheState) {
  for (int rank = 0; rank < kRanks; ++rank) {
    const test::TempDir dir;
    const Path path = save_step(dir.path(), 3);
    ASSERT_OK_AND_ASSIGN(Manifest manifest, read_manifest(default_env(), path));
    ASSERT_OK_AND_ASSIGN(const Checkpoint checkpoint,
                         Checkpoint::open_verified(default_env(), path, std::move(manifest)));
    for (int other = 0; other < kRanks; ++other) {
      const Path file = path / ("state-0000" + std::to_string(other + 1) + "-of-00003.safetensors");
      if (other != rank) std::filesystem::resize_file(file, head_bytes(file));
    }
    Moments state(rank);
    state.own.assign(state.own.size(), 0.0F);
    StatefulRegistry registry;
    ASSERT_OK(registry.add(state));
    ASSERT_OK(checkpoint.load_into(registry));
    EXPECT_EQ(state.own, Moments(rank).own);
  }
}

}  // namespace
}  // namespace mortise
