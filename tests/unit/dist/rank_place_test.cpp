// Launchers' environments, as their documentation and running jobs have them.
#include "dist/launch/rank_place.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "dist/launch/slurm_hosts.h"

namespace mortise {
namespace {

using Environment = std::map<std::string, std::string>;

Result<RankPlace> place_in(const Environment& environment) {
  return find_rank_place([&](const std::string& name) -> std::optional<std::string> {
    const auto found = environment.find(name);
    if (found == environment.end() || found->second.empty()) return std::nullopt;
    return found->second;
  });
}

std::string error_in(const Environment& environment) {
  const auto place = place_in(environment);
  if (place.ok()) return "no error";
  EXPECT_EQ(place.error().kind, ErrorKind::kConfig);
  return place.error().to_string();
}

Environment without(Environment environment, const std::string& name) {
  environment.erase(name);
  return environment;
}

const Environment kTorchrun{{"RANK", "5"},
                            {"WORLD_SIZE", "8"},
                            {"LOCAL_RANK", "1"},
                            {"LOCAL_WORLD_SIZE", "4"},
                            {"GROUP_RANK", "1"},
                            {"ROLE_RANK", "5"},
                            {"MASTER_ADDR", "node0"},
                            {"MASTER_PORT", "29500"},
                            {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                            {"TORCHELASTIC_RUN_ID", "job7"},
                            {"TORCHELASTIC_RESTART_COUNT", "2"},
                            {"TORCHELASTIC_MAX_RESTARTS", "3"}};
const Environment kSlurm{{"SLURM_JOB_ID", "4711"},
                         {"SLURM_STEP_ID", "0"},
                         {"SLURM_PROCID", "3"},
                         {"SLURM_NTASKS", "4"},
                         {"SLURM_LOCALID", "1"},
                         {"SLURM_JOB_NODELIST", "gpu[07-08],login1"},
                         {"SLURM_LAUNCH_NODE_IPADDR", "10.0.0.9"}};
const Environment kOpenMpi{{"OMPI_COMM_WORLD_RANK", "1"},
                           {"OMPI_COMM_WORLD_SIZE", "2"},
                           {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                           {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                           {"PMIX_RANK", "1"},
                           {"PMIX_NAMESPACE", "1234567"}};

TEST(RankPlace, WithoutALauncherIsOneProcess) {
  const auto place = place_in({{"MASTER_ADDR", "node0"}, {"PATH", "/bin"}});
  ASSERT_TRUE(place.ok());
  EXPECT_EQ(place->size, 1);
  EXPECT_EQ(place->rank, 0);
  EXPECT_EQ(place->launcher, "");
}

TEST(RankPlace, OfTorchrun) {
  const auto place = place_in(kTorchrun);
  ASSERT_TRUE(place.ok()) << place.error().to_string();
  EXPECT_EQ(place->rank, 5);
  EXPECT_EQ(place->size, 8);
  EXPECT_EQ(place->local_rank, 1);
  EXPECT_EQ(place->address, "node0");
  EXPECT_EQ(place->port, 29500);
  EXPECT_TRUE(place->store_served);
  EXPECT_EQ(place->attempt, "job7/2/");
}

TEST(RankPlace, OfKubeflowsPyTorchJobHasNoLocalRank) {
  const auto place = place_in({{"MASTER_ADDR", "run-master-0"},
                               {"MASTER_PORT", "23456"},
                               {"WORLD_SIZE", "3"},
                               {"RANK", "2"},
                               {"PET_NNODES", "3"},
                               {"PYTHONUNBUFFERED", "1"}});
  ASSERT_TRUE(place.ok()) << place.error().to_string();
  EXPECT_EQ(place->rank, 2);
  EXPECT_EQ(place->local_rank, 0);
  EXPECT_FALSE(place->store_served);
}

TEST(RankPlace, OfSlurmIsOnTheFirstHostOfTheJob) {
  const auto place = place_in(kSlurm);
  ASSERT_TRUE(place.ok()) << place.error().to_string();
  EXPECT_EQ(place->rank, 3);
  EXPECT_EQ(place->size, 4);
  EXPECT_EQ(place->local_rank, 1);
  EXPECT_EQ(place->address, "gpu07");
  EXPECT_FALSE(place->store_served);
  Environment other = kSlurm;
  other["SLURM_PROCID"] = "0";
  EXPECT_EQ(place_in(other)->port, place->port) << "all ranks compute the same port";
  EXPECT_GE(place->port, 20000);
  other["SLURM_JOB_ID"] = "4712";
  EXPECT_NE(place_in(other)->port, place->port) << "two jobs on one node";
}

TEST(RankPlace, OfSlurmTakesTheLaunchAddressWithoutAList) {
  EXPECT_EQ(place_in(without(kSlurm, "SLURM_JOB_NODELIST"))->address, "10.0.0.9");
  Environment own = kSlurm;
  own["MASTER_ADDR"] = "10.1.1.1";
  own["MASTER_PORT"] = "1234";
  EXPECT_EQ(place_in(own)->address, "10.1.1.1");
  EXPECT_EQ(place_in(own)->port, 1234);
}

TEST(RankPlace, OfABatchScriptOfSlurmIsOneProcess) { EXPECT_EQ(place_in(without(kSlurm, "SLURM_STEP_ID"))->size, 1); }

TEST(RankPlace, OfABatchScriptThatExportsItsSizeComesFromSrun) {
  Environment exported = kSlurm;
  exported["WORLD_SIZE"] = "4";
  exported["MASTER_ADDR"] = "gpu07";
  EXPECT_EQ(place_in(exported)->rank, 3);
}

TEST(RankPlace, OfTorchrunUnderSlurmComesFromTorchrun) {
  Environment both = kSlurm;
  both.insert(kTorchrun.begin(), kTorchrun.end());
  EXPECT_EQ(place_in(both)->launcher, "torchrun");
  EXPECT_EQ(place_in(both)->rank, 5);
}

TEST(RankPlace, OfOpenMpiOnOneMachineNeedsNoAddress) {
  const auto place = place_in(kOpenMpi);
  ASSERT_TRUE(place.ok()) << place.error().to_string();
  EXPECT_EQ(place->rank, 1);
  EXPECT_EQ(place->size, 2);
  EXPECT_EQ(place->address, "127.0.0.1");
}

TEST(RankPlace, OfOpenMpiOnSeveralMachinesNeedsAnAddress) {
  Environment two = kOpenMpi;
  two["OMPI_COMM_WORLD_SIZE"] = "4";
  EXPECT_EQ(
      error_in(two),
      "environment: MASTER_ADDR is not set, and mpirun does not say where rank 0 is; set MASTER_ADDR to the host of "
      "rank 0 for all ranks (Open MPI: mpirun -x MASTER_ADDR=host)");
  two["MASTER_ADDR"] = "worker-0";
  EXPECT_EQ(place_in(two)->address, "worker-0");
}

TEST(RankPlace, OfMpich) {
  const auto place =
      place_in({{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "0"}, {"MPI_LOCALNRANKS", "2"}});
  ASSERT_TRUE(place.ok());
  EXPECT_EQ(place->size, 2);
  EXPECT_EQ(place->launcher, "mpiexec");
}

TEST(RankPlace, HalfSetSaysWhatIsMissing) {
  EXPECT_EQ(
      error_in(without(kTorchrun, "WORLD_SIZE")),
      "environment: WORLD_SIZE is not set, but other variables of torchrun are; start every rank with torchrun, or "
      "unset its variables to run one process");
  for (const char* name : {"RANK", "MASTER_ADDR", "MASTER_PORT"})
    EXPECT_TRUE(error_in(without(kTorchrun, name)).starts_with("environment: " + std::string(name) + " is not set"))
        << name;
  EXPECT_TRUE(error_in(without(kSlurm, "SLURM_NTASKS")).find("SLURM_NTASKS is not set") != std::string::npos);
  EXPECT_TRUE(error_in(without(kOpenMpi, "OMPI_COMM_WORLD_RANK")).find("OMPI_COMM_WORLD_RANK is not set") !=
              std::string::npos);
}

TEST(RankPlace, WrongNumbersAreRefused) {
  Environment wrong = kTorchrun;
  wrong["RANK"] = "8";
  EXPECT_EQ(error_in(wrong),
            "environment: RANK is 8, but WORLD_SIZE is 8; ranks count from 0; start every rank with the "
            "same size");
  for (const char* text : {"-1", "two", "1.5", " 1", "99999999999999999999"}) {
    wrong["RANK"] = text;
    EXPECT_TRUE(error_in(wrong).find("RANK='" + std::string(text) + "' is not a whole number") != std::string::npos)
        << error_in(wrong);
  }
  wrong = kTorchrun;
  wrong["MASTER_PORT"] = "70000";
  EXPECT_TRUE(error_in(wrong).find("MASTER_PORT") != std::string::npos);
  wrong["WORLD_SIZE"] = "0";
  EXPECT_TRUE(error_in(wrong).find("WORLD_SIZE") != std::string::npos);
}

// From slurm.schedmd.com's description of hostlist expressions.
TEST(SlurmHosts, FirstOfAList) {
  EXPECT_EQ(first_slurm_host("node1"), "node1");
  EXPECT_EQ(first_slurm_host("node1,node2"), "node1");
  EXPECT_EQ(first_slurm_host("node[01-03,7]"), "node01");
  EXPECT_EQ(first_slurm_host("node[7,01-03],x"), "node7");
  EXPECT_EQ(first_slurm_host("rack[0-1]n[3-4]-ib,login"), "rack0n3-ib");
  EXPECT_EQ(first_slurm_host("gpu-7.cluster.local"), "gpu-7.cluster.local");
  for (const char* wrong : {"", ",node1", "node[", "node[]", "node[a-b]", "node 1", "no;de"})
    EXPECT_FALSE(first_slurm_host(wrong)) << wrong;
}

}  // namespace
}  // namespace mortise
