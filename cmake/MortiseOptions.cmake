# Options and flags of every target. Shown by: cmake -LH
option(MORTISE_TORCH "Build the folders that need libtorch (model, dist, generate, learn, train) and the full program" ON)
option(MORTISE_TESTS "Build the tests" ON)
option(MORTISE_APPS "Build the programs" ON)
option(MORTISE_UNITY "Compile several files of a room, pack or test as one: a whole build is faster, a rebuild after one edit slower" OFF)
option(MORTISE_JSON_COPY "Include a copy of nlohmann/json.hpp without its literals, which cost each file 0.4 s (the presets do)" OFF)
set(MORTISE_SANITIZE "" CACHE STRING "Sanitizers for every target: address,undefined or thread")
set(MORTISE_DEPS_DIR "$ENV{MORTISE_DEPS_DIR}" CACHE PATH "Folder that ./dev deps filled (default: ~/.cache/mortise/deps)")
if(NOT MORTISE_DEPS_DIR)
  set(MORTISE_DEPS_DIR "$ENV{HOME}/.cache/mortise/deps" CACHE PATH "" FORCE)
endif()
set(MORTISE_TEST_OBJECTS OFF CACHE STRING "A configured release build that compiles the tests for this build too, or OFF (cmake/MortiseTargets.cmake)")
# Rooms to configure; a developer of one room can name just it and what it needs: -DMORTISE_ROOMS="foundation;text"
set(MORTISE_ROOMS "all" CACHE STRING "core/ folders to build, or all")

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_C_STANDARD 11)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/bin")

find_program(MORTISE_CCACHE ccache)
if(MORTISE_CCACHE)
  # pch_defines,time_macros: what ccache needs to cache files that use a precompiled header
  set(launcher env CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime "${MORTISE_CCACHE}")
  set(CMAKE_C_COMPILER_LAUNCHER ${launcher})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${launcher})
endif()

# Without optimisation clang compiles tests in a third of gcc's time. If it is here, it compiles them in a release build by gcc
# (mortise_test_compiler). It is the clang of the sanitizers' builds, because another one has other warnings.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_BUILD_TYPE STREQUAL "Release" AND NOT MORTISE_SANITIZE)
  find_program(MORTISE_TEST_COMPILER clang++-14 DOC "clang++ that compiles the tests; OFF: gcc compiles them")
endif()

# LLVM's linker takes a third of the time for programs, under sanitizers a quarter. Without it the compiler's own one links. Packs
# keep the compiler's: they are linked as their authors link theirs.
find_program(MORTISE_LLD ld.lld)
if(MORTISE_LLD)
  string(APPEND CMAKE_EXE_LINKER_FLAGS " -fuse-ld=lld")
endif()

# The presets of GCC set --param=ggc-min-heapsize=524288: the compiler collects garbage from 512 MiB on, not from 128. That saves
# a tenth of its time and takes 150 MB more in each job.
add_library(mortise_flags INTERFACE)
target_compile_options(mortise_flags INTERFACE -Wall -Wextra -Wshadow -Wnon-virtual-dtor -Werror -fno-math-errno
  $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>
  # False alarms of gcc 12 in std::string and std::variant code that it has inlined; clang checks the same sources.
  $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict -Wno-array-bounds -Wno-stringop-overflow -Wno-stringop-overread -Wno-maybe-uninitialized>)
if(MORTISE_SANITIZE)
  add_compile_options(-fsanitize=${MORTISE_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${MORTISE_SANITIZE})
  # gcc and clang announce sanitizers differently. These definitions are for the few places that must know.
  if(MORTISE_SANITIZE MATCHES "address")
    add_compile_definitions(MORTISE_ASAN)
  elseif(MORTISE_SANITIZE MATCHES "thread")
    add_compile_definitions(MORTISE_TSAN)
  endif()
endif()
