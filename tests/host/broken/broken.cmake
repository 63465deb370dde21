# The pack of broken plugins, and packs that are broken as files; the folder per pack as in tests/host/packs.
set(TEST_PACKS_DIR "${CMAKE_BINARY_DIR}/tests/packs")
set(broken_source "${CMAKE_CURRENT_LIST_DIR}")
add_custom_target(broken_packs)

# broken_file(NAME [DEFS ...] [LINK ...])
function(broken_file name)
  cmake_parse_arguments(ARG "" "" "DEFS;LINK" ${ARGN})
  set(target "broken_pack_${name}")
  add_library(${target} MODULE "${broken_source}/pack.c")
  target_link_libraries(${target} PRIVATE mortise::sdk)
  target_compile_definitions(${target} PRIVATE _GNU_SOURCE ${ARG_DEFS})
  if(MORTISE_SANITIZE)
    target_compile_options(${target} PRIVATE -fno-sanitize=all)
  endif()
  target_link_options(${target} PRIVATE "LINKER:--version-script=${TEST_PACKS_DIR}/exports.map" "LINKER:-z,nodelete" ${ARG_LINK})
  set_target_properties(${target} PROPERTIES PREFIX "" OUTPUT_NAME "${name}" SKIP_BUILD_RPATH ON
    LIBRARY_OUTPUT_DIRECTORY "${TEST_PACKS_DIR}/broken")
  add_dependencies(broken_packs ${target})
endfunction()

broken_file(text_relocations DEFS TEXT_RELOCATION LINK "LINKER:-z,notext")
broken_file(described DEFS SUMMARY="")
broken_file(known_names DEFS REQUIRES="\\"reff_log_prob\\"" REQUIRES_NAME="reff_log_prob")
broken_file(harmless DEFS CHANGES_FOLDER)
broken_file(quick DEFS SLOW)
broken_file(sizes DEFS VTABLE_SIZE=4096)
broken_file(beside_itself DEFS SINGLE)
# As if they were bound to libtorch, and as its pools of threads: from the first instance on, or more with each.
broken_file(thread_pool DEFS THREADS=1 BUILD="\\"torch\\":\\"1.0.0\\"")
broken_file(thread_leak DEFS THREADS=1000 BUILD="\\"torch\\":\\"1.0.0\\"")
broken_file(own_thread DEFS THREADS=1)

set(MORTISE_PACK_DIR "${TEST_PACKS_DIR}/broken")
mortise_add_pack(test.broken VERSION 1.0.0 SOURCES "${broken_source}/life.cpp" "${broken_source}/losses.cpp"
  "${broken_source}/advantages.cpp" "${broken_source}/rewards.cpp" "${broken_source}/rollouts.cpp"
  "${broken_source}/environments.cpp")
if(MORTISE_SANITIZE)  # the faults are for the cases to find, not for a sanitizer inside the plugin
  target_compile_options(test.broken_objects PRIVATE -fno-sanitize=all)
endif()
add_dependencies(broken_packs test.broken)
