// The programs `mortise` and `mortise-engine`. program.cpp has what they do.
#include "engine_parts.h"

int main(int argc, char** argv) { return mortise::run_program(argc, argv); }
