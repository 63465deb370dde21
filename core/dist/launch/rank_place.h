// Which rank of a run this process is, from what the launcher put into its environment. These are understood:
//
//   torchrun, Kubeflow's PyTorchJob, `mortise launch`   RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT
//   srun (Slurm)                                        SLURM_PROCID, SLURM_NTASKS, SLURM_LOCALID, the list of nodes
//   mpirun (Open MPI; Kubeflow's MPIJob)                OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE
//   mpiexec (MPICH, Intel MPI)                          PMI_RANK, PMI_SIZE, MPI_LOCALRANKID, MPI_LOCALNRANKS
//
// MASTER_ADDR and MASTER_PORT win over what a launcher's own variables say. Pure functions.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "foundation/base/result.h"

namespace mortise {

// The value of an environment variable; nothing if it is not set or empty.
using Variables = std::function<std::optional<std::string>(const std::string& name)>;
Variables process_variables();

struct RankPlace {
  int rank = 0;
  int size = 1;
  int local_rank = 0;         // number on its machine
  std::string launcher;       // "torchrun", "srun", "mpirun", "mpiexec"; empty: started by hand, one process
  std::string address;        // where the store is: the machine of rank 0
  int port = 0;               // where the store listens
  bool store_served = false;  // torchrun's agent serves the store; otherwise rank 0 does
  std::string attempt;        // names this start of the run: a restart must not read the keys of the one before
};

// One process if the environment has no launcher's variables. kConfig if it has some and lacks others.
Result<RankPlace> find_rank_place(const Variables& variables);

}  // namespace mortise
