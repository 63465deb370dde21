// Pack mortise.rollout_servers: rollout backends that are clients of servers; this file holds the exported object.
#include <mortise/cpp/plugin.hpp>

MORTISE_PACK()
