// Layouts of ranks that compute an update together, and what each of them must give: the numbers of one rank.
#pragma once

#include <string>
#include <vector>

#include "learnt.h"
#include "support/as_device.h"
#include "support/long_run.h"

namespace mortise {

struct Mesh {
  int num_ranks = 1;
  int sequence_size = 1;  // ranks that share the tokens of each pass
  int64_t zero_stage = 0;
  int tensor_size = 1;                    // ranks that share the layers
  const ComputeDevice* device = nullptr;  // null: the kernels of the CPU compute
  int64_t window_bytes = 0;               // size of the windows of embedding and head; 0: stage 3 gathers them whole

  // Each rank has a device of its own, as on a machine with GPUs.
  [[nodiscard]] ComputeDevice device_of(int rank) const {
    ComputeDevice own = *device;
    if (!own.device.is_cpu()) own.device.set_index(static_cast<c10::DeviceIndex>(rank));
    return own;
  }
};

inline std::string name_of(const Mesh& mesh) {
  return "dp " + std::to_string(mesh.num_ranks / mesh.sequence_size / mesh.tensor_size) + " x sp " +
         std::to_string(mesh.sequence_size) + " x tp " + std::to_string(mesh.tensor_size) + ", ZeRO " +
         std::to_string(mesh.zero_stage);
}

// By rank.
inline std::vector<Learnt> learn_on(const Mesh& mesh, const Case& one, const std::string& dtype, bool deterministic,
                                    int64_t num_updates) {
  std::vector<Learnt> by_rank(static_cast<size_t>(mesh.num_ranks));
  test::on_ranks(mesh.num_ranks, [&](Communicator& communicator) {
    by_rank[static_cast<size_t>(communicator.rank())] =
        learn(one, dtype, communicator, deterministic, num_updates, mesh.zero_stage, mesh.sequence_size,
              mesh.tensor_size, mesh.window_bytes);
  });
  return by_rank;
}

// Every second layout, and the other ones for the next case: each layout has half of the cases. MORTISE_LONG=1 takes all.
inline std::vector<Mesh> half_of(const std::vector<Mesh>& meshes, size_t index_of_case) {
  if (test::is_long()) return meshes;
  std::vector<Mesh> some;
  for (size_t i = index_of_case % 2; i < meshes.size(); i += 2) some.push_back(meshes[i]);
  return some;
}

inline void expect_float64_updates_of_one_rank(const std::vector<Mesh>& meshes) {
  for (size_t i = 0; i < cases().size(); ++i) {
    const Case& one = cases()[i];
    const Learnt alone_did = learn(one, "float64", alone(), false);
    for (const Mesh& mesh : half_of(meshes, i)) {
      SCOPED_TRACE(std::string(one.name) + ", " + name_of(mesh));
      const std::vector<Learnt> by_rank = learn_on(mesh, one, "float64", false, 2);
      expect_same(by_rank[0], alone_did, 1e-12, false);
      for (const Learnt& other : by_rank) expect_same(other, by_rank[0], 0.0);  // ranks never differ among themselves
    }
  }
}

inline void expect_float32_gradients_of_one_rank(const Mesh& mesh) {
  for (const Case& one : cases()) {
    SCOPED_TRACE(one.name);
    const Learnt alone_did = learn(one, "float32", alone(), false, 1);
    const std::vector<Learnt> by_rank = learn_on(mesh, one, "float32", false, 1);
    expect_same_reports(by_rank[0].reports[0], alone_did.reports[0], 1e-5);
    EXPECT_LE(relative_l2_of_all(by_rank[0].gradients, alone_did.gradients), 1e-6);
  }
}

// Deterministic updates on `others` have the bits of `first`.
inline void expect_same_bits(const Case& one, const std::string& dtype, const Mesh& first,
                             const std::vector<Mesh>& others) {
  const std::vector<Learnt> expected = learn_on(first, one, dtype, true, 2);
  for (const Mesh& mesh : others) {
    SCOPED_TRACE(std::string(one.name) + ", " + name_of(mesh));
    for (const Learnt& rank : learn_on(mesh, one, dtype, true, 2)) expect_same(rank, expected[0], 0.0);
  }
}

}  // namespace mortise
