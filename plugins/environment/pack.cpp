// Pack mortise.environment: a file per plugin; this one holds the exported object.
#include <mortise/cpp/plugin.hpp>

MORTISE_PACK()
