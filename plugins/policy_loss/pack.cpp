// Pack mortise.policy_loss: a file per loss; this one holds the exported object.
#include <mortise/cpp/plugin.hpp>

MORTISE_PACK()
