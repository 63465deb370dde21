// A program that links libtorch ends without the destructors of the libraries that it was linked with.
#pragma once

namespace mortise {

// From now on the program ends as the C library ends one: the destructors of all libraries run, those of packs included.
void end_libraries_too();

}  // namespace mortise
