// The layouts as C++ sees them.
#include "layout.h"
